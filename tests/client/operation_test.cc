// SPDX-License-Identifier: Apache-2.0
// One operation's life as the two sides see it: descriptor out, completion in.
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class OperationTest : public ClientTest {
 protected:
  void SetUp() override { Attach(); }
};

TEST_F(OperationTest, PostsADescriptorOfZeroCopyMemory) {
  auto* a = static_cast<float*>(Allocate(4096));
  auto* b = static_cast<float*>(Allocate(4096));
  qrd_operation operation = 0;
  ASSERT_EQ(qrd_all_reduce(comm_, a + 16, b + 32, 100, QRD_FP32, QRD_AVG, &operation), QRD_OK);
  EXPECT_NE(operation, 0u);
  const auto posted = daemon_.NextPosted();
  ASSERT_TRUE(posted.has_value());
  const shm::Descriptor& d = posted->descriptor;
  EXPECT_EQ(d.kind, shm::Kind::kAllReduce);
  EXPECT_EQ(d.dtype, shm::Dtype::kFp32);
  EXPECT_EQ(d.op, shm::ReduceOp::kAvg);
  EXPECT_EQ(d.flags, 0u);
  EXPECT_EQ(d.sequence, 1u);
  EXPECT_EQ(d.count, 100u);
  EXPECT_EQ(d.input.arena_id, 1u);
  EXPECT_EQ(d.input.generation, 101u);
  EXPECT_EQ(d.input.offset_bytes, 64u);
  EXPECT_EQ(d.output.arena_id, 2u);
  EXPECT_EQ(d.output.generation, 102u);
  EXPECT_EQ(d.output.offset_bytes, 128u);
  EXPECT_EQ(d.timeout_ms, 0u);
  EXPECT_EQ(d.epilogue, 0u);
  const shm::RmsNorm nothing{};
  EXPECT_EQ(std::memcmp(&d.rms_norm, &nothing, sizeof(nothing)), 0);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

TEST_F(OperationTest, InPlaceHasOneTensorTwice) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 1024);
  const auto posted = daemon_.NextPosted();
  EXPECT_EQ(posted->descriptor.input.arena_id, posted->descriptor.output.arena_id);
  EXPECT_EQ(posted->descriptor.input.offset_bytes, posted->descriptor.output.offset_bytes);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(qrd_wait(comm_, operation, 0, nullptr), QRD_OK);
}

TEST_F(OperationTest, CountZeroNeedsNoPointers) {
  const qrd_operation operation = Post(nullptr, nullptr, 0);
  const auto posted = daemon_.NextPosted();
  EXPECT_EQ(posted->descriptor.count, 0u);
  EXPECT_EQ(posted->descriptor.input.arena_id, 0u);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(qrd_wait(comm_, operation, 0, nullptr), QRD_OK);
}

TEST_F(OperationTest, MemoryIsZeroedPageAlignedAndSharedWithTheDaemon) {
  auto* a = static_cast<unsigned char*>(Allocate(5000));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 4096, 0u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(a[i], 0);
  a[4999] = 42;
  EXPECT_EQ(daemon_.ArenaData(1)[4999], std::byte{42});
}

TEST_F(OperationTest, StatsCarryTheCompletion) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 10);
  const auto posted = daemon_.NextPosted();
  daemon_.Complete(*posted, QRD_OK);
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  ASSERT_EQ(qrd_wait(comm_, operation, 0, &stats), QRD_OK);
  EXPECT_EQ(stats.struct_bytes, sizeof(stats));
  EXPECT_EQ(stats.status, QRD_OK);
  EXPECT_EQ(stats.codec, QRD_CODEC_INT4);
  EXPECT_EQ(stats.algorithm, QRD_ONE_SHOT);
  EXPECT_EQ(stats.sequence, 1u);
  EXPECT_EQ(stats.payload_bytes, 40u);
  EXPECT_EQ(stats.wire_bytes, 77u);
  EXPECT_EQ(stats.policy_generation, 9u);
  EXPECT_GT(stats.end_ns, 0u);
  EXPECT_EQ(stats.rank_mask, 2u);
  EXPECT_EQ(stats.staged, 0);
}

