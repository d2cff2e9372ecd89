// SPDX-License-Identifier: Apache-2.0
// All-reduce through a running daemon by processes that know only libqrd: every result is the
// reference's, bit for bit, on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/integration/all_reduce_fixture.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg};
// Bytes around an output that nobody may write.
constexpr size_t kGuardBytes = 128;
constexpr std::byte kGuard{0xA5};

// A rank's buffers for one problem: its input, and an output between guards (unless in place).
class Buffers {
 public:
  Buffers(std::byte* memory, const Problem& problem, uint32_t rank, bool in_place)
      : problem_(problem) {
    const size_t stride = (problem.bytes() + 63) / 64 * 64;
    std::fill_n(memory, Bytes(problem), kGuard);
    input_ = memory + kGuardBytes;
    output_ = in_place ? input_ : input_ + stride + kGuardBytes;
    if (problem.bytes() > 0) std::memcpy(input_, problem.inputs[rank].data(), problem.bytes());
    end_ = memory + Bytes(problem);
    begin_ = memory;
    original_ = problem.inputs[rank].data();
  }
  static size_t Bytes(const Problem& problem) {
    return 2 * ((problem.bytes() + 63) / 64 * 64) + 3 * kGuardBytes;
  }
  std::byte* input() const { return input_; }
  std::byte* output() const { return output_; }

  // The result, the guards, and that the input was only read.
  std::string Check() const {
    std::string error = Compare(problem_, output_);
    for (const std::byte* p = begin_; p < end_ && error.empty(); ++p) {
      const bool in_input = p >= input_ && p < input_ + problem_.bytes();
      const bool in_output = p >= output_ && p < output_ + problem_.bytes();
      if (in_output) continue;
      if (*p != (in_input ? original_[p - input_] : kGuard)) {
        error = problem_.Describe() + ": a byte was written " + std::to_string(p - output_) +
                " bytes from the output";
      }
    }
    return error;
  }

 private:
  const Problem& problem_;
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  const std::byte* original_ = nullptr;
};

std::string Reduce(qrd_comm_t comm, const Problem& problem, const Buffers& buffers,
                   bool want_staged = false) {
  qrd_operation operation = 0;
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  std::string error = Outcome(qrd_all_reduce(comm, buffers.input(), buffers.output(), problem.count,
                                             problem.c_dtype(), problem.c_op(), &operation));
  if (error.empty()) error = Outcome(qrd_wait(comm, operation, 0, &stats));
  if (!error.empty()) return problem.Describe() + ": " + error;
  if (stats.codec != QRD_CODEC_NONE) return "codec is " + std::to_string(stats.codec);
  if (stats.payload_bytes != problem.bytes()) return problem.Describe() + ": payload_bytes";
  if ((stats.staged != 0) != (want_staged && problem.count > 0)) {
    return problem.Describe() + ": staged is " + std::to_string(stats.staged);
  }
  return buffers.Check();
}

class AllReduceTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(daemon_.Start(), ""); }
  // Every dtype and op at each count, made once before the ranks fork.
  static std::vector<Problem> MakeProblems(uint32_t world_size,
                                           const std::vector<uint64_t>& counts) {
    std::vector<Problem> problems;
    for (uint64_t count : counts) {
      for (Dtype dtype : kDtypes) {
        for (ReduceOp op : kOps) {
          problems.push_back(MakeProblem(dtype, op, world_size, count, problems.size() + 1));
        }
      }
    }
    return problems;
  }
  static size_t LargestBytes(const std::vector<Problem>& problems) {
    size_t bytes = 0;
    for (const Problem& problem : problems) bytes = std::max(bytes, Buffers::Bytes(problem));
    return bytes;
  }

  DaemonProcess daemon_;
};

