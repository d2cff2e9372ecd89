// SPDX-License-Identifier: Apache-2.0
// Clients that go and come back: nothing of them stays, nothing of their successors is touched.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

size_t SharedMappings() {
  size_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) ++count;
  }
  return count;
}

void AttachRunDetach(DataPath* daemon) {
  auto clients = daemon->Group(2);
  uint32_t slots[2];
  for (size_t r = 0; r < 2; ++r) {
    const RawArena arena = clients[r]->Alloc(8192);
    slots[r] = clients[r]->Post(clients[r]->AllReduce(arena, 0, 4096, 16));
  }
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_EQ(clients[r]->Wait(slots[r]).status, shm::Status::kOk);
  }
}

// The daemon notices an end by itself; what it holds is looked at when it has.
void WaitUntilNothingIsHeld(DataPath* daemon, size_t descriptors) {
  const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
  while ((daemon->server->session_count() != 0 || daemon->server->arena_bytes() != 0 ||
          OpenDescriptors() > descriptors) &&
         Clock::now() < end) {
    std::this_thread::yield();
  }
}

TEST(ReattachTest, NothingStaysAfterManyRounds) {  // F26
  DataPath daemon;
  const size_t descriptors = OpenDescriptors(), mappings = SharedMappings();
  for (int i = 0; i < 1000; ++i) AttachRunDetach(&daemon);
  WaitUntilNothingIsHeld(&daemon, descriptors);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), mappings);
  EXPECT_EQ(daemon.server->arena_bytes(), 0u);
}

TEST(ReattachTest, SuccessorOfAClosedClientGetsItsRankAtOnce) {  // F29
  DataPath daemon;
  auto clients = daemon.Group(2);
  for (int i = 0; i < 100; ++i) {
    const uint64_t before = clients[0]->joined().incarnation();
    for (auto& client : clients) client->Close();
    auto next = daemon.Group(2);  // Group() expects every join to work
    EXPECT_GT(next[0]->joined().incarnation(), before);
    clients = std::move(next);
  }
  const RawArena a = clients[0]->Alloc(4096), b = clients[1]->Alloc(4096);
  const uint32_t x = clients[0]->Post(clients[0]->AllReduce(a, 0, 0, 4));
  const uint32_t y = clients[1]->Post(clients[1]->AllReduce(b, 0, 0, 4));
  EXPECT_EQ(clients[0]->Wait(x).status, shm::Status::kOk);
  EXPECT_EQ(clients[1]->Wait(y).status, shm::Status::kOk);
}

TEST(ReattachTest, DeadRankThatWaitedForOthersDoesNotCompleteAGroup) {
  DataPath daemon;
  for (int i = 0; i < 50; ++i) {
    RawClient dead(daemon.socket());
    ASSERT_EQ(dead.Hello(), "");
    dead.SendJoin("c", "default", 1, 2);
    while (daemon.server->session_count() == 0) std::this_thread::yield();
    dead.Close();
    auto group = daemon.Group(2);
    const RawArena a = group[0]->Alloc(4096), b = group[1]->Alloc(4096);
    const uint32_t x = group[0]->Post(group[0]->AllReduce(a, 0, 0, 4));
    const uint32_t y = group[1]->Post(group[1]->AllReduce(b, 0, 0, 4));
    ASSERT_EQ(group[0]->Wait(x).status, shm::Status::kOk);
    ASSERT_EQ(group[1]->Wait(y).status, shm::Status::kOk);
    group.clear();
    while (daemon.server->session_count() != 0) std::this_thread::yield();
  }
}

TEST(ReattachTest, ArenaInUseIsNotFreed) {
  DataPath daemon;
  auto clients = daemon.Group(2);
  const RawArena arena = clients[0]->Alloc(4096);
  clients[0]->Post(clients[0]->AllReduce(arena, 0, 0, 4));
  // Not until the ring's head has moved: the engine moves it before it pins the arena.
  v1::Group group;
  while (group.waiting_operations() == 0) {
    daemon.engine->GroupDetail(clients[0]->joined().session_id(), &group);
    std::this_thread::yield();
  }
  EXPECT_EQ(clients[0]->Free(arena), "arena 1 is in use by 2 tensors of operations in flight");
  EXPECT_EQ(clients[0]->last_status(), shm::Status::kFailedPrecondition);
  const RawArena other = clients[1]->Alloc(4096);
  clients[1]->Wait(clients[1]->Post(clients[1]->AllReduce(other, 0, 0, 4)));
  EXPECT_EQ(clients[0]->Wait(0).status, shm::Status::kOk);
  EXPECT_EQ(clients[0]->Free(arena), "");
}

TEST(ReattachTest, SleepingDaemonIsWokenByTheDoorbell) {
  DataPath daemon;
  auto clients = daemon.Group(1);
  const RawArena arena = clients[0]->Alloc(4096);
  int prompt = 0;
  for (int i = 0; i < 10; ++i) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
    while (clients[0]->node()->engine_sleeping.load() == 0 && Clock::now() < end) {
      std::this_thread::yield();
    }
    const Clock::time_point start = Clock::now();
    EXPECT_EQ(clients[0]->Wait(clients[0]->Post(clients[0]->AllReduce(arena, 0, 0, 4))).status,
              shm::Status::kOk);
    if (Clock::now() - start < std::chrono::milliseconds(50)) ++prompt;
  }
  // It has just fallen asleep: without the doorbell each would take nearly 100 ms.
  EXPECT_GE(prompt, 5);
}

}  // namespace
}  // namespace qrd::testing
