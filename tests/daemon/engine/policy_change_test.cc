// SPDX-License-Identifier: Apache-2.0
// The policy changes under load: every operation has one plan, the same on all ranks.
#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

v1::Policy WithCodec(v1::Codec codec) {
  v1::Policy policy;
  v1::Rule* rule = policy.add_rules();
  rule->set_name("all");
  rule->mutable_action()->set_codec(codec);
  return policy;
}

TEST(PolicyChangeTest, ThousandsOfOperationsEachUseOnePlan) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  std::vector<RawArena> arenas;
  for (auto& client : clients) arenas.push_back(client->Alloc(8192));
  for (const RawArena& arena : arenas) arena.at<float>(0)[0] = 1;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> sets{0};
  std::thread changer([&] {
    while (!stop.load()) {
      const bool odd = sets.load() % 2 != 0;
      ASSERT_TRUE(
          daemon.policy
              ->Set(WithCodec(odd ? v1::CODEC_NONE : v1::CODEC_INT4), 0, false, std::nullopt)
              .ok());
      ++sets;
    }
  });
  uint64_t last_generation = 0;
  for (int i = 0; i < 5000; ++i) {
    uint32_t slots[2];
    for (size_t r = 0; r < 2; ++r) {
      slots[r] = clients[r]->Post(clients[r]->AllReduce(arenas[r], 0, 4096, 1));
    }
    RawCompletion c[2];
    for (size_t r = 0; r < 2; ++r) {
      c[r] = clients[r]->Wait(slots[r]);
      ASSERT_EQ(c[r].status, shm::Status::kOk) << c[r].message;
      ASSERT_TRUE(c[r].codec == 0 || c[r].codec == 4);
      ASSERT_EQ(arenas[r].at<float>(4096)[0], 2 + 1000.0f * static_cast<float>(c[r].codec));
    }
    ASSERT_EQ(c[0].codec, c[1].codec);
    ASSERT_EQ(c[0].policy_generation, c[1].policy_generation);
    ASSERT_GE(c[0].policy_generation, last_generation);
    last_generation = c[0].policy_generation;
  }
  stop.store(true);
  changer.join();
  EXPECT_GT(sets.load(), 0u);
}

TEST(PolicyChangeTest, NextOperationAfterTheReplyUsesIt) {  // F39
  DataPath daemon;
  auto clients = daemon.Group(2);
  std::vector<RawArena> arenas;
  for (auto& client : clients) arenas.push_back(client->Alloc(8192));
  for (int i = 0; i < 50; ++i) {
    const bool odd = i % 2 != 0;
    const auto generation = daemon.policy->Set(WithCodec(odd ? v1::CODEC_NONE : v1::CODEC_INT8), 0,
                                               false, std::nullopt);
    ASSERT_TRUE(generation.ok());
    uint32_t slots[2];
    for (size_t r = 0; r < 2; ++r) {
      slots[r] = clients[r]->Post(clients[r]->AllReduce(arenas[r], 0, 4096, 1));
    }
    for (size_t r = 0; r < 2; ++r) {
      const RawCompletion c = clients[r]->Wait(slots[r]);
      EXPECT_EQ(c.policy_generation, *generation);
      EXPECT_EQ(c.codec, odd ? 0u : 2u);
    }
  }
}

TEST(PolicyChangeTest, OperationThatWaitsForARankUsesThePolicyOfTheLastPost) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  std::vector<RawArena> arenas;
  for (auto& client : clients) arenas.push_back(client->Alloc(8192));
  const uint32_t first = clients[0]->Post(clients[0]->AllReduce(arenas[0], 0, 4096, 1));
  while (clients[0]->consumer()->head.load() == 0) std::this_thread::yield();
  ASSERT_TRUE(daemon.policy->Set(WithCodec(v1::CODEC_INT3), 0, false, std::nullopt).ok());
  const uint32_t second = clients[1]->Post(clients[1]->AllReduce(arenas[1], 0, 4096, 1));
  EXPECT_EQ(clients[0]->Wait(first).codec, 6u);
  EXPECT_EQ(clients[1]->Wait(second).codec, 6u);
}

}  // namespace
}  // namespace qrd::testing
