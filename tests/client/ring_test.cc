// SPDX-License-Identifier: Apache-2.0
#include "client/core/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace qrd::client {
namespace {

class RingTest : public ::testing::Test {
 protected:
  ~RingTest() override { close(doorbell_); }

  RingProducer Make() {
    return RingProducer(&producer_, &consumer_, entries_.data(), kSlots, &sleeping_, doorbell_);
  }
  uint64_t Rings() {
    uint64_t count = 0;
    return read(doorbell_, &count, sizeof(count)) == sizeof(count) ? count : 0;
  }

  static constexpr uint32_t kSlots = 8;
  shm::ProducerLine producer_{};
  shm::ConsumerLine consumer_{};
  std::vector<uint32_t> entries_ = std::vector<uint32_t>(kSlots, 999);
  std::atomic<uint32_t> sleeping_{0};
  int doorbell_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
};

TEST_F(RingTest, PublishesEntriesInOrder) {
  RingProducer ring = Make();
  EXPECT_TRUE(ring.Publish(5));
  EXPECT_TRUE(ring.Publish(3));
  EXPECT_EQ(producer_.tail.load(), 2u);
  EXPECT_EQ(entries_[0], 5u);
  EXPECT_EQ(entries_[1], 3u);
  EXPECT_EQ(entries_[2], 999u);
}

TEST_F(RingTest, RefusesToOverwriteWhatTheConsumerHasNotRead) {
  RingProducer ring = Make();
  for (uint32_t i = 0; i < kSlots; ++i) EXPECT_TRUE(ring.Publish(i));
  EXPECT_FALSE(ring.Publish(99));
  EXPECT_EQ(producer_.tail.load(), kSlots);
  EXPECT_EQ(entries_[0], 0u);
  consumer_.head.store(1);
  EXPECT_TRUE(ring.Publish(99));
  EXPECT_EQ(entries_[0], 99u);
  EXPECT_FALSE(ring.Publish(100));
}

TEST_F(RingTest, AHeadPastTheTailMeansFull) {
  RingProducer ring = Make();
  consumer_.head.store(5);
  for (uint32_t i = 0; i < kSlots; ++i)
    EXPECT_TRUE(ring.Publish(i));  // the head is not looked at yet
  consumer_.head.store(1000);
  EXPECT_FALSE(ring.Publish(1));
}

TEST_F(RingTest, RingsOnlyWhileTheEngineSleeps) {
  RingProducer ring = Make();
  ring.Publish(0);
  EXPECT_EQ(Rings(), 0u);
  sleeping_.store(1);
  ring.Publish(1);
  ring.Publish(2);
  EXPECT_EQ(Rings(), 2u);
}

TEST_F(RingTest, AFullDoorbellCounterDoesNotBlock) {
  RingProducer ring = Make();
  const uint64_t almost_all = ~uint64_t{1};
  ASSERT_EQ(write(doorbell_, &almost_all, sizeof(almost_all)), 8);
  sleeping_.store(1);
  EXPECT_TRUE(ring.Publish(0));
}

TEST_F(RingTest, CountsRefusedPosts) {
  RingProducer ring = Make();
  ring.CountFull();
  ring.CountFull();
  EXPECT_EQ(producer_.ring_full.load(), 2u);
}

TEST_F(RingTest, NoEntryIsLostOrTornBetweenTwoThreads) {
  RingProducer ring = Make();
  constexpr uint32_t kCount = 2'000;
  std::vector<uint32_t> seen;
  std::thread consumer([&] {
    for (uint64_t head = 0; head < kCount;) {
      const uint64_t tail = producer_.tail.load(std::memory_order_acquire);
      if (head == tail) std::this_thread::yield();
      for (; head < tail; ++head) {
        seen.push_back(entries_[head % kSlots]);
        consumer_.head.store(head + 1, std::memory_order_release);
      }
    }
  });
  for (uint32_t i = 0; i < kCount;) {
    if (ring.Publish(i)) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  consumer.join();
  ASSERT_EQ(seen.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(seen[i], i);
}

// The engine's side of the protocol: announce the sleep, look once more, sleep. A lost wake-up
// shows as a poll that times out.
TEST_F(RingTest, ASleepingEngineIsAlwaysWoken) {
  RingProducer ring = Make();
  constexpr uint32_t kCount = 500;
  std::atomic<bool> lost{false};
  std::thread engine([&] {
    for (uint64_t head = 0; head < kCount && !lost;) {
      sleeping_.store(1, std::memory_order_seq_cst);
      if (producer_.tail.load(std::memory_order_seq_cst) == head) {
        pollfd entry{doorbell_, POLLIN, 0};
        if (poll(&entry, 1, 20'000) != 1) lost = true;
        Rings();
      }
      sleeping_.store(0, std::memory_order_relaxed);
      head = producer_.tail.load(std::memory_order_acquire);
      consumer_.head.store(head, std::memory_order_release);
    }
  });
  for (uint32_t i = 0; i < kCount && !lost;) {
    if (ring.Publish(i % kSlots)) {
      ++i;
    } else {
      std::this_thread::yield();
    }
  }
  engine.join();
  EXPECT_FALSE(lost);
}

TEST(PrepareDoorbellTest, TakesAnEventfdAndMakesItNonBlocking) {
  const int fd = eventfd(0, EFD_CLOEXEC);
  EXPECT_TRUE(PrepareDoorbell(fd));
  EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  close(fd);
}

TEST(PrepareDoorbellTest, RefusesWhatCouldRaiseSigpipe) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  EXPECT_FALSE(PrepareDoorbell(fds[1]));
  EXPECT_FALSE(PrepareDoorbell(-1));
  close(fds[0]);
  close(fds[1]);
}

}  // namespace
}  // namespace qrd::client