TEST_F(OperationTest, AFailureHasTheDaemonsTextAndReleasesTheOperation) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 10);
  const auto posted = daemon_.NextPosted();
  daemon_.Complete(*posted, QRD_MISMATCH, "count: rank 0 posted 10, rank 1 posted 11");
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)),
            "MISMATCH: operation 1: count: rank 0 posted 10, rank 1 posted 11");
  EXPECT_EQ(stats.status, QRD_MISMATCH);
  EXPECT_EQ(stats.rank_mask, 2u);
  EXPECT_THAT(Outcome(qrd_wait(comm_, operation, 0, nullptr)), StartsWith("NOT_FOUND"));
}

TEST_F(OperationTest, ATextThatNamesTheOperationIsNotPrefixedAgain) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 10);
  daemon_.Complete(*daemon_.NextPosted(), QRD_TIMEOUT, "operation 1: rank 1 did not post");
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)),
            "TIMEOUT: operation 1: rank 1 did not post");
}

TEST_F(OperationTest, WaitTimesOutAndMayBeRepeated) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 10);
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  stats.sequence = 99;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 5, &stats)),
            "IN_PROGRESS: operation 1 is not done after 5 ms");
  EXPECT_EQ(stats.sequence, 99u);
  EXPECT_EQ(Outcome(qrd_test(comm_, operation, &stats)), "IN_PROGRESS: operation 1 is not done");
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(qrd_test(comm_, operation, &stats), QRD_OK);
  EXPECT_EQ(stats.sequence, 1u);
}

TEST_F(OperationTest, OperationsEndInAnyOrder) {
  auto* a = static_cast<float*>(Allocate(4096));
  std::vector<qrd_operation> operations;
  std::vector<FakeDaemon::Posted> posted;
  for (int i = 0; i < 8; ++i) {
    operations.push_back(Post(a + 64 * i, a + 64 * i, 64));
    posted.push_back(*daemon_.NextPosted());
    EXPECT_EQ(posted.back().descriptor.sequence, static_cast<uint64_t>(i) + 1);
  }
  for (int i = 7; i >= 0; --i) daemon_.Complete(posted[static_cast<size_t>(i)], QRD_OK);
  for (int i : {3, 0, 7, 1, 2, 6, 5, 4}) {
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    EXPECT_EQ(qrd_wait(comm_, operations[static_cast<size_t>(i)], 0, &stats), QRD_OK);
    EXPECT_EQ(stats.sequence, static_cast<uint64_t>(i) + 1);
  }
}

TEST_F(OperationTest, TooManyInFlightIsRefusedByNameAndWorksAfterAWait) {
  auto* a = static_cast<float*>(Allocate(4096));
  std::vector<qrd_operation> operations;
  for (int i = 0; i < 8; ++i) operations.push_back(Post(a, a, 0));
  qrd_operation extra = 0;
  EXPECT_EQ(Outcome(qrd_all_reduce(comm_, a, a, 1, QRD_FP32, QRD_SUM, &extra)),
            "RESOURCE_EXHAUSTED: operations in flight: 8, the daemon's bound "
            "(operations_in_flight_max); wait for one");
  EXPECT_EQ(extra, 0u);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(qrd_wait(comm_, operations[0], 0, nullptr), QRD_OK);
  extra = Post(a, a, 1);
  // The refused post left no gap.
  FakeDaemon::Posted last;
  for (int i = 0; i < 8; ++i) last = *daemon_.NextPosted();
  EXPECT_EQ(last.descriptor.sequence, 9u);
}

TEST_F(OperationTest, ATokenIsNotTakenForALaterOperationInItsSlot) {
  auto* a = static_cast<float*>(Allocate(4096));
  qrd_operation first = 0;
  for (int i = 0; i < 1000; ++i) {
    const qrd_operation operation = Post(a, a, 1);
    if (first == 0) first = operation;
    if (i > 0) {
      EXPECT_EQ(qrd_test(comm_, first, nullptr), QRD_NOT_FOUND);
    }
    daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
    ASSERT_EQ(qrd_wait(comm_, operation, 0, nullptr), QRD_OK);
  }
}

