// SPDX-License-Identifier: Apache-2.0
// The thread that releases streams: when it begins, what it does, and that it ends.
#include "client/src/stream_watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/core/keep_forever.h"
#include "tests/client/gpu/stream_fixture.h"

namespace qrd::client {
namespace {

using qrd::testing::Eventually;
using qrd::testing::FakeOwner;
using qrd::testing::StreamMemory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kShortNs = 20'000'000;
constexpr uint64_t kHourNs = 3'600'000'000'000;

class StreamWatcherTest : public ::testing::Test {
 protected:
  void Start(uint64_t bound_ns) {
    watcher_ = std::make_unique<StreamWatcher>(&owner_, memory_.header(), &control_,
                                               owner_.socket(), bound_ns);
    ASSERT_EQ(watcher_->Start(), QRD_OK);
  }
  bool Released() { return memory_.header()->done.load() == 1; }

  StreamMemory memory_{8};
  StreamControl control_{};
  FakeOwner owner_;
  std::unique_ptr<StreamWatcher> watcher_;
};

TEST_F(StreamWatcherTest, TheEndOfTheConnectionReleasesTheStreamsAgainAndAgain) {
  Start(kHourNs);
  owner_.lost = true;
  owner_.HangUp();
  for (int operation = 1; operation <= 20; ++operation) {
    memory_.header()->doorbell.store(static_cast<uint32_t>(operation));
    ASSERT_TRUE(Eventually([&] { return Released() && memory_.header()->doorbell.load() == 0; }));
    memory_.header()->done.store(0);
  }
  ASSERT_TRUE(Eventually([&] { return Released(); }));
  EXPECT_EQ(owner_.text(), "");
}

TEST_F(StreamWatcherTest, ALossThatIsToldReleasesTheStreamsAtOnce) {
  Start(kHourNs);
  owner_.lost = true;
  watcher_->Wake();
  EXPECT_TRUE(Eventually([&] { return Released(); }));
}

TEST_F(StreamWatcherTest, ADoorbellThatIsNotTakenWithinTheBoundIsALoss) {
  memory_.header()->doorbell.store(3);
  Start(kShortNs);
  ASSERT_TRUE(Eventually([&] { return Released(); }));
  EXPECT_EQ(owner_.text(),
            "the daemon did not take an operation for 20 ms; the streams were released");
}

TEST_F(StreamWatcherTest, ADaemonThatDoesNotMoveIsALoss) {
  Start(kShortNs);
  owner_.stalled_ns = kShortNs + 1;
  ASSERT_TRUE(Eventually([&] { return Released(); }));
  EXPECT_EQ(owner_.text(), "the daemon did not move for 20 ms; the streams were released");
}

TEST_F(StreamWatcherTest, AGateThatPassedItsBoundIsALoss) {
  Start(kShortNs);
  control_.expired.store(1);
  ASSERT_TRUE(Eventually([&] { return Released(); }));
  EXPECT_THAT(owner_.text(), StartsWith("the daemon did not end an operation"));
}

TEST_F(StreamWatcherTest, ADaemonThatTakesOperationsIsLeftAlone) {
  Start(kShortNs);
  // Longer than the bound in all, but something changes all the time.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  uint64_t n = 0;
  while (std::chrono::steady_clock::now() < end) {
    memory_.header()->doorbell.store(1);
    memory_.header()->operations.store(++n);
    std::this_thread::yield();
  }
  memory_.header()->doorbell.store(0);
  const int before = owner_.questions;
  ASSERT_TRUE(Eventually([&] { return owner_.questions > before + 2; }));
  EXPECT_FALSE(Released());
  EXPECT_EQ(owner_.text(), "");
}

TEST_F(StreamWatcherTest, StopEndsAWatchingAndAReleasingThread) {
  Start(kHourNs);
  watcher_->Stop();
  watcher_->Stop();
  EXPECT_FALSE(Released());
  Start(kHourNs);
  owner_.lost = true;
  watcher_->Wake();
  ASSERT_TRUE(Eventually([&] { return Released(); }));
  watcher_->Stop();
}

// What finalize does if a stream may still come to operations: the thread goes on without owner.
TEST(StreamWatcherDetachTest, ADetachedThreadReleasesWithoutItsOwner) {
  auto memory = std::make_unique<StreamMemory>(8);
  auto control = std::make_unique<StreamControl>();
  auto owner = std::make_unique<FakeOwner>();
  auto watcher = std::make_unique<StreamWatcher>(owner.get(), memory->header(), control.get(),
                                                 owner->socket(), kHourNs);
  ASSERT_EQ(watcher->Start(), QRD_OK);
  watcher->Detach();
  owner.reset();
  watcher->Wake();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Eventually([&] { return memory->header()->done.load() == 1; }));
    memory->header()->done.store(0);
  }
  KeepForever(std::move(watcher));
  KeepForever(std::move(memory));
  KeepForever(std::move(control));
}

}  // namespace
}  // namespace qrd::client
