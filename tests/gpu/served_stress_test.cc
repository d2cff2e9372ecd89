// SPDX-License-Identifier: Apache-2.0
// Client processes on GPUs through a running daemon: long runs, deaths, memory.
#include <signal.h>

#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "tests/gpu/served_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct LivePlan {
  Codec codec;
  Algorithm algorithm;
};
constexpr LivePlan kLivePlans[] = {{Codec::kNone, Algorithm::kOneShot},
                                   {Codec::kInt4, Algorithm::kTwoShot},
                                   {Codec::kLp3, Algorithm::kOneShot},
                                   {Codec::kFp8, Algorithm::kTwoShot}};

// Every operation has the result of one of the policies that were in force, the same on all ranks.
TEST_F(ServedTest, TenThousandChangingOperationsUnderALivePolicy) {
  constexpr uint32_t kOperations = 10'000;
  constexpr uint64_t kCountMax = 5000;
  SetPolicy("none", "one_shot");
  RankProcesses ranks(
      2, Guarded([&](RankProcess& process) -> std::string {
        ServedRank self(directory(), process.rank(), 2);
        const Memory memory = self.comm.Allocate(8 * kCountMax);
        auto* in = static_cast<std::byte*>(memory.data());
        std::mt19937 random(11);
        std::set<int> seen;
        for (uint32_t i = 0; i < kOperations; ++i) {
          const auto dtype = static_cast<Dtype>(1 + random() % 3);
          const auto op = static_cast<ReduceOp>(1 + random() % 2);
          const uint64_t count = random() % 8 == 0 ? random() % 9 : random() % kCountMax;
          const std::vector<Bytes> tensors = Tensors(dtype, count, 2, random() % 64);
          self.AllReduce(tensors[process.rank()], in, in + 4 * kCountMax, count, dtype, op);
          const Bytes got = self.Download(in + 4 * kCountMax, count * DtypeBytes(dtype));
          int plan = -1;
          for (int p = 0; p < 4 && plan < 0; ++p) {
            const LivePlan& candidate = kLivePlans[p];
            if (got == Expected(candidate.codec, candidate.algorithm, dtype, op, tensors, count)) {
              plan = p;
            }
          }
          if (plan < 0) return "operation " + std::to_string(i) + " has the result of no policy";
          if (count > 64) seen.insert(plan);
          if (i % 100 == 0) process.Report(std::to_string(plan));
        }
        self.comm.CheckStreams();
        process.Report("end");
        return seen.size() == 4 ? ""
                                : "only " + std::to_string(seen.size()) + " policies were seen";
      }));
  for (int i = 0; ranks.AwaitReport(0) != "end" && i < 101; ++i) {
    const LivePlan& plan = kLivePlans[i % 4];
    SetPolicy(std::string(Name(plan.codec)), std::string(Name(plan.algorithm)));
  }
  EXPECT_THAT(ranks.Wait(std::chrono::seconds(200)), Each(IsEmpty()));
}

// Puts operations on its stream until one fails; returns the failure. Never hangs.
std::string RunUntilFailure(const std::string& directory, RankProcess& process) {
  ServedRank self(directory, process.rank(), 2);
  const uint64_t count = uint64_t{4} << 20;
  const Memory memory = self.comm.Allocate(8 * count);
  auto* in = static_cast<std::byte*>(memory.data());
  QRD_MUST(hipMemset(memory.data(), 0, memory.bytes()));
  for (int i = 0; i < 1'000'000; ++i) {
    qrd_status status = qrd_all_reduce_on_stream(self.comm.handle(), in, in + 4 * count, count,
                                                 QRD_FP32, QRD_SUM, self.stream.get());
    if (status != QRD_OK) {
      self.stream.Wait();  // it must come to an end
      return std::string(qrd_status_string(status)) + ": " + qrd_last_error();
    }
    if (i == 20) process.Report("running");
    if (i % 16 == 15) self.stream.Wait();
  }
  return "no failure";
}

