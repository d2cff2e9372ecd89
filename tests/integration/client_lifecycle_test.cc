// SPDX-License-Identifier: Apache-2.0
// What a client sees when others fail: peers that die, ranks that never come, daemons that are
// killed. Real processes, real signals; the deadlines are the contract's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <qrd/qrd.hpp>
#include <thread>

#include "tests/integration/all_reduce_fixture.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"

namespace qrd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ClientLifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(daemon_.Start(), ""); }

  // One operation of 16 elements in shared memory, from post to wait.
  static std::string AllReduceOnce(qrd_comm_t comm, float* x) {
    qrd_operation operation = 0;
    const qrd_status status = qrd_all_reduce(comm, x, x, 16, QRD_FP32, QRD_SUM, &operation);
    return status != QRD_OK ? Outcome(status) : Outcome(qrd_wait(comm, operation, 0, nullptr));
  }
  static float* Allocate(qrd_comm_t comm, std::string* error) {
    void* memory = nullptr;
    *error = Outcome(qrd_mem_alloc(comm, 4096, &memory));
    return static_cast<float*>(memory);
  }

  DaemonProcess daemon_;
};

TEST_F(ClientLifecycleTest, AKilledDaemonIsReportedAndTheSameCallAttachesToTheNext) {
  RankProcesses ranks(2, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    if (error.empty()) error = AllReduceOnce(comm, x);
    if (!error.empty()) return "before the kill: " + error;
    x[0] = 42;
    // Rank 1 never posts the second one, so rank 0 is waiting when the daemon dies.
    self.Report("ready");
    if (self.rank() == 0) {
      error = AllReduceOnce(comm, x);
    } else {
      self.Await("killed");
      do {
        error = Outcome(qrd_mem_free(comm, x + 1));  // needs no daemon: INVALID_ARGUMENT
        void* memory = nullptr;
        error = Outcome(qrd_mem_alloc(comm, 1, &memory));
      } while (error.empty());
    }
    EXPECT_THAT(error, StartsWith("DAEMON_LOST: "));
    EXPECT_EQ(x[0], 42);
    EXPECT_THAT(AllReduceOnce(comm, x), StartsWith("DAEMON_LOST: "));
    EXPECT_EQ(Outcome(qrd_comm_finalize(comm)), "");
    self.Report("lost");
    self.Await("restarted");
    comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return "after the restart: " + error;
    x = Allocate(comm, &error);
    if (error.empty()) error = AllReduceOnce(comm, x);
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  for (uint32_t rank : {0u, 1u}) ASSERT_EQ(ranks.AwaitReport(rank), "ready");
  const auto start = std::chrono::steady_clock::now();
  daemon_.Kill();
  ranks.Send(1, "killed");
  for (uint32_t rank : {0u, 1u}) ASSERT_EQ(ranks.AwaitReport(rank), "lost");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  ASSERT_EQ(daemon_.Start(), "");
  ranks.SendAll("restarted");
  EXPECT_THAT(ranks.Wait(), Each(IsEmpty()));
}

// F30: a daemon that is stopped, not dead, holds nobody for ever, and goes on where it was.
TEST_F(ClientLifecycleTest, AStoppedDaemonEndsAWaitWithoutLimitAndTheOperationGoesOnLater) {
  RankProcesses ranks(1, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), 0, 1, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    if (!error.empty()) return error;
    x[0] = 42;
    self.Report("ready");
    self.Await("stopped");
    qrd_operation operation = 0;
    qrd_status status = qrd_all_reduce(comm, x, x, 16, QRD_FP32, QRD_SUM, &operation);
    if (status != QRD_OK) return "post: " + Outcome(status);
    status = qrd_wait(comm, operation, 0, nullptr);
    const std::string text = qrd_last_error();
    if (status != QRD_IN_PROGRESS || text.find("has not moved for 10 s") == std::string::npos) {
      return "stopped: " + Outcome(status);
    }
    // The other calls that need the daemon are bounded, too.
    status = qrd_wait(comm, operation, 50, nullptr);
    if (status != QRD_IN_PROGRESS) return "with a limit: " + Outcome(status);
    self.Report("waited");
    self.Await("goes on");
    status = qrd_wait(comm, operation, 0, nullptr);
    if (status != QRD_OK || x[0] != 42) return "after: " + Outcome(status);
    qrd_comm_finalize(comm);
    return std::string();
  });
  ASSERT_EQ(ranks.AwaitReport(0), "ready");
  daemon_.Signal(SIGSTOP);
  ranks.Send(0, "stopped");
  EXPECT_EQ(ranks.AwaitReport(0), "waited");
  daemon_.Signal(SIGCONT);
  ranks.Send(0, "goes on");
  EXPECT_THAT(ranks.Wait(), Each(IsEmpty()));
}