class AllReduceOfTest : public AllReduceTest, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(AllReduceOfTest, EveryDtypeOpAndSizeWithoutACopy) {
  const uint32_t world_size = GetParam();
  const std::vector<Problem> problems =
      MakeProblems(world_size, {0, 1, 2, 7, 31, 33, 2047, 2048, 2049, 4097, 100'003});
  const auto results = RunRanks(world_size, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), world_size, &error);
    if (comm == nullptr) return error;
    void* memory = nullptr;
    error = Outcome(qrd_mem_alloc(comm, LargestBytes(problems), &memory));
    for (size_t i = 0; i < problems.size() && error.empty(); ++i) {
      for (bool in_place : {false, true}) {
        if (!error.empty()) break;
        const Buffers buffers(static_cast<std::byte*>(memory), problems[i], self.rank(), in_place);
        error = Reduce(comm, problems[i], buffers);
      }
    }
    if (error.empty()) error = Outcome(qrd_mem_free(comm, memory));
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

TEST_P(AllReduceOfTest, AnyMemoryByACopyAtAnyElementAlignment) {
  const uint32_t world_size = GetParam();
  const std::vector<Problem> problems = MakeProblems(world_size, {0, 1, 33, 2049, 100'003});
  const auto results = RunRanks(world_size, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), world_size, &error);
    if (comm == nullptr) return error;
    std::vector<std::byte> memory(LargestBytes(problems) + 64);
    std::vector<std::byte> registered(memory.size());
    error = Outcome(qrd_mem_register(comm, registered.data() + 1, registered.size() - 1));
    for (size_t i = 0; i < problems.size() && error.empty(); ++i) {
      for (std::byte* base : {memory.data(), registered.data()}) {
        for (bool in_place : {false, true}) {
          // Aligned to the element and to nothing more.
          const size_t shift = DtypeBytes(problems[i].dtype) * (1 + i % 7);
          if (!error.empty()) break;
          const Buffers buffers(base + shift, problems[i], self.rank(), in_place);
          error = Reduce(comm, problems[i], buffers, /*want_staged=*/true);
        }
      }
    }
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceOfTest, ::testing::Values(1, 2, 3, 4, 8));

TEST_F(AllReduceTest, FourMebibytes) {
  const std::vector<Problem> problems = {
      MakeProblem(Dtype::kFp32, ReduceOp::kSum, 2, 1 << 20, 1),
      MakeProblem(Dtype::kBf16, ReduceOp::kAvg, 2, 2 << 20, 2),
      MakeProblem(Dtype::kFp16, ReduceOp::kSum, 2, (2 << 20) + 1, 3),
  };
  const auto results = RunRanks(2, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    void* memory = nullptr;
    error = Outcome(qrd_mem_alloc(comm, LargestBytes(problems), &memory));
    std::vector<std::byte> own(LargestBytes(problems));
    for (size_t i = 0; i < problems.size() && error.empty(); ++i) {
      error = Reduce(comm, problems[i],
                     Buffers(static_cast<std::byte*>(memory), problems[i], self.rank(), false));
      if (!error.empty()) break;
      error = Reduce(comm, problems[i], Buffers(own.data(), problems[i], self.rank(), true), true);
    }
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

TEST_F(AllReduceTest, ManyInFlightWaitedForInReverse) {
  constexpr uint32_t kRanks = 3;
  std::vector<Problem> problems;
  for (uint64_t i = 0; i < 32; ++i) {
    problems.push_back(MakeProblem(kDtypes[i % 3], kOps[i % 2], kRanks, 1 + 997 * i, i + 1));
  }
  const auto results = RunRanks(kRanks, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), kRanks, &error);
    if (comm == nullptr) return error;
    for (int round = 0; round < 10 && error.empty(); ++round) {
      std::vector<Buffers> buffers;
      std::vector<void*> memories(problems.size());
      std::vector<qrd_operation> operations(problems.size());
      for (size_t i = 0; i < problems.size() && error.empty(); ++i) {
        error = Outcome(qrd_mem_alloc(comm, Buffers::Bytes(problems[i]), &memories[i]));
        if (!error.empty()) break;
        buffers.emplace_back(static_cast<std::byte*>(memories[i]), problems[i], self.rank(),
                             i % 2 == 1);
        error =
            Outcome(qrd_all_reduce(comm, buffers[i].input(), buffers[i].output(), problems[i].count,
                                   problems[i].c_dtype(), problems[i].c_op(), &operations[i]));
      }
      for (size_t i = problems.size(); i-- > 0 && error.empty();) {
        error = Outcome(qrd_wait(comm, operations[i], 0, nullptr));
        if (error.empty()) error = buffers[i].Check();
        if (error.empty()) error = Outcome(qrd_mem_free(comm, memories[i]));
      }
    }
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

TEST_F(AllReduceTest, TwoGroupsOfOneCommunicatorAtTheSameTimeDoNotMix) {
  constexpr uint32_t kRanks = 2, kGroups = 2, kOperations = 300;
  std::vector<Problem> problems[kGroups];
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (uint64_t i = 0; i < 7; ++i) {
      problems[group].push_back(
          MakeProblem(Dtype::kBf16, ReduceOp::kSum, kRanks, 1000 + 501 * i, 100 * group + i));
    }
  }
  const auto results = RunRanks(kRanks * kGroups, [&](RankProcess& self) {
    const uint32_t group = self.rank() / kRanks, rank = self.rank() % kRanks;
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), rank, kRanks, &error, "shared",
                             group == 0 ? "first" : "second");
    if (comm == nullptr) return error;
    void* memory = nullptr;
    error = Outcome(qrd_mem_alloc(comm, LargestBytes(problems[group]), &memory));
    for (uint32_t i = 0; i < kOperations && error.empty(); ++i) {
      // The groups run through their problems in different orders.
      const Problem& problem = problems[group][(group == 0 ? i : 3 * i) % 7];
      error = Reduce(comm, problem, Buffers(static_cast<std::byte*>(memory), problem, rank, false));
    }
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

}  // namespace
}  // namespace qrd::testing
