// SPDX-License-Identifier: Apache-2.0
// Client processes on GPUs through a running daemon: results, memory, order, graphs.
#include <chrono>
#include <thread>

#include "tests/gpu/served_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr uint64_t kCountMax = 300'000;
constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

// One operation of every dtype and of some counts, compared with the reference.
std::string CheckResults(ServedRank& self, Codec codec, Algorithm algorithm, void* in, void* out) {
  uint32_t seed = static_cast<uint32_t>(codec) * 2 + static_cast<uint32_t>(algorithm);
  for (const Dtype dtype : kDtypes) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{2049}, uint64_t{65536}, kCountMax}) {
      const uint32_t world_size = self.comm.world_size();
      const std::vector<Bytes> tensors = Tensors(dtype, count, world_size, ++seed);
      const ReduceOp op = seed % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
      self.AllReduce(tensors[self.comm.rank()], in, out, count, dtype, op);
      const Bytes got = self.Download(out, count * DtypeBytes(dtype));
      self.comm.CheckStreams();
      const std::string difference =
          Difference(got, Expected(codec, algorithm, dtype, op, tensors, count));
      if (difference.empty()) continue;
      return std::string(Name(codec)) + " " + std::string(Name(algorithm)) + " " +
             std::string(Name(dtype)) + " count " + std::to_string(count) + ": " + difference;
    }
  }
  return "";
}

class ServedCodecTest : public ServedTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(ServedCodecTest, EveryCodecGivesTheBytesOfTheReference) {
  const uint32_t world_size = GetParam();
  RankProcesses ranks(world_size, Guarded([&](RankProcess& process) -> std::string {
                        ServedRank self(directory(), process.rank(), world_size);
                        const Memory memory = self.comm.Allocate(8 * kCountMax);
                        auto* in = static_cast<std::byte*>(memory.data());
                        for (const Codec codec : kAllCodecs) {
                          for (const auto algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
                            process.Report("next");
                            process.Await("go");
                            const std::string error =
                                CheckResults(self, codec, algorithm, in, in + 4 * kCountMax);
                            if (!error.empty()) return error;
                          }
                        }
                        return "";
                      }));
  for (const Codec codec : kAllCodecs) {
    for (const auto algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        if (ranks.AwaitReport(rank) != "next") break;
      }
      SetPolicy(std::string(Name(codec)), std::string(Name(algorithm)));
      ranks.SendAll("go");
    }
  }
  EXPECT_THAT(ranks.Wait(), Each(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ServedCodecTest, ::testing::Values(1, 2, 4));

TEST_F(ServedTest, HostWaitedStagedAndImportedMemoryGiveTheSameResult) {
  const auto body = [&](RankProcess& process) -> std::string {
    ServedRank self(directory(), process.rank(), 2);
    const uint64_t count = 100'000, bytes = 2 * count;
    const std::vector<Bytes> tensors = Tensors(Dtype::kBf16, count, 2, 1);
    const Bytes want =
        Expected(Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, ReduceOp::kSum, tensors, count);
    const Memory served = self.comm.Allocate(2 * bytes);
    const DeviceBuffer own(2 * bytes), imported(2 * bytes);
    const ImportedMemory import = self.comm.Import(imported.data(), imported.bytes());
    const std::byte* pools[] = {static_cast<std::byte*>(served.data()), own.data(),
                                imported.data()};
    for (const std::byte* pool : pools) {
      auto* in = const_cast<std::byte*>(pool);
      self.AllReduce(tensors[process.rank()], in, in + bytes, count, Dtype::kBf16);
      std::string error = Difference(self.Download(in + bytes, bytes), want);
      self.comm.CheckStreams();
      if (!error.empty()) return "on a stream: " + error;
      QRD_MUST(hipMemset(in + bytes, 0xA5, bytes));
      QRD_MUST(hipDeviceSynchronize());
      self.comm.AllReduce(in, in + bytes, count, QRD_BF16, QRD_SUM).Wait();
      error = Difference(self.Download(in + bytes, bytes), want);
      if (!error.empty()) return "host-waited: " + error;
    }
    if (!own.GuardsAreIntact() || !imported.GuardsAreIntact()) return "bytes around were written";
    return "";
  };
  EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty()));
}

