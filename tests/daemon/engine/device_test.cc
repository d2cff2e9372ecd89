// SPDX-License-Identifier: Apache-2.0
// Operations of ranks on devices, through the ring and on streams, in process.
#include "tests/daemon/engine/device_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(DeviceTest, HostWaitedOperationsRunOnTheDevice) {
  Attach(2);
  uint32_t slots[2];
  for (size_t r = 0; r < 2; ++r) slots[r] = Post(r);
  for (size_t r = 0; r < 2; ++r) {
    const RawCompletion c = clients[r]->Wait(slots[r]);
    EXPECT_EQ(c.status, shm::Status::kOk) << c.message;
    EXPECT_EQ(c.payload_bytes, kBytes);
    EXPECT_LE(c.ready_ns, c.start_ns);
    EXPECT_LE(c.start_ns, c.end_ns);
  }
  ExpectSums(0);
  EXPECT_EQ(control.Get(&FakeDevices::launched), 1);
  EXPECT_EQ(daemon.fake().chunks(), 0u);
}

TEST_F(DeviceTest, StreamsPassWhenTheDeviceIsDone) {
  Attach(2);
  control.Set(&FakeDevices::hold, true);
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(3, Sum(r));
  ASSERT_TRUE(control.WaitUntilLaunched(1));
  for (auto& client : clients) {
    EXPECT_EQ(client->stream()->doorbell.load(), 0u);
    EXPECT_EQ(client->stream()->done.load(), 0u);
  }
  control.Release();
  for (auto& client : clients) {
    ASSERT_TRUE(client->PassStream());
    const RawCompletion c = client->WaitEntry(3, 1);
    EXPECT_TRUE(c.done);
    EXPECT_EQ(c.status, shm::Status::kOk) << c.message;
    EXPECT_EQ(c.payload_bytes, kBytes);
    EXPECT_EQ(client->stream()->failed_entry.load(), 0u);
  }
  ExpectSums(0);
}

TEST_F(DeviceTest, GraphsReplayOneEntryWithOtherData) {
  Attach(2);
  for (size_t r = 0; r < 2; ++r) {
    shm::Descriptor d = Sum(r);
    d.sequence = 77;  // not looked at
    clients[r]->entry(0)->descriptor = d;
  }
  for (int replay = 1; replay <= 200; ++replay) {
    FillInputs(static_cast<float>(replay));
    for (auto& client : clients) client->Announce(0);
    for (auto& client : clients) ASSERT_TRUE(client->PassStream());
    ExpectSums(static_cast<float>(replay));
  }
  for (auto& client : clients) EXPECT_EQ(client->WaitEntry(0, 200).status, shm::Status::kOk);
}

TEST_F(DeviceTest, StreamsAndRingShareOneOrder) {
  Attach(2);
  // Rank 0 posts through the ring what rank 1 puts on a stream, and the other way round.
  const uint32_t slot0 = Post(0);
  clients[1]->Announce(0, Sum(1));
  EXPECT_EQ(clients[0]->Wait(slot0).status, shm::Status::kOk);
  ASSERT_TRUE(clients[1]->PassStream());
  clients[0]->Announce(5, Sum(0));
  shm::Descriptor first_of_ring = Sum(1);
  first_of_ring.sequence = 1;  // the ring's own count
  const RawCompletion c = clients[1]->Wait(clients[1]->Post(first_of_ring));
  EXPECT_EQ(c.status, shm::Status::kOk) << c.message;
  EXPECT_EQ(c.sequence, 1u);
  ASSERT_TRUE(clients[0]->PassStream());
  EXPECT_EQ(clients[0]->WaitEntry(5, 1).status, shm::Status::kOk);
}

TEST_F(DeviceTest, NothingIsLaunchedForNoElements) {
  Attach(2);
  for (size_t r = 0; r < 2; ++r) {
    clients[r]->Announce(0, clients[r]->AllReduce(RawArena(), 0, 0, 0));
  }
  for (auto& client : clients) {
    ASSERT_TRUE(client->PassStream());
    EXPECT_EQ(client->WaitEntry(0, 1).status, shm::Status::kOk);
  }
  EXPECT_EQ(control.Get(&FakeDevices::launched), 0);
}

// One of a group (its next may read what it writes), two in all.
TEST_F(DeviceTest, AtMostTwoOperationsAreOnTheDevices) {
  control.Set(&FakeDevices::hold, true);
  std::vector<std::vector<uint32_t>> slots(3);
  for (int group = 0; group < 3; ++group) {
    clients.push_back(std::make_unique<RawClient>(daemon.socket()));
    RawClient& client = *clients.back();
    ASSERT_EQ(client.Hello(), "");
    client.SendJoinOnDevice("c", "g" + std::to_string(group), 0, 1, kFakeDeviceId);
    ASSERT_EQ(client.FinishJoin(), "");
    arenas.push_back(client.AllocOnDevice(2 * kBytes));
    for (int i = 0; i < 3; ++i) slots[group].push_back(Post(static_cast<size_t>(group)));
  }
  ASSERT_TRUE(control.WaitUntilLaunched(2));
  control.Set(&FakeDevices::hold, false);
  for (size_t group = 0; group < 3; ++group) {
    for (const uint32_t slot : slots[group]) {
      EXPECT_EQ(clients[group]->Wait(slot).status, shm::Status::kOk);
    }
  }
  EXPECT_EQ(control.Get(&FakeDevices::launched), 9);
  EXPECT_EQ(control.Get(&FakeDevices::open_max), 2);
}

