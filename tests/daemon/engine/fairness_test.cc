// SPDX-License-Identifier: Apache-2.0
// A group that floods and a group that must still get its share.
#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

struct Flooder {
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<RawArena> arenas;

  void PostOn(size_t rank, uint64_t count) {
    clients[rank]->Post(clients[rank]->AllReduce(arenas[rank], 0, 0, count));
  }
};

Flooder Attach(DataPath* daemon, const std::string& name, uint64_t bytes) {
  Flooder flooder;
  flooder.clients = daemon->Group(2, name);
  for (auto& client : flooder.clients) flooder.arenas.push_back(client->Alloc(bytes));
  return flooder;
}

// What was noted of chunks may be read after this: it takes the lock under which they were noted.
void NoMoreChunks(DataPath* daemon) {
  daemon->fake().OnChunk([](const LaunchParams&, TileRange) {});
}

// Both groups fill their rings while the backend is held, so both always have work; the shares are
// looked at when the first of them is through.
double ShareOfFirst(uint32_t weight_of_first) {
  Config config = DataPath::DefaultConfig();
  config.worker_threads = 1;
  config.communicator_weights = {{"first", weight_of_first}};
  DataPath daemon(config);
  const uint64_t count = 256 << 10;
  Flooder first = Attach(&daemon, "first", 4 * count),
          second = Attach(&daemon, "second", 4 * count);
  std::vector<std::pair<const void*, uint64_t>> chunks;  // under the backend's lock
  daemon.fake().OnChunk([&](const LaunchParams& p, TileRange r) {
    chunks.emplace_back(p.inputs[0], (r.last - r.first) * kTileElements);
  });
  daemon.fake().Hold();
  const uint32_t operations = 16;
  for (uint32_t i = 0; i < operations; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      first.PostOn(r, count);
      second.PostOn(r, count);
    }
  }
  EXPECT_TRUE(daemon.fake().WaitUntilHeld());
  daemon.fake().Release();
  for (auto* group : {&first, &second}) {
    for (auto& client : group->clients) {
      EXPECT_EQ(client->Wait(operations - 1).status, shm::Status::kOk);
    }
  }
  NoMoreChunks(&daemon);
  std::map<const void*, uint64_t> elements;
  for (const auto& [input, n] : chunks) {
    elements[input] += n;
    if (elements[input] == operations * count) break;  // this one is through
  }
  // The engine sees its own mapping; the first chunk of all tells whose it is.
  EXPECT_EQ(elements.size(), 2u);
  uint64_t low = UINT64_MAX, high = 0;
  for (const auto& [input, n] : elements) {
    low = std::min(low, n);
    high = std::max(high, n);
  }
  return static_cast<double>(high) / static_cast<double>(low);
}

TEST(FairnessTest, EqualWeightsShareEqually) { EXPECT_NEAR(ShareOfFirst(1), 1.0, 0.2); }

TEST(FairnessTest, WeightsAreKept) { EXPECT_NEAR(ShareOfFirst(3), 3.0, 0.6); }

TEST(FairnessTest, LightGroupGetsItsTurnAfterOneChunkOfTheFlood) {
  Config config = DataPath::DefaultConfig();
  config.worker_threads = 1;
  DataPath daemon(config);
  const uint64_t count = 1 << 20;
  Flooder flood = Attach(&daemon, "flood", 4 * count), light = Attach(&daemon, "light", 4096);
  std::vector<uint64_t> counts;
  daemon.fake().OnChunk([&](const LaunchParams& p, TileRange) { counts.push_back(p.count); });
  daemon.fake().Hold();
  for (int i = 0; i < 16; ++i) {
    for (size_t r = 0; r < 2; ++r) flood.PostOn(r, count);
  }
  ASSERT_TRUE(daemon.fake().WaitUntilHeld());
  for (size_t r = 0; r < 2; ++r) light.PostOn(r, 16);
  daemon.fake().Release();
  for (auto& client : light.clients) EXPECT_EQ(client->Wait(0).status, shm::Status::kOk);
  for (auto& client : flood.clients) EXPECT_EQ(client->Wait(15).status, shm::Status::kOk);
  NoMoreChunks(&daemon);
  // The chunk that was held, and then the light group's: it came while that one ran.
  const auto at = std::find(counts.begin(), counts.end(), 16u) - counts.begin();
  EXPECT_LE(at, 2);
}

TEST(FairnessTest, FullRingOfOneSessionDoesNotHoldUpAnother) {
  DataPath daemon;
  auto lonely = daemon.Group(2, "lonely");  // rank 1 never posts
  const RawArena arena = lonely[0]->Alloc(4096);
  for (int i = 0; i < 16; ++i) lonely[0]->Post(lonely[0]->AllReduce(arena, 0, 0, 1));
  Flooder light = Attach(&daemon, "light", 4096);
  for (int i = 0; i < 100; ++i) {
    for (size_t r = 0; r < 2; ++r) light.PostOn(r, 16);
    for (auto& client : light.clients) {
      ASSERT_EQ(client->Wait(static_cast<uint32_t>(i % 16)).status, shm::Status::kOk);
    }
  }
}

}  // namespace
}  // namespace qrd::testing
