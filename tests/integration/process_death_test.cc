// SPDX-License-Identifier: Apache-2.0
// Processes that die at bad moments while others work, a daemon that dies and comes back, and a
// policy that changes under running ranks: real processes, real signals, the tools that operators
// use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <qrd/qrd.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/all_reduce_fixture.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCount = 5000;

// Attaches, then all-reduces in place until `more` says no or one fails.
template <typename More>
std::string AllReduceLoop(const std::string& runtime_directory, uint32_t rank, uint32_t world_size,
                          const char* communicator, More more) {
  std::string error;
  qrd_comm_t comm = Attach(runtime_directory, rank, world_size, &error, communicator);
  if (comm == nullptr) return error;
  void* memory = nullptr;
  error = Outcome(qrd_mem_alloc(comm, kCount * sizeof(float), &memory));
  auto* x = static_cast<float*>(memory);
  for (uint64_t i = 0; error.empty() && more(i); ++i) {
    for (uint64_t j = 0; j < kCount; ++j) x[j] = static_cast<float>(rank + 1);
    qrd_operation operation = 0;
    error = Outcome(qrd_all_reduce(comm, x, x, kCount, QRD_FP32, QRD_SUM, &operation));
    if (error.empty()) error = Outcome(qrd_wait(comm, operation, 0, nullptr));
    const float want = static_cast<float>(world_size * (world_size + 1) / 2);
    if (error.empty() && (x[0] != want || x[kCount - 1] != want)) error = "wrong sum";
  }
  const std::string end = Outcome(qrd_comm_finalize(comm));
  return error.empty() ? end : error;
}

class ProcessDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(daemon_.Start(), ""); }

  ProgramResult Ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--runtime-directory", daemon_.runtime_directory()});
    return RunProgram(Qrctl(), arguments);
  }

  DaemonProcess daemon_;
};

// F28: the daemon neither ends nor blocks, and another communicator has no failed call.
TEST_F(ProcessDeathTest, ClientsKilledAtAnyMomentNeverDisturbAnotherCommunicator) {
  const std::string stop_file = daemon_.File("stop");
  RankProcesses bystanders(2, [&](RankProcess& self) {
    bool told = false;
    return AllReduceLoop(daemon_.runtime_directory(), self.rank(), 2, "bystander", [&](uint64_t i) {
      if (i == 3) self.Report("running");
      // Both ranks must do the same number of operations: rank 0 decides in multiples of 64.
      if (i % 64 != 0 || i == 0) return true;
      if (!told) told = access(stop_file.c_str(), F_OK) == 0 && i % 4096 == 0;
      return i < 5'000'000 && !(i % 4096 == 0 && told);
    });
  });
  for (uint32_t rank : {0u, 1u}) ASSERT_EQ(bystanders.AwaitReport(rank), "running");
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const uint64_t kill_at = random() % 20;
    RankProcesses victims(2, [&](RankProcess& self) {
      return AllReduceLoop(daemon_.runtime_directory(), self.rank(), 2, "victim", [&](uint64_t i) {
        if (self.rank() == 1 && i == kill_at) self.Report("now");
        return true;
      });
    });
    ASSERT_EQ(victims.AwaitReport(1), "now") << "round " << round;
    victims.Signal(1, SIGKILL);
    const std::vector<std::string> results = victims.Wait();
    EXPECT_THAT(results[0], HasSubstr("PEER_LOST")) << "round " << round;
    EXPECT_THAT(results[0], HasSubstr("rank 1")) << "round " << round;
    ASSERT_TRUE(daemon_.IsRunning()) << daemon_.Log();
  }
  fclose(fopen(stop_file.c_str(), "w"));
  for (const std::string& result : bystanders.Wait()) {
    // The rank that looked first leaves; its peer may see that as a lost peer, and nothing else.
    EXPECT_THAT(result, ::testing::AnyOf(IsEmpty(), HasSubstr("PEER_LOST"))) << daemon_.Log();
  }
  EXPECT_EQ(Ctl({"status"}).exit_code, 0);
}

// F31: what operators set survives SIGKILL, and nothing has to be cleaned up by hand.
// What was asked for, or what ended it.
TEST_F(ProcessDeathTest, AnIdleClientIsToldWhyItsSessionEnded) {
  const std::string ended = "the session with the daemon has ended (finalize and init again): ";
  RankProcesses ranks(1, [&](RankProcess& self) {
    for (const auto& [begin, reason] : {std::pair{"ABORTED: ", "the communicator was deleted"},
                                        std::pair{"DAEMON_LOST: ", "the daemon stopped"}}) {
      std::string error;
      qrd_comm_t comm = Attach(daemon_.runtime_directory(), 0, 1, &error);
      if (comm == nullptr) return error;
      self.Report("idle");
      self.Await("ended");
      float x = 1;
      qrd_status status = QRD_OK;
      while (status == QRD_OK) {
        qrd_operation operation = 0;
        status = qrd_all_reduce(comm, &x, &x, 1, QRD_FP32, QRD_SUM, &operation);
        if (status == QRD_OK) status = qrd_wait(comm, operation, 0, nullptr);
      }
      // Behind the call that failed, if one did.
      const std::string text = Outcome(status);
      if (!text.starts_with(begin + ended) || !text.ends_with(reason)) return text;
      qrd_comm_finalize(comm);
      self.Report("told");
    }
    return std::string();
  });
  ASSERT_EQ(ranks.AwaitReport(0), "idle");
  EXPECT_EQ(Ctl({"comm", "delete", "tp", "--force"}).exit_code, 0);
  ranks.Send(0, "ended");
  ASSERT_EQ(ranks.AwaitReport(0), "told");
  ASSERT_EQ(ranks.AwaitReport(0), "idle");
  EXPECT_EQ(daemon_.Terminate(), 0);
  ranks.Send(0, "ended");
  EXPECT_THAT(ranks.Wait(), Each(IsEmpty()));
}

