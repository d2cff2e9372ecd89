// SPDX-License-Identifier: Apache-2.0
// One communicator, many threads.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

class ThreadsTest : public ClientTest {
 protected:
  void SetUp() override {
    daemon_.slot_count = 64;
    Attach();
    memory_ = static_cast<float*>(Allocate(4096));
  }
  float* memory_ = nullptr;
};

TEST_F(ThreadsTest, TwoWaitersOfOneOperationBothReturn) {
  for (int round = 0; round < 50; ++round) {
    const qrd_operation operation = Post(memory_, memory_, 1);
    const auto posted = daemon_.NextPosted();
    std::atomic<int> ok{0}, not_found{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
      waiters.emplace_back([&] {
        const qrd_status status = qrd_wait(comm_, operation, 0, nullptr);
        (status == QRD_OK ? ok : not_found) += status == QRD_OK || status == QRD_NOT_FOUND;
      });
    }
    daemon_.AwaitSleeper(posted->slot);
    daemon_.Complete(*posted, QRD_OK);
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(ok, 1);
    EXPECT_EQ(not_found, 2);
  }
}

TEST_F(ThreadsTest, PostsFromManyThreadsKeepSequencesWithoutGap) {
  constexpr int kThreads = 4, kPosts = 500;
  std::atomic<int> failed{0};
  std::vector<std::thread> posters;
  for (int t = 0; t < kThreads; ++t) {
    posters.emplace_back([&, t] {
      std::vector<float> own(16, 1);  // every other post is staged
      float* mine = memory_ + 64 * t;
      for (int i = 0; i < kPosts; ++i) {
        float* buffer = i % 2 == 0 ? mine : own.data();
        qrd_operation operation = 0;
        if (qrd_all_reduce(comm_, buffer, buffer, 16, QRD_FP32, QRD_SUM, &operation) != QRD_OK ||
            qrd_wait(comm_, operation, 0, nullptr) != QRD_OK) {
          ++failed;
        }
      }
    });
  }
  for (uint64_t sequence = 1; sequence <= kThreads * kPosts; ++sequence) {
    const auto posted = daemon_.NextPosted();
    ASSERT_TRUE(posted.has_value());
    ASSERT_EQ(posted->descriptor.sequence, sequence);
    daemon_.Complete(*posted, QRD_OK);
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(ThreadsTest, MemoryCallsFromManyThreads) {
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<float> own(100);
      for (int i = 0; i < 50; ++i) {
        void* ptr = nullptr;
        failed += qrd_mem_alloc(comm_, 4096, &ptr) != QRD_OK;
        failed += qrd_mem_register(comm_, own.data(), 400) != QRD_OK;
        failed += qrd_mem_free(comm_, ptr) != QRD_OK;
        failed += qrd_mem_deregister(comm_, own.data()) != QRD_OK;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(daemon_.arenas_live, 1);
}

TEST_F(ThreadsTest, AbortGoesThroughWhileAnotherThreadWaits) {
  const qrd_operation operation = Post(memory_, memory_, 1);
  const auto posted = daemon_.NextPosted();
  qrd_status waited = QRD_OK;
  std::string text;
  std::thread waiter([&] {
    waited = qrd_wait(comm_, operation, 0, nullptr);
    text = qrd_last_error();
  });
  daemon_.AwaitSleeper(posted->slot);
  EXPECT_EQ(Outcome(qrd_comm_abort(comm_, "shutting down")), "");
  daemon_.Complete(*posted, QRD_ABORTED, "rank 0 aborted: shutting down");
  waiter.join();
  EXPECT_EQ(waited, QRD_ABORTED);
  EXPECT_EQ(text, "operation 1: rank 0 aborted: shutting down");
}

TEST_F(ThreadsTest, TheLastErrorBelongsToItsThread) {
  EXPECT_EQ(qrd_mem_alloc(comm_, 0, nullptr), QRD_INVALID_ARGUMENT);
  std::string other = "unset";
  std::thread([&] { other = qrd_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_STREQ(qrd_last_error(), "ptr: NULL");
}

}  // namespace
}  // namespace qrd::testing
