// SPDX-License-Identifier: Apache-2.0
// Ranks on devices when something goes wrong: no stream may stay blocked, and everybody is told.
#include "tests/daemon/engine/device_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;

class DeviceFailureTest : public DeviceTest {
 protected:
  // Both streams pass, with this status and text.
  void ExpectFailure(uint32_t entry, uint64_t operations, shm::Status status,
                     const std::string& text) {
    for (auto& client : clients) {
      if (!client->connected()) continue;
      ASSERT_TRUE(client->PassStream());
      const RawCompletion c = client->WaitEntry(entry, operations);
      EXPECT_EQ(c.status, status) << c.message;
      EXPECT_THAT(c.message, HasSubstr(text));
    }
  }
};

TEST_F(DeviceFailureTest, MismatchReleasesTheStreamsAndIsRemembered) {
  Attach(2);
  clients[0]->Announce(4, Sum(0));
  shm::Descriptor other = Sum(1);
  other.count = kCount - 1;
  clients[1]->Announce(4, other);
  ExpectFailure(4, 1, shm::Status::kMismatch, "count is");
  RunOnStreams(6);
  for (auto& client : clients) {
    EXPECT_EQ(client->WaitEntry(6, 2).status, shm::Status::kOk);
    EXPECT_EQ(client->stream()->failed_entry.load(), 5u);  // of the first that failed
  }
}

// A graph whose first replay failed runs on; the client looks afterwards.
TEST_F(DeviceFailureTest, TheFirstFailureOutlivesLaterReplaysOfItsEntry) {
  Attach(2);
  control.Set(&FakeDevices::operation_error,
              absl::Status(absl::DeadlineExceededError("rank 1 did not arrive in the kernel")));
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(2, Sum(r));
  for (auto& client : clients) ASSERT_TRUE(client->PassStream());
  for (int replay = 0; replay < 3; ++replay) RunOnStreams(2);
  for (auto& client : clients) {
    const RawCompletion c = client->WaitEntry(2, 4);
    EXPECT_EQ(client->stream()->failed_entry.load(), 3u);
    EXPECT_EQ(c.status, shm::Status::kTimeout);
    EXPECT_THAT(c.message, HasSubstr("rank 1 did not arrive in the kernel"));
  }
}

TEST_F(DeviceFailureTest, RefusedDescriptorNamesTheField) {
  Attach(2);
  shm::Descriptor bad = Sum(0);
  bad.output.offset_bytes = uint64_t{1} << 40;
  clients[0]->Announce(0, bad);
  clients[1]->Announce(0, Sum(1));
  ASSERT_TRUE(clients[0]->PassStream());
  const RawCompletion own = clients[0]->WaitEntry(0, 1);
  EXPECT_EQ(own.status, shm::Status::kInvalidArgument);
  EXPECT_THAT(own.message, HasSubstr("output"));
  ASSERT_TRUE(clients[1]->PassStream());
  EXPECT_EQ(clients[1]->WaitEntry(0, 1).status, shm::Status::kMismatch);
}

TEST_F(DeviceFailureTest, PlanThatTheBackendLacksIsItsAnswer) {
  Attach(2);
  for (size_t r = 0; r < 2; ++r) {
    shm::Descriptor d = Sum(r);
    d.dtype = shm::Dtype::kBf16;
    clients[r]->Announce(0, d);
  }
  ExpectFailure(0, 1, shm::Status::kUnimplemented, "the fake device has fp32 only");
}

TEST_F(DeviceFailureTest, MissingRankIsNamedAndTheStreamReleased) {
  Attach(2);
  shm::Descriptor d = Sum(0);
  d.timeout_ms = 50;
  clients[0]->Announce(0, d);
  ASSERT_TRUE(clients[0]->PassStream());
  const RawCompletion c = clients[0]->WaitEntry(0, 1);
  EXPECT_EQ(c.status, shm::Status::kTimeout);
  EXPECT_THAT(c.message, HasSubstr("rank 1 did not post within 50 ms"));
}

TEST_F(DeviceFailureTest, DoorbellOutOfRangeEndsTheSessionAndTellsThePeer) {
  Attach(2);
  clients[1]->Announce(0, Sum(1));
  clients[0]->stream()->doorbell.store(daemon.config.stream_entries_per_session + 1);
  EXPECT_TRUE(clients[0]->WaitForClose());
  ASSERT_TRUE(clients[1]->PassStream());
  const RawCompletion c = clients[1]->WaitEntry(0, 1);
  EXPECT_EQ(c.status, shm::Status::kPeerLost);
  EXPECT_THAT(c.message, HasSubstr("stream doorbell is 4097: want 1 to 4096"));
}

