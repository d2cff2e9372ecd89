// SPDX-License-Identifier: Apache-2.0
// Ranks as forked processes, with their results brought back to the test.
//
//   // All at once; every entry is "" where the rank did what it should.
//   EXPECT_THAT(RunRanks(4, [&](RankProcess& self) { ...; return std::string(); }),
//   Each(IsEmpty()));
//
//   // Step by step, with a kill in the middle:
//   RankProcesses ranks(2, [&](RankProcess& self) { ...; self.Report("posted"); self.Await("go");
//   ... }); ASSERT_EQ(ranks.AwaitReport(1), "posted"); ranks.Signal(1, SIGKILL); ranks.Send(0,
//   "go"); EXPECT_THAT(ranks.Wait(), ElementsAre("", "killed by signal 9"));
//
// A body may use EXPECT and ASSERT in functions that return void: their failures end up in the
// rank's result, as do a returned text, an exit code and a signal.
//
// Thread safety: none. Fork from a process with one thread (a test without gRPC or the like
// running). Ownership: the destructor kills and reaps what still runs. Ranks die with their parent.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace qrd::testing {

// In the rank's process.
class RankProcess {
 public:
  RankProcess(uint32_t rank, int fd) : rank_(rank), fd_(fd) {}

  uint32_t rank() const { return rank_; }
  // One message to the test.
  void Report(const std::string& text) const;
  // Waits for the test's message and returns it; ends the process if the test is gone.
  std::string Await() const;
  // As above, and fails the rank unless it is `text`.
  void Await(const std::string& text) const;

 private:
  const uint32_t rank_;
  const int fd_;
};

class RankProcesses {
 public:
  using Body = std::function<std::string(RankProcess& self)>;

  RankProcesses(uint32_t count, Body body);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  pid_t pid(uint32_t rank) const { return ranks_[rank].pid; }
  void Signal(uint32_t rank, int signal) const;
  void Send(uint32_t rank, const std::string& text) const;
  void SendAll(const std::string& text) const;
  // The next Report of a rank; "(ended)" or "(timeout)" if there is none.
  std::string AwaitReport(uint32_t rank,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60));
  // Waits for all ranks. By rank: "" or what went wrong. Those that do not end in time are killed.
  std::vector<std::string> Wait(std::chrono::milliseconds timeout = std::chrono::seconds(100));

 private:
  struct Rank {
    pid_t pid = -1;
    int fd = -1;
    int pidfd = -1;
    bool ended = false;
    std::string result;
    bool has_result = false;
  };
  static void RunChild(uint32_t rank, int fd, const Body& body);
  // False at the end of the rank's messages.
  bool Read(Rank* rank, int timeout_ms, std::string* report, bool* timed_out);
  void Reap(Rank* rank);

  std::vector<Rank> ranks_;
};

// All ranks, from start to end.
std::vector<std::string> RunRanks(uint32_t count, RankProcesses::Body body,
                                  std::chrono::milliseconds timeout = std::chrono::seconds(100));

}  // namespace qrd::testing
