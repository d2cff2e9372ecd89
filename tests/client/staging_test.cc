// SPDX-License-Identifier: Apache-2.0
// Buffers that the daemon cannot reach: copied in, copied back, nothing beside them touched, few
// arenas.
#include <numeric>
#include <vector>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

class StagingTest : public ClientTest {
 protected:
  void SetUp() override { Attach(); }

  // As a daemon with one rank would: output = 2 * input, through its own mapping.
  void RunNext(uint32_t status = QRD_OK) {
    const auto posted = daemon_.NextPosted();
    ASSERT_TRUE(posted.has_value());
    const shm::Descriptor& d = posted->descriptor;
    const auto* in =
        reinterpret_cast<const float*>(daemon_.ArenaData(d.input.arena_id) + d.input.offset_bytes);
    auto* out =
        reinterpret_cast<float*>(daemon_.ArenaData(d.output.arena_id) + d.output.offset_bytes);
    for (uint64_t i = 0; i < d.count; ++i) out[i] = 2 * in[i];
    last_ = d;
    daemon_.Complete(*posted, status);
  }
  int WaitStaged(qrd_operation operation) {
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)), "");
    return stats.staged;
  }

  shm::Descriptor last_{};
};

TEST_F(StagingTest, OutOfPlace) {
  std::vector<float> in(1000), out(1002, -1);
  std::iota(in.begin(), in.end(), 1.0f);
  const qrd_operation operation = Post(in.data(), out.data() + 1, 1000);
  RunNext();
  EXPECT_EQ(out[1], -1);  // not before the wait
  EXPECT_EQ(WaitStaged(operation), 1);
  EXPECT_EQ(out[0], -1);
  EXPECT_EQ(out[1001], -1);
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(out[i + 1], 2 * in[i]);
  EXPECT_NE(last_.input.arena_id, last_.output.arena_id);
}

TEST_F(StagingTest, InPlaceUsesOneArena) {
  std::vector<float> data(1000, 3);
  const qrd_operation operation = Post(data.data(), data.data(), 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(operation), 1);
  EXPECT_EQ(data, std::vector<float>(1000, 6));
  EXPECT_EQ(daemon_.arenas_live, 1);
}

TEST_F(StagingTest, OneSideOnly) {
  auto* shared = static_cast<float*>(Allocate(4000));
  std::vector<float> own(1000, 5);
  qrd_operation operation = Post(own.data(), shared, 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(operation), 1);
  EXPECT_EQ(shared[999], 10);
  operation = Post(shared, own.data(), 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(operation), 1);
  EXPECT_EQ(own, std::vector<float>(1000, 20));
}

TEST_F(StagingTest, AFailedOperationLeavesTheOutputAlone) {
  std::vector<float> in(10, 1), out(10, -1);
  const qrd_operation operation = Post(in.data(), out.data(), 10);
  RunNext(QRD_PEER_LOST);
  EXPECT_EQ(qrd_wait(comm_, operation, 0, nullptr), QRD_PEER_LOST);
  EXPECT_EQ(out, std::vector<float>(10, -1));
}

TEST_F(StagingTest, ArenasAreReused) {
  std::vector<float> data(1000, 1);
  for (int i = 0; i < 50; ++i) {
    const qrd_operation operation = Post(data.data(), data.data(), static_cast<size_t>(1000 - i));
    RunNext();
    ASSERT_EQ(WaitStaged(operation), 1);
  }
  EXPECT_EQ(daemon_.arena_requests, 1);
}

TEST_F(StagingTest, TheCacheIsBounded) {
  std::vector<float> data(1000, 1);
  // More in flight than the cache keeps: 8 operations of 2 arenas, then again with larger ones.
  for (size_t floats : {size_t{1000}, size_t{1} << 20}) {
    std::vector<std::vector<float>> in(8, std::vector<float>(floats, 1)), out = in;
    std::vector<qrd_operation> operations;
    for (size_t i = 0; i < 8; ++i) operations.push_back(Post(in[i].data(), out[i].data(), floats));
    for (int i = 0; i < 8; ++i) RunNext();
    for (qrd_operation operation : operations) EXPECT_EQ(WaitStaged(operation), 1);
  }
  EXPECT_EQ(daemon_.arenas_live, 16);
}