TEST_F(DeviceFailureTest, PeerThatDiesBeforeItPostsReleasesTheStream) {
  Attach(2);
  clients[0]->Announce(0, Sum(0));
  clients[1]->Close();
  ExpectFailure(0, 1, shm::Status::kPeerLost, "rank 1");
}

TEST_F(DeviceFailureTest, PeerThatDiesWhileTheDeviceWorksLeavesWholeResults) {
  Attach(2);
  control.Set(&FakeDevices::hold, true);
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(0, Sum(r));
  ASSERT_TRUE(control.WaitUntilLaunched(1));
  clients[1]->Close();
  control.Release();
  ASSERT_TRUE(clients[0]->PassStream());
  const RawCompletion c = clients[0]->WaitEntry(0, 1);
  EXPECT_TRUE(c.status == shm::Status::kOk || c.status == shm::Status::kPeerLost) << c.message;
  if (c.status == shm::Status::kOk) {
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(arenas[0].at<float>(kBytes)[i], 3 + 2 * static_cast<float>(i));
    }
  }
}

TEST_F(DeviceFailureTest, LaunchIsTriedAgainWhenTheDevicesAreFull) {
  Attach(2);
  control.Set(&FakeDevices::launch_error, absl::Status(absl::ResourceExhaustedError("full")));
  RunOnStreams(0);
  ExpectSums(0);
}

TEST_F(DeviceFailureTest, LaunchErrorReleasesTheStreams) {
  Attach(2);
  control.Set(&FakeDevices::launch_error, absl::Status(absl::UnimplementedError("not this one")));
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(0, Sum(r));
  ExpectFailure(0, 1, shm::Status::kUnimplemented, "operation 1: the devices: not this one");
  FillInputs(1);
  RunOnStreams(1);
  ExpectSums(1);
}

TEST_F(DeviceFailureTest, FailedOperationIsToldToAllRanksAndTheNextWorks) {
  Attach(2);
  control.Set(&FakeDevices::operation_error,
              absl::Status(absl::DeadlineExceededError("rank 1 did not arrive in the kernel")));
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(0, Sum(r));
  ExpectFailure(0, 1, shm::Status::kTimeout, "rank 1 did not arrive in the kernel");
  RunOnStreams(1);
  ExpectSums(0);
}

TEST_F(DeviceFailureTest, LostDeviceThatStoresNothingReleasesTheStreams) {
  Attach(2);
  control.Set(&FakeDevices::words_lost, true);
  control.Set(&FakeDevices::operation_error, absl::Status(absl::InternalError("device fell off")));
  for (size_t r = 0; r < 2; ++r) clients[r]->Announce(0, Sum(r));
  ExpectFailure(0, 1, shm::Status::kInternal, "device fell off");
}

TEST_F(DeviceFailureTest, GroupThatCannotBePlacedIsToldWhy) {
  control.Set(&FakeDevices::place_error,
              absl::Status(absl::ResourceExhaustedError("no room for the pool")));
  std::vector<std::unique_ptr<RawClient>> joining;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    joining.push_back(std::make_unique<RawClient>(daemon.socket()));
    ASSERT_EQ(joining[rank]->Hello(), "");
    joining[rank]->SendJoinOnDevice("c", "g", rank, 2, kFakeDeviceId);
  }
  for (auto& client : joining) {
    EXPECT_EQ(client->FinishJoin(), "no room for the pool");
    EXPECT_EQ(client->last_status(), shm::Status::kResourceExhausted);
  }
  control.Set(&FakeDevices::place_error, absl::OkStatus());
  Attach(2);
  RunOnStreams(0);
  ExpectSums(0);
}

TEST_F(DeviceFailureTest, StopReleasesStreamsThatWait) {
  Attach(2);
  clients[0]->Announce(0, Sum(0));
  while (clients[0]->stream()->doorbell.load() != 0) std::this_thread::yield();
  daemon.server->Stop();
  daemon.engine->Stop();
  EXPECT_TRUE(clients[0]->PassStream());
  EXPECT_NE(clients[0]->WaitEntry(0, 1).status, shm::Status::kOk);
}

TEST(DeviceConfigTest, WithoutGpusADeviceIsRefusedWithTheReason) {
  DataPath daemon;
  RawClient client(daemon.socket());
  ASSERT_EQ(client.Hello(), "");
  client.SendJoinOnDevice("c", "g", 0, 1, "GPU-1");
  EXPECT_EQ(client.FinishJoin(), "device is \"GPU-1\": none here");
  EXPECT_EQ(client.last_status(), shm::Status::kFailedPrecondition);
}

}  // namespace
}  // namespace qrd::testing