TEST_F(ServedTest, TwoGroupsShareACommunicator) {
  const auto body = [&](RankProcess& process) -> std::string {
    const uint32_t group = process.rank() / 2;
    ServedRank self(directory(), process.rank() % 2, 2, "tp", group == 0 ? "a" : "b");
    const uint64_t count = 20'000 + 1000 * group;
    const Memory memory = self.comm.Allocate(8 * count);
    auto* in = static_cast<std::byte*>(memory.data());
    for (uint32_t i = 0; i < 300; ++i) {
      const std::vector<Bytes> tensors = Tensors(Dtype::kFp32, count, 2, 1000 * group + i % 10);
      self.AllReduce(tensors[self.comm.rank()], in, in + 4 * count, count, Dtype::kFp32);
      const Bytes got = self.Download(in + 4 * count, 4 * count);
      self.comm.CheckStreams();
      const std::string error =
          Difference(got, Expected(Codec::kNone, Algorithm::kTwoShot, Dtype::kFp32, ReduceOp::kSum,
                                   tensors, count));
      if (!error.empty()) return "operation " + std::to_string(i) + ": " + error;
    }
    return "";
  };
  EXPECT_THAT(RunRanks(4, Guarded(body)), Each(IsEmpty()));
}

TEST_F(ServedTest, LateRanksDelayTheStreamAndNothingElse) {
  const auto body = [&](RankProcess& process) -> std::string {
    ServedRank self(directory(), process.rank(), 2);
    const uint64_t count = 4096;
    const Memory memory = self.comm.Allocate(8 * count);
    auto* in = static_cast<std::byte*>(memory.data());
    const std::vector<Bytes> tensors = Tensors(Dtype::kFp32, count, 2, 5);
    const Bytes want =
        Expected(Codec::kNone, Algorithm::kOneShot, Dtype::kFp32, ReduceOp::kSum, tensors, count);
    for (uint32_t i = 0; i < 20; ++i) {
      // Each rank is late in turn.
      if (i % 2 == process.rank()) {
        std::this_thread::sleep_for(  // NOLINT(qrd-sleep): being late is the subject
            std::chrono::milliseconds(20));
      }
      self.AllReduce(tensors[process.rank()], in, in + 4 * count, count, Dtype::kFp32);
      const std::string error = Difference(self.Download(in + 4 * count, 4 * count), want);
      if (!error.empty()) return error;
    }
    self.comm.CheckStreams();
    return "";
  };
  EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty()));
}

// F13, F18. The result of replay i is kept in its own place, so that the stream never has to stop.
TEST_F(ServedTest, AGraphIsReplayedAThousandTimesWithOtherData) {
  constexpr uint32_t kReplays = 1000, kInputs = 16;
  constexpr uint64_t kCount = 8192, kBytes = 2 * kCount;
  SetPolicy("int4", "two_shot");
  const auto body = [&](RankProcess& process) -> std::string {
    ServedRank self(directory(), process.rank(), 2);
    const Memory memory = self.comm.Allocate(2 * kBytes);
    auto* in = static_cast<std::byte*>(memory.data());
    const DeviceBuffer inputs(kInputs * kBytes), results(kReplays * kBytes);
    std::vector<Bytes> want;
    for (uint32_t i = 0; i < kInputs; ++i) {
      const std::vector<Bytes> tensors = Tensors(Dtype::kBf16, kCount, 2, 40 + i);
      QRD_MUST(hipMemcpy(inputs.data() + i * kBytes, tensors[process.rank()].data(), kBytes,
                         hipMemcpyHostToDevice));
      QRD_MUST(hipDeviceSynchronize());
      want.push_back(Expected(Codec::kInt4, Algorithm::kTwoShot, Dtype::kBf16, ReduceOp::kSum,
                              tensors, kCount));
    }
    // Two operations a graph: the second takes the first one's result.
    const Graph graph(self.stream, [&] {
      self.comm.AllReduceOnStream(in, in + kBytes, kCount, QRD_BF16, QRD_SUM, self.stream.get());
      self.comm.AllReduceOnStream(in + kBytes, in, kCount, QRD_BF16, QRD_AVG, self.stream.get());
    });
    for (uint32_t i = 0; i < kReplays; ++i) {
      QRD_MUST(hipMemcpyAsync(in, inputs.data() + (i % kInputs) * kBytes, kBytes,
                              hipMemcpyDeviceToDevice, self.stream.get()));
      graph.Replay(self.stream);
      QRD_MUST(hipMemcpyAsync(results.data() + i * kBytes, in + kBytes, kBytes,
                              hipMemcpyDeviceToDevice, self.stream.get()));
    }
    self.stream.Wait();
    self.comm.CheckStreams();
    const Bytes got = results.Download();
    for (uint32_t i = 0; i < kReplays; ++i) {
      const Bytes one(got.begin() + static_cast<int64_t>(i * kBytes),
                      got.begin() + static_cast<int64_t>((i + 1) * kBytes));
      const std::string error = Difference(one, want[i % kInputs]);
      if (!error.empty()) return "replay " + std::to_string(i) + ": " + error;
    }
    // Eager operations and the graph take turns.
    const std::vector<Bytes> tensors = Tensors(Dtype::kBf16, kCount, 2, 40);
    for (int i = 0; i < 5; ++i) {
      self.AllReduce(tensors[process.rank()], in, in + kBytes, kCount, Dtype::kBf16);
      const Bytes eager = self.Download(in + kBytes, kBytes);
      QRD_MUST(hipMemsetAsync(in + kBytes, 0xA5, kBytes, self.stream.get()));
      graph.Replay(self.stream);
      const std::string error = Difference(self.Download(in + kBytes, kBytes), eager);
      if (!error.empty()) return "replay and eager: " + error;
    }
    return "";
  };
  EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty()));
}

