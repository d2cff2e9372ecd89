// SPDX-License-Identifier: Apache-2.0
// The daemon is gone: everything says so at once, memory stays, a new attach works.
#include <chrono>
#include <thread>
#include <vector>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLost[] =
    "DAEMON_LOST: the session with the daemon has ended (finalize and init again): the attach "
    "connection is closed";

class LostDaemonTest : public ClientTest {
 protected:
  void SetUp() override {
    Attach();
    memory_ = static_cast<float*>(Allocate(4096));
  }
  float* memory_ = nullptr;
};

TEST_F(LostDaemonTest, AWaitThatSleepsEndsAndEveryLaterCallFailsAtOnce) {
  memory_[7] = 7;
  const qrd_operation operation = Post(memory_, memory_, 10);
  const qrd_operation second = Post(memory_ + 100, memory_ + 100, 10);
  const auto posted = daemon_.NextPosted();
  std::thread killer([&] {
    daemon_.AwaitSleeper(posted->slot);
    daemon_.HangUp();
  });
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  const std::string outcome = Outcome(qrd_wait(comm_, operation, 0, &stats));
  killer.join();
  EXPECT_EQ(outcome,
            "DAEMON_LOST: operation 1: the session with the daemon has ended (finalize and init "
            "again): the attach connection is closed");
  EXPECT_EQ(stats.status, QRD_DAEMON_LOST);
  EXPECT_EQ(stats.sequence, 1u);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Outcome(qrd_wait(comm_, second, 0, nullptr)), StartsWith("DAEMON_LOST: operation 2"));
  EXPECT_EQ(qrd_wait(comm_, second, 0, nullptr), QRD_NOT_FOUND);
  qrd_operation third = 0;
  EXPECT_EQ(Outcome(qrd_all_reduce(comm_, memory_, memory_, 1, QRD_FP32, QRD_SUM, &third)), kLost);
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 1, &ptr)), kLost);
  std::vector<float> own(10);
  EXPECT_EQ(Outcome(qrd_mem_register(comm_, own.data(), 40)), kLost);
  EXPECT_EQ(Outcome(qrd_comm_abort(comm_, "why")), kLost);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(memory_[7], 7);
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, memory_)), "");  // needs no daemon
  EXPECT_EQ(Outcome(qrd_comm_finalize(std::exchange(comm_, nullptr))), "");
  // The same call attaches again.
  Attach();
  memory_ = static_cast<float*>(Allocate(4096));
  const qrd_operation again = Post(memory_, memory_, 1);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, again, 0, nullptr)), "");
}

TEST_F(LostDaemonTest, AResultThatHadArrivedIsNotLost) {
  const qrd_operation operation = Post(memory_, memory_, 1);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  daemon_.HangUp();
  void* ptr = nullptr;
  EXPECT_THAT(Outcome(qrd_mem_alloc(comm_, 1, &ptr)), StartsWith("DAEMON_LOST: "));
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

TEST_F(LostDaemonTest, ATestNoticesToo) {
  const qrd_operation operation = Post(memory_, memory_, 1);
  daemon_.HangUp();
  qrd_status status = QRD_IN_PROGRESS;
  while (status == QRD_IN_PROGRESS) status = qrd_test(comm_, operation, nullptr);
  EXPECT_EQ(status, QRD_DAEMON_LOST);
}

TEST_F(LostDaemonTest, APostThatFindsNoRoomSaysThatTheDaemonIsGone) {
  for (int i = 0; i < 8; ++i) Post(memory_, memory_, 0);
  daemon_.HangUp(QRD_ABORTED, "the peer left");
  qrd_operation extra = 0;
  EXPECT_EQ(
      Outcome(qrd_all_reduce(comm_, memory_, memory_, 1, QRD_FP32, QRD_SUM, &extra)),
      "ABORTED: the session with the daemon has ended (finalize and init again): the peer left");
}

TEST_F(LostDaemonTest, ADaemonThatEndsTheSessionIsQuoted) {
  const qrd_operation operation = Post(memory_, memory_, 1);
  daemon_.HangUp(QRD_ABORTED, "communicator tp was deleted");
  EXPECT_EQ(
      Outcome(qrd_wait(comm_, operation, 0, nullptr)),
      "ABORTED: operation 1: the session with the daemon has ended (finalize and init again): "
      "communicator tp was deleted");
  void* ptr = nullptr;
  EXPECT_THAT(Outcome(qrd_mem_alloc(comm_, 1, &ptr)), StartsWith("ABORTED: "));
}

TEST_F(LostDaemonTest, ACallThatTimesOutOrIsTornEndsTheSession) {
  daemon_.on_request = [](const v1::ClientMessage& request) {
    return request.has_arena_alloc() ? FakeDaemon::Raw("\xff\xff") : FakeDaemon::Normal();
  };
  void* ptr = nullptr;
  EXPECT_THAT(Outcome(qrd_mem_alloc(comm_, 1, &ptr)),
              HasSubstr("ArenaAlloc: the daemon's reply of 2 bytes cannot be parsed"));
  qrd_operation operation = 0;
  EXPECT_EQ(qrd_all_reduce(comm_, memory_, memory_, 1, QRD_FP32, QRD_SUM, &operation),
            QRD_DAEMON_LOST);
}

TEST_F(LostDaemonTest, ARefusedCallDoesNotEndTheSession) {
  daemon_.on_request = [](const v1::ClientMessage& request) {
    return request.has_arena_alloc() ? FakeDaemon::Refuse(QRD_RESOURCE_EXHAUSTED, "full")
                                     : FakeDaemon::Normal();
  };
  void* ptr = nullptr;
  EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, 1, &ptr)), "RESOURCE_EXHAUSTED: full");
  const qrd_operation operation = Post(memory_, memory_, 1);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

}  // namespace
}  // namespace qrd::testing
