// SPDX-License-Identifier: Apache-2.0
// Operations end to end through sockets and shared memory, in process.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;

struct Tensors {
  std::vector<RawArena> arenas;
  uint64_t count;
};

// Rank r has r + 1 + i in element i, input at 0, output behind it.
Tensors Fill(std::vector<std::unique_ptr<RawClient>>& clients, uint64_t count) {
  Tensors t;
  t.count = count;
  for (size_t r = 0; r < clients.size(); ++r) {
    t.arenas.push_back(clients[r]->Alloc(2 * count * sizeof(float) + 1));
    for (uint64_t i = 0; i < count; ++i) {
      t.arenas[r].at<float>(0)[i] = static_cast<float>(r + 1 + i % 1000);
    }
  }
  return t;
}

void ExpectSums(const Tensors& t) {
  const auto ranks = static_cast<float>(t.arenas.size());
  for (const RawArena& arena : t.arenas) {
    const float* out = arena.at<float>(t.count * sizeof(float));
    for (uint64_t i = 0; i < t.count; ++i) {
      ASSERT_EQ(out[i], ranks * (ranks + 1) / 2 + ranks * static_cast<float>(i % 1000)) << i;
    }
  }
}

TEST(AllReduceTest, TwoRanksSumAndSeeTheSameStatistics) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  const uint64_t count = 1000;
  Tensors t = Fill(clients, count);
  std::vector<uint32_t> slots;
  for (size_t r = 0; r < 2; ++r) {
    slots.push_back(clients[r]->Post(clients[r]->AllReduce(t.arenas[r], 0, 4 * count, count)));
  }
  for (size_t r = 0; r < 2; ++r) {
    const RawCompletion c = clients[r]->Wait(slots[r]);
    EXPECT_TRUE(c.done);
    EXPECT_EQ(c.status, shm::Status::kOk) << c.message;
    EXPECT_EQ(c.message, "");
    EXPECT_EQ(c.sequence, 1u);
    EXPECT_EQ(c.payload_bytes, 4 * count);
    EXPECT_EQ(c.wire_bytes, WireBytesSent(Codec::kNone, Algorithm::kTwoShot, Dtype::kFp32, 2,
                                          static_cast<uint32_t>(r), count));
    EXPECT_EQ(c.policy_generation, 1u);
    EXPECT_EQ(c.codec, 0u);
    EXPECT_EQ(c.algorithm, 2u);
    EXPECT_EQ(c.rank_mask, 0u);
    EXPECT_LE(c.first_post_ns, c.ready_ns);
    EXPECT_LE(c.ready_ns, c.start_ns);
    EXPECT_LE(c.start_ns, c.end_ns);
  }
  ExpectSums(t);
}

TEST(AllReduceTest, LargeOperationsAreCutIntoChunks) {
  DataPath daemon;
  auto clients = daemon.Group(3);
  const uint64_t count = 3'000'001;
  Tensors t = Fill(clients, count);
  std::vector<uint32_t> slots;
  for (size_t r = 0; r < 3; ++r) {
    slots.push_back(clients[r]->Post(clients[r]->AllReduce(t.arenas[r], 0, 4 * count, count)));
  }
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(clients[r]->Wait(slots[r]).status, shm::Status::kOk);
  EXPECT_GT(daemon.fake().chunks(), 3u);
  ExpectSums(t);
}

TEST(AllReduceTest, OneRankAloneAndNoElements) {
  DataPath daemon;
  auto clients = daemon.Group(1);
  Tensors t = Fill(clients, 5);
  EXPECT_EQ(clients[0]->Wait(clients[0]->Post(clients[0]->AllReduce(t.arenas[0], 0, 20, 5))).status,
            shm::Status::kOk);
  ExpectSums(t);
  shm::Descriptor nothing = clients[0]->AllReduce(RawArena(), 3, 5, 0);
  const RawCompletion c = clients[0]->Wait(clients[0]->Post(nothing));
  EXPECT_EQ(c.status, shm::Status::kOk) << c.message;
  EXPECT_EQ(c.payload_bytes, 0u);
  EXPECT_EQ(c.sequence, 2u);
}

TEST(AllReduceTest, ManyInFlightRunInPostingOrder) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  std::vector<RawArena> arenas;
  for (auto& client : clients) arenas.push_back(client->Alloc(4096));
  for (size_t r = 0; r < 2; ++r) arenas[r].at<float>(0)[0] = 1;
  // In place: each operation doubles what the one before left.
  std::vector<std::vector<uint32_t>> slots(2);
  for (int i = 0; i < 16; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      slots[r].push_back(clients[r]->Post(clients[r]->AllReduce(arenas[r], 0, 0, 1)));
    }
  }
  for (size_t r = 0; r < 2; ++r) {
    for (const uint32_t slot : slots[r]) {
      EXPECT_EQ(clients[r]->Wait(slot).status, shm::Status::kOk);
    }
    EXPECT_EQ(arenas[r].at<float>(0)[0], 65536.0f);
  }
}

TEST(AllReduceTest, RingWrapsManyTimes) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  Tensors t = Fill(clients, 16);
  for (int i = 0; i < 2000; ++i) {
    uint32_t slots[2];
    for (size_t r = 0; r < 2; ++r) {
      slots[r] = clients[r]->Post(clients[r]->AllReduce(t.arenas[r], 0, 64, 16));
    }
    for (size_t r = 0; r < 2; ++r) {
      const RawCompletion c = clients[r]->Wait(slots[r]);
      ASSERT_EQ(c.status, shm::Status::kOk) << c.message;
      ASSERT_EQ(c.sequence, static_cast<uint64_t>(i + 1));
    }
  }
  ExpectSums(t);
  const auto communicator = daemon.registry->Get("c");
  ASSERT_TRUE(communicator.ok());
  EXPECT_EQ(communicator->operations_total(), 2000u);
  EXPECT_EQ(communicator->operations_failed_total(), 0u);
  EXPECT_EQ(communicator->payload_bytes_total(), 2000u * 64);
}

}  // namespace
}  // namespace qrd::testing