TEST_F(ServedTest, AKilledPeerReleasesTheStreamAndIsNamed) {
  for (int round = 0; round < 5; ++round) {
    RankProcesses ranks(2, Guarded([&](RankProcess& process) -> std::string {
                          return RunUntilFailure(directory(), process);
                        }));
    for (const uint32_t rank : {0u, 1u}) ASSERT_EQ(ranks.AwaitReport(rank), "running");
    std::this_thread::sleep_for(  // NOLINT(qrd-sleep): another moment every round
        std::chrono::milliseconds(3 * round));
    ranks.Signal(1, SIGKILL);
    const std::vector<std::string> results = ranks.Wait(std::chrono::seconds(30));
    EXPECT_THAT(results[0], HasSubstr("PEER_LOST"));
    EXPECT_THAT(results[0], HasSubstr("rank 1"));
    EXPECT_EQ(results[1], "killed by signal 9");
    EXPECT_TRUE(daemon_.IsRunning()) << daemon_.Log();
  }
}

TEST_F(ServedTest, AKilledDaemonReleasesTheStreamsAndTheNextOneServes) {
  for (int round = 0; round < 3; ++round) {
    RankProcesses ranks(
        2, Guarded([&](RankProcess& process) -> std::string {
          const std::string failure = RunUntilFailure(directory(), process);
          process.Report(failure);
          process.Await("again");
          ServedRank self(directory(), process.rank(), 2);
          const std::vector<Bytes> tensors = Tensors(Dtype::kFp32, 1000, 2, 3);
          const Memory memory = self.comm.Allocate(8000);
          auto* in = static_cast<std::byte*>(memory.data());
          self.AllReduce(tensors[process.rank()], in, in + 4000, 1000, Dtype::kFp32);
          const Bytes got = self.Download(in + 4000, 4000);
          self.comm.CheckStreams();
          return Difference(got, Expected(Codec::kNone, Algorithm::kOneShot, Dtype::kFp32,
                                          ReduceOp::kSum, tensors, 1000));
        }));
    for (const uint32_t rank : {0u, 1u}) ASSERT_EQ(ranks.AwaitReport(rank), "running");
    daemon_.Kill();
    for (const uint32_t rank : {0u, 1u}) {
      EXPECT_THAT(ranks.AwaitReport(rank, std::chrono::seconds(30)), HasSubstr("DAEMON_LOST"));
    }
    ASSERT_EQ(daemon_.Start({"--gpu", "required"}), "");
    ranks.SendAll("again");
    EXPECT_THAT(ranks.Wait(std::chrono::seconds(60)), Each(IsEmpty()));
  }
}

TEST_F(ServedTest, MemoryIsBackAfterManyAttachRounds) {
  const auto round = [&] {
    return RunRanks(2, Guarded([&](RankProcess& process) -> std::string {
                      // Several sessions of one process: starting a runtime takes far longer.
                      for (int i = 0; i < 20; ++i) {
                        ServedRank self(directory(), process.rank(), 2);
                        const Memory memory = self.comm.Allocate(uint64_t{64} << 20);
                        self.comm.AllReduceOnStream(memory.data(), memory.data(), 1000, QRD_FP32,
                                                    QRD_SUM, self.stream.get());
                        self.stream.Wait();
                        self.comm.CheckStreams();
                      }
                      return "";
                    }));
  };
  ASSERT_THAT(round(), Each(IsEmpty()));
  const uint64_t before = FreeDeviceBytes();
  for (int i = 0; i < 10; ++i) ASSERT_THAT(round(), Each(IsEmpty()));
  // The daemon gives memory back on a thread of its own.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  uint64_t after = FreeDeviceBytes();
  while (after + (uint64_t{2} << 20) < before && std::chrono::steady_clock::now() < end) {
    after = FreeDeviceBytes();
  }
  EXPECT_LE(before, after + (uint64_t{2} << 20));
}

}  // namespace
}  // namespace qrd::testing