TEST_F(DeviceTest, ArenasAreInUseWhileTheDeviceWorks) {
  Attach(1);
  control.Set(&FakeDevices::hold, true);
  clients[0]->Announce(0, Sum(0));
  ASSERT_TRUE(control.WaitUntilLaunched(1));
  EXPECT_THAT(clients[0]->Free(arenas[0]), HasSubstr("is in use by"));
  control.Release();
  ASSERT_TRUE(clients[0]->PassStream());
  clients[0]->WaitEntry(0, 1);
  EXPECT_EQ(clients[0]->Free(arenas[0]), "");
}

TEST_F(DeviceTest, DevicesAreNamedByIdOrPciAddress) {
  Attach(2, kFakeDevicePci);
  RunOnStreams(0);
  ExpectSums(0);
  RawClient other(daemon.socket());
  ASSERT_EQ(other.Hello(), "");
  other.SendJoinOnDevice("d", "g", 0, 1, "0");
  EXPECT_EQ(other.FinishJoin(), "device: no device 0; there is " + std::string(kFakeDeviceId));
  EXPECT_EQ(other.last_status(), shm::Status::kNotFound);
  other.SendJoinOnDevice("d", "g", 0, 1, std::string(65, 'x'));
  EXPECT_EQ(other.FinishJoin(), "device has 65 bytes: at most 64");
}

TEST_F(DeviceTest, HostMemoryAndDevicesDoNotMixInOneCommunicator) {
  Attach(1);
  RawClient other(daemon.socket());
  ASSERT_EQ(other.Hello(), "");
  other.SendJoin("c", "h", 0, 1);
  EXPECT_THAT(other.FinishJoin(), HasSubstr("communicator 'c' is of GPUs"));
  other.SendJoin("d", "h", 0, 1);
  EXPECT_EQ(other.FinishJoin(), "");
  RawClient third(daemon.socket());
  ASSERT_EQ(third.Hello(), "");
  third.SendJoinOnDevice("d", "i", 0, 1, kFakeDeviceId);
  EXPECT_THAT(third.FinishJoin(), HasSubstr("communicator 'd' is of host memory"));
}

TEST_F(DeviceTest, StreamsAndImportsNeedADevice) {
  auto host = daemon.Group(1, "host");
  EXPECT_THAT(host[0]->OpenStream(), HasSubstr("joined without a device"));
  EXPECT_EQ(host[0]->last_status(), shm::Status::kFailedPrecondition);
  host[0]->Import(std::string(64, 'x'), 0, 4096);
  EXPECT_THAT(host[0]->last_error(), HasSubstr("joined without a device"));
  Attach(1);
  EXPECT_EQ(clients[0]->OpenStream(), "the stream segment is open already");
}

TEST_F(DeviceTest, OperationsRunOnImportedMemory) {
  Attach(1);
  const int fd = memfd_create("own", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 2 * kBytes), 0);
  auto* own =
      static_cast<float*>(mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  std::fill_n(own, 2 * kCount, 3.0f);
  std::string handle(kIpcHandleBytes, '\0');
  std::memcpy(handle.data(), &fd, sizeof(fd));
  const RawArena arena = clients[0]->Import(handle, 0, 2 * kBytes);
  ASSERT_NE(arena.arena_id, 0u) << clients[0]->last_error();
  clients[0]->Announce(0, clients[0]->AllReduce(arena, 0, kBytes, kCount));
  ASSERT_TRUE(clients[0]->PassStream());
  EXPECT_EQ(own[kCount], 3.0f);
  clients[0]->WaitEntry(0, 1);
  EXPECT_EQ(clients[0]->Free(arena), "");
  munmap(own, 2 * kBytes);
  close(fd);
  clients[0]->Import("short", 0, 4096);
  EXPECT_EQ(clients[0]->last_error(), "ipc_handle has 5 bytes: want 64");
}

TEST_F(DeviceTest, EverythingIsGivenBackWhenTheSessionsEnd) {
  for (int round = 0; round < 20; ++round) {
    Attach(2);
    RunOnStreams(0);
    clients.clear();
    arenas.clear();
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto left = [this] {
    return control.Get(&FakeDevices::groups) + control.Get(&FakeDevices::arenas) +
           control.Get(&FakeDevices::visible);
  };
  while (left() != 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(left(), 0);
  EXPECT_EQ(control.Get(&FakeDevices::placed), 20);
}

}  // namespace
}  // namespace qrd::testing