TEST_F(ProcessDeathTest, ADaemonWithoutStandardStreamsKeepsItsLogOutOfItsFiles) {
  daemon_.Kill();
  const std::string command = "exec 0<&- 1>&- 2>&-; exec '" + DaemonProcess::Executable() +
                              "' --runtime-directory '" + daemon_.runtime_directory() +
                              "' --state-directory '" + daemon_.state_directory() +
                              "' --metrics-address ''";
  RankProcesses shell(1, [&](RankProcess&) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    return std::string("cannot run a shell");
  });
  const std::string pid = std::to_string(shell.pid(0));
  int tries = 0;
  while (Ctl({"status"}).exit_code != 0) ASSERT_LT(++tries, 1000);
  for (const char* fd : {"0", "1", "2"}) {
    EXPECT_EQ(std::filesystem::read_symlink("/proc/" + pid + "/fd/" + fd), "/dev/null");
  }
  std::ifstream lock(daemon_.runtime_directory() + "/qrd.lock");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lock), {}), pid + "\n");
  shell.Signal(0, SIGTERM);
  shell.Wait();
}

TEST_F(ProcessDeathTest, CommunicatorsAndPolicyComeBackAfterTheDaemonIsKilled) {
  ASSERT_EQ(Ctl({"comm", "create", "model-a", "--world-size", "4"}).exit_code, 0);
  const ProgramResult set = Ctl({"policy", "set", "--codec", "int4"});
  ASSERT_EQ(set.exit_code, 0) << set.err;
  const std::string before = Ctl({"--output", "json", "policy", "get"}).out;
  EXPECT_THAT(before, HasSubstr("CODEC_INT4"));
  daemon_.Kill();
  const ProgramResult down = Ctl({"status"});
  EXPECT_EQ(down.exit_code, 3) << down.err;
  ASSERT_EQ(daemon_.Start({}, std::chrono::seconds(20)), "");
  EXPECT_EQ(Ctl({"--output", "json", "policy", "get"}).out, before);
  EXPECT_THAT(Ctl({"comm", "list"}).out, HasSubstr("model-a"));
}

// F39: each operation uses one codec on all ranks, and the result is that codec's.
TEST_F(ProcessDeathTest, LivePolicyChangesUnderLoadGiveEachOperationOneCodecOnAllRanks) {
  constexpr uint32_t kRanks = 4;
  constexpr uint64_t kOperations = 3000;
  const Problem problem = MakeProblem(Dtype::kBf16, ReduceOp::kSum, kRanks, kCount, 11);
  std::vector<const void*> inputs;
  for (const auto& input : problem.inputs) inputs.push_back(input.data());
  std::vector<std::byte> with_int4(problem.bytes());
  ReferenceAllReduce(Codec::kInt4, Algorithm::kTwoShot, Dtype::kBf16, ReduceOp::kSum, kRanks,
                     kCount, inputs.data(), with_int4.data());
  RankProcesses ranks(kRanks, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), kRanks, &error);
    if (comm == nullptr) return error;
    void *x = nullptr, *y = nullptr;
    error = Outcome(qrd_mem_alloc(comm, problem.bytes(), &x));
    if (error.empty()) error = Outcome(qrd_mem_alloc(comm, problem.bytes(), &y));
    if (!error.empty()) return error;
    std::memcpy(x, problem.inputs[self.rank()].data(), problem.bytes());
    std::string codecs;
    for (uint64_t i = 0; i < kOperations && error.empty(); ++i) {
      qrd_operation operation = 0;
      qrd_op_stats stats = QRD_OP_STATS_INIT;
      error = Outcome(qrd_all_reduce(comm, x, y, kCount, QRD_BF16, QRD_SUM, &operation));
      if (error.empty()) error = Outcome(qrd_wait(comm, operation, 0, &stats));
      const bool int4 = stats.codec == QRD_CODEC_INT4;
      const auto& want = int4 ? with_int4 : problem.expected;
      if (error.empty() && std::memcmp(y, want.data(), want.size()) != 0) {
        error = "operation " + std::to_string(i) + ": not the result of its codec";
      }
      codecs += int4 ? '4' : '0';
      if (i == 0) self.Report("running");
    }
    self.Report(codecs);
    self.Await("end");
    const std::string end = Outcome(qrd_comm_finalize(comm));
    return error.empty() ? end : error;
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(ranks.AwaitReport(rank), "running");
  for (int change = 0; change < 50; ++change) {
    const ProgramResult set =
        Ctl({"policy", "set", "--codec", change % 2 ? "none" : "int4", "--algorithm", "two_shot"});
    ASSERT_EQ(set.exit_code, 0) << set.err;
  }
  const std::string codecs = ranks.AwaitReport(0);
  for (uint32_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ(ranks.AwaitReport(rank), codecs);
  EXPECT_EQ(codecs.size(), kOperations);
  ranks.SendAll("end");
  EXPECT_THAT(ranks.Wait(), Each(IsEmpty()));
}

}  // namespace
}  // namespace qrd::testing