TEST_F(ClientLifecycleTest, AKilledPeerIsNamedToTheOthersAndTheirReplacementsGoOn) {
  constexpr uint32_t kRanks = 3;
  RankProcesses ranks(kRanks, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), kRanks, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    if (error.empty()) error = AllReduceOnce(comm, x);
    if (!error.empty()) return "before the kill: " + error;
    self.Report("ready");
    if (self.rank() == 2) return self.Await();  // killed here
    error = AllReduceOnce(comm, x);
    EXPECT_THAT(error, AllOf(StartsWith("PEER_LOST: operation 2: "), HasSubstr("rank 2")));
    EXPECT_THAT(AllReduceOnce(comm, x), StartsWith("PEER_LOST: "));
    return Outcome(qrd_comm_finalize(comm));
  });
  for (uint32_t rank = 0; rank < kRanks; ++rank) ASSERT_EQ(ranks.AwaitReport(rank), "ready");
  ranks.Signal(2, SIGKILL);
  EXPECT_THAT(ranks.Wait(), ElementsAre("", "", "killed by signal 9"));
  // The group's name is free for its next incarnation.
  const auto again = RunRanks(kRanks, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), kRanks, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    if (error.empty()) error = AllReduceOnce(comm, x);
    if (error.empty()) error = Outcome(qrd_comm_finalize(comm));
    return error;
  });
  EXPECT_THAT(again, Each(IsEmpty()));
  // The operator reads it in the log.
  EXPECT_THAT(daemon_.Log(), HasSubstr("group 'default' of communicator 'tp', incarnation 1: ends, "
                                       "operations that fail: 1; rank 2 (process "));
}

TEST_F(ClientLifecycleTest, AChildThatOutlivesItsKilledParentDoesNotKeepTheSessionAlive) {
  RankProcesses ranks(2, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    if (self.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) {
        self.Report(std::to_string(getpid()));
        for (;;) pause();
      }
      return self.Await();  // killed here
    }
    error = AllReduceOnce(comm, x);
    EXPECT_THAT(error, AllOf(StartsWith("PEER_LOST: "), HasSubstr("rank 1")));
    return Outcome(qrd_comm_finalize(comm));
  });
  const pid_t child = static_cast<pid_t>(std::stol("0" + ranks.AwaitReport(1)));
  ASSERT_GT(child, 0);
  ranks.Signal(1, SIGKILL);
  EXPECT_THAT(ranks.Wait(), ElementsAre("", "killed by signal 9"));
  kill(child, SIGKILL);
}

TEST_F(ClientLifecycleTest, MissingRanksAreNamedAtTheTimeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto results = RunRanks(2, [&](RankProcess& self) {
    std::string error;
    Attach(daemon_.runtime_directory(), self.rank(), 4, &error, "tp", nullptr, 300);
    return error;
  });
  for (const std::string& result : results) {
    EXPECT_THAT(result, AllOf(StartsWith("TIMEOUT: "), HasSubstr("2"), HasSubstr("3")));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(299));
}