// F15: no order between the streams but the communicator's own; nothing spins for ever.
TEST_F(ServedTest, TwoStreamsOfARankKeepOneOrder) {
  const auto body = [&](RankProcess& process) -> std::string {
    ServedRank self(directory(), process.rank(), 2);
    const Stream second;
    const uint64_t count = 2000, bytes = 4 * count;
    const Memory memory = self.comm.Allocate(4 * bytes);
    auto* in = static_cast<std::byte*>(memory.data());
    const std::vector<Bytes> tensors = Tensors(Dtype::kFp32, count, 2, 9);
    for (int half = 0; half < 2; ++half) {
      QRD_MUST(hipMemcpy(in + 2 * half * bytes, tensors[process.rank()].data(), bytes,
                         hipMemcpyHostToDevice));
      QRD_MUST(hipDeviceSynchronize());
    }
    for (int i = 0; i < 1000; ++i) {
      std::byte* half = in + 2 * (i % 2) * bytes;
      self.comm.AllReduceOnStream(half, half + bytes, count, QRD_FP32, QRD_SUM,
                                  i % 2 == 0 ? self.stream.get() : second.get());
    }
    self.stream.Wait();
    second.Wait();
    self.comm.CheckStreams();
    const Bytes want =
        Expected(Codec::kNone, Algorithm::kOneShot, Dtype::kFp32, ReduceOp::kSum, tensors, count);
    for (int half = 0; half < 2; ++half) {
      const std::string error = Difference(self.Download(in + (2 * half + 1) * bytes, bytes), want);
      if (!error.empty()) return error;
    }
    return "";
  };
  EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty()));
}

// F16: a fast rank fills its input with NaN on the stream directly after the call.
TEST_F(ServedTest, AnInputMayBeOverwrittenOnTheStreamAfterTheCall) {
  for (const auto& [codec, algorithm] : {std::pair{"none", "two_shot"}, {"int4", "one_shot"}}) {
    SetPolicy(codec, algorithm);
    const auto body = [&](RankProcess& process) -> std::string {
      ServedRank self(directory(), process.rank(), 2);
      const uint64_t count = uint64_t{1} << 20, bytes = 2 * count;
      const Memory memory = self.comm.Allocate(2 * bytes);
      auto* in = static_cast<std::byte*>(memory.data());
      const std::vector<Bytes> tensors = Tensors(Dtype::kBf16, count, 2, 17);
      Bytes first;
      for (int i = 0; i < 20; ++i) {
        self.AllReduce(tensors[process.rank()], in, in + bytes, count, Dtype::kBf16);
        QRD_MUST(hipMemsetAsync(in, 0xFF, bytes, self.stream.get()));
        const Bytes got = self.Download(in + bytes, bytes);
        if (i == 0) first = got;
        const std::string error = Difference(got, first);
        if (!error.empty()) return "call " + std::to_string(i) + ": " + error;
      }
      self.comm.CheckStreams();
      return Difference(first, Expected(*ParseCodec(codec), *ParseAlgorithm(algorithm),
                                        Dtype::kBf16, ReduceOp::kSum, tensors, count));
    };
    EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty())) << codec;
  }
}

// F23: an export must not keep memory that was given back.
TEST_F(ServedTest, ImportsThatAreReleasedLeaveNoMemoryBehind) {
  const auto body = [&](RankProcess& process) -> std::string {
    ServedRank self(directory(), process.rank(), 2);
    size_t before = 0, after = 0, total = 0;
    for (int i = 0; i < 300; ++i) {
      const DeviceBuffer buffer(uint64_t{16} << 20);
      const ImportedMemory import = self.comm.Import(buffer.data(), buffer.bytes());
      if (i == 5) QRD_MUST(hipMemGetInfo(&before, &total));
    }
    QRD_MUST(hipMemGetInfo(&after, &total));
    // Two ranks do this at the same time: the other one's 16 MiB may be there or not.
    return after + (uint64_t{64} << 20) >= before ? "" : "memory is missing";
  };
  EXPECT_THAT(RunRanks(2, Guarded(body)), Each(IsEmpty()));
}

}  // namespace
}  // namespace qrd::testing