TEST_F(StagingTest, RegisteredMemoryAllocatesNothingLater) {
  std::vector<float> data(1001, 1);
  float* odd = data.data() + 1;
  ASSERT_EQ(Outcome(qrd_mem_register(comm_, odd, 4000)), "");
  const int requests = daemon_.arena_requests;
  const qrd_operation whole = Post(odd, odd, 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(whole), 1);
  const qrd_operation halves = Post(odd, odd + 500, 500);
  RunNext();
  EXPECT_EQ(last_.input.arena_id, last_.output.arena_id);
  EXPECT_EQ(last_.output.offset_bytes - last_.input.offset_bytes, 2000u);
  EXPECT_EQ(last_.input.offset_bytes % 64, reinterpret_cast<uintptr_t>(odd) % 64);
  EXPECT_EQ(qrd_mem_deregister(comm_, odd), QRD_FAILED_PRECONDITION);
  EXPECT_EQ(WaitStaged(halves), 1);
  EXPECT_EQ(data[0], 1);
  EXPECT_EQ(data[500], 2);
  EXPECT_EQ(data[501], 4);
  EXPECT_EQ(data[1000], 4);
  EXPECT_EQ(daemon_.arena_requests, requests);
  EXPECT_EQ(Outcome(qrd_mem_deregister(comm_, odd)), "");
  EXPECT_EQ(daemon_.arenas_live, 0);
}

TEST_F(StagingTest, ABufferPartlyRegisteredIsStagedAsAWhole) {
  std::vector<float> data(1000, 1);
  ASSERT_EQ(Outcome(qrd_mem_register(comm_, data.data() + 100, 400)), "");
  const qrd_operation operation = Post(data.data(), data.data(), 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(operation), 1);
  EXPECT_EQ(data, std::vector<float>(1000, 2));
}

TEST_F(StagingTest, WithoutMemoryThePostIsRefusedAndLeavesNoGap) {
  std::vector<float> data(1000, 1);
  daemon_.on_request = [](const v1::ClientMessage& request) {
    return request.has_arena_alloc() ? FakeDaemon::Refuse(QRD_RESOURCE_EXHAUSTED,
                                                          "arena_bytes_max: 0 of 0 bytes are free")
                                     : FakeDaemon::Normal();
  };
  qrd_operation operation = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Outcome(qrd_all_reduce(comm_, data.data(), data.data(), 1000, QRD_FP32, QRD_SUM,
                                     &operation)),
              "RESOURCE_EXHAUSTED: arena_bytes_max: 0 of 0 bytes are free");
  }
  daemon_.on_request = nullptr;
  operation = Post(data.data(), data.data(), 1000);
  RunNext();
  EXPECT_EQ(last_.sequence, 1u);
  EXPECT_EQ(WaitStaged(operation), 1);
}

TEST_F(StagingTest, AnAllocationMayTakeTheCachesPlace) {
  std::vector<float> data(1000, 1);
  const qrd_operation operation = Post(data.data(), data.data(), 1000);
  RunNext();
  EXPECT_EQ(WaitStaged(operation), 1);
  // A daemon with room for one arena only.
  daemon_.on_request = [this](const v1::ClientMessage& request) {
    return request.has_arena_alloc() && daemon_.arenas_live > 0
               ? FakeDaemon::Refuse(QRD_RESOURCE_EXHAUSTED, "arenas_per_session_max: 1")
               : FakeDaemon::Normal();
  };
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 4096, &ptr)), "");
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 4096, &ptr)),
            "RESOURCE_EXHAUSTED: arenas_per_session_max: 1");
}

}  // namespace
}  // namespace qrd::testing