TEST_F(ClientLifecycleTest, DifferentOperationsAreAMismatchForAll) {
  const auto results = RunRanks(2, [&](RankProcess& self) {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    float* x = Allocate(comm, &error);
    qrd_operation operation = 0;
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    qrd_all_reduce(comm, x, x, 16 + self.rank(), QRD_FP32, QRD_SUM, &operation);
    error = Outcome(qrd_wait(comm, operation, 0, &stats));
    EXPECT_THAT(error, AllOf(StartsWith("MISMATCH: operation 1: "), HasSubstr("count"),
                             HasSubstr("16"), HasSubstr("17")));
    EXPECT_EQ(stats.status, QRD_MISMATCH);
    return Outcome(qrd_comm_finalize(comm));
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

TEST_F(ClientLifecycleTest, AttachAndLeaveAThousandTimesLeaksNothingInTheClient) {
  std::string error;
  size_t maps_before = 0;
  const auto maps = [] {
    FILE* file = std::fopen("/proc/self/maps", "r");
    size_t lines = 0;
    for (int c; (c = std::fgetc(file)) != EOF;) lines += c == '\n';
    std::fclose(file);
    return lines;
  };
  for (int i = 0; i < 1000; ++i) {
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), 0, 1, &error);
    ASSERT_EQ(error, "") << i;
    float* x = Allocate(comm, &error);
    ASSERT_EQ(error, "") << i;
    ASSERT_EQ(AllReduceOnce(comm, x), "") << i;
    ASSERT_EQ(Outcome(qrd_comm_finalize(comm)), "");
    if (i == 10) maps_before = maps();
  }
  EXPECT_LE(maps(), maps_before + 2);
}

TEST_F(ClientLifecycleTest, TheCppWrapperReducesAndThrows) {
  const auto results = RunRanks(2, [&](RankProcess& self) -> std::string {
    try {
      qrd::Options options;
      options.communicator = "cpp";
      options.rank = self.rank();
      options.world_size = 2;
      options.runtime_directory = daemon_.runtime_directory();
      options.timeout = std::chrono::seconds(60);
      std::optional<qrd::Communicator> comm(options);
      qrd::Buffer<float> x(*comm, 1000);
      for (float& value : x) value = static_cast<float>(self.rank()) + 1;
      qrd::Operation first = comm->AllReduce(x, QRD_SUM);
      const qrd_op_stats stats = first.Wait();
      EXPECT_FALSE(first.in_flight());
      EXPECT_EQ(stats.payload_bytes, 4000u);
      EXPECT_EQ(x[0], 3.0f);
      EXPECT_EQ(x[999], 3.0f);
      std::vector<qrd::Bf16> own(10, qrd::Bf16{0x3F80});  // 1.0
      qrd::Operation second = comm->AllReduce(own.data(), own.data(), own.size(), QRD_SUM);
      std::optional<qrd_op_stats> done;
      while (!(done = second.WaitFor(std::chrono::milliseconds(100)))) {
      }
      EXPECT_EQ(done->staged, 1);
      EXPECT_EQ(own[9].bits, 0x4000);  // 2.0
      try {
        comm->AllReduce(x.data(), x.data() + 1, 10, QRD_SUM);
        return "no exception";
      } catch (const qrd::Error& e) {
        EXPECT_EQ(e.status(), QRD_INVALID_ARGUMENT);
        EXPECT_THAT(e.what(), StartsWith("INVALID_ARGUMENT: output: 0x"));
      }
      // Dropped without a wait: its destructor waits, and the buffer keeps the session alive.
      comm->AllReduce(x, QRD_SUM);
      comm.reset();
      EXPECT_EQ(x[0], 6.0f);
      return "";
    } catch (const std::exception& e) {
      return e.what();
    }
  });
  EXPECT_THAT(results, Each(IsEmpty()));
}

}  // namespace
}  // namespace qrd::testing