TEST_F(OperationTest, TheDoorbellRingsOnlyForASleepingEngine) {
  auto* a = static_cast<float*>(Allocate(4096));
  Post(a, a, 1);
  EXPECT_EQ(daemon_.Rings(), 0u);
  daemon_.SetEngineSleeping(true);
  Post(a, a, 1);
  EXPECT_EQ(daemon_.Rings(), 1u);
}

TEST_F(OperationTest, ACompletionOfAnotherOperationIsAnError) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 1);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK, "", 17);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)),
            "INTERNAL: operation 1: the daemon completed operation 17 in the place of this one");
}

TEST_F(OperationTest, ACompletionWithAnImpossibleStatusIsAnError) {
  auto* a = static_cast<float*>(Allocate(4096));
  for (uint32_t status : {15u, 16u, 0xFFFFFFFFu}) {
    const qrd_operation operation = Post(a, a, 1);
    daemon_.Complete(*daemon_.NextPosted(), status);
    EXPECT_THAT(Outcome(qrd_wait(comm_, operation, 0, nullptr)),
                HasSubstr("the daemon's completion has status " + std::to_string(status) +
                          ", want 0 to 14"));
  }
}

TEST_F(OperationTest, ATextWithoutAnEndIsCut) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 1);
  daemon_.Complete(*daemon_.NextPosted(), QRD_ABORTED, std::string(shm::kMessageBytes, 'x'));
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)),
            "ABORTED: operation 1: " + std::string(shm::kMessageBytes - 1, 'x'));
}

TEST_F(OperationTest, MemoryInUseIsNotFreed) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a + 512, 100);
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, a)),
              HasSubstr("FAILED_PRECONDITION: ptr: 2 buffers of operations in flight use 0x"));
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(qrd_mem_free(comm_, a), QRD_FAILED_PRECONDITION);  // done, but not waited for
  EXPECT_EQ(qrd_wait(comm_, operation, 0, nullptr), QRD_OK);
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, a)), "");
  EXPECT_EQ(daemon_.arenas_live, 0);
}

TEST_F(OperationTest, ArenasOfAWrongSizeAreRefusedAndGivenBack) {
  daemon_.edit_arena = [](v1::ArenaAllocated* arena) { arena->set_bytes(uint64_t{1} << 40); };
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 4096, &ptr)),
            "INTERNAL: arena from the daemon: size in bytes is 4096, want 1099511627776");
  daemon_.edit_arena = [](v1::ArenaAllocated* arena) { arena->set_bytes(1); };
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 4096, &ptr)),
            "INTERNAL: arena from the daemon has 1 bytes, want 4096 or more");
  EXPECT_EQ(daemon_.arenas_live, 0);
}

TEST_F(OperationTest, AForkedChildIsToldSoAndDoesNotHoldTheSession) {
  auto* a = static_cast<float*>(Allocate(4096));
  const qrd_operation operation = Post(a, a, 1);
  const pid_t child = fork();
  if (child == 0) {
    qrd_operation other = 0;
    void* ptr = nullptr;
    const bool ok =
        qrd_all_reduce(comm_, a, a, 1, QRD_FP32, QRD_SUM, &other) == QRD_FAILED_PRECONDITION &&
        qrd_wait(comm_, operation, 0, nullptr) == QRD_FAILED_PRECONDITION &&
        qrd_mem_alloc(comm_, 1, &ptr) == QRD_FAILED_PRECONDITION &&
        qrd_comm_abort(comm_, "") == QRD_FAILED_PRECONDITION &&
        qrd_comm_finalize(comm_) == QRD_FAILED_PRECONDITION &&
        std::string(qrd_last_error()) ==
            "comm: it belongs to the parent process; a child after fork must make its own";
    // The child's copies of connection and doorbell are gone: only inherited foreign ones remain.
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

}  // namespace
}  // namespace qrd::testing
