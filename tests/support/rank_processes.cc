// SPDX-License-Identifier: Apache-2.0
// Messages between test and rank are packets of a SOCK_SEQPACKET pair: a kind byte, then the text.
#include "tests/support/rank_processes.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kTextBytesMax = 32 << 10;
constexpr char kReport = 'r';
constexpr char kResult = 'e';

void SendPacket(int fd, char kind, const std::string& text) {
  std::string packet(1, kind);
  packet.append(text, 0, kTextBytesMax);
  while (send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// Failed EXPECTs of the current test from part `first` on.
std::string Failures(int first) {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return "";
  std::string text;
  const ::testing::TestResult& result = *info->result();
  for (int i = first; i < result.total_part_count(); ++i) {
    const ::testing::TestPartResult& part = result.GetTestPartResult(i);
    if (!part.failed()) continue;
    if (!text.empty()) text += "\n";
    text += std::string(part.file_name() == nullptr ? "?" : part.file_name()) + ":" +
            std::to_string(part.line_number()) + ": " + part.message();
  }
  return text;
}

int PartCount() {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return info == nullptr ? 0 : info->result()->total_part_count();
}

}  // namespace

void RankProcess::Report(const std::string& text) const { SendPacket(fd_, kReport, text); }

std::string RankProcess::Await() const {
  char bytes[kTextBytesMax + 1];
  ssize_t received;
  do {
    received = recv(fd_, bytes, sizeof(bytes), 0);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) _exit(125);
  return std::string(bytes + 1, static_cast<size_t>(received) - 1);
}

void RankProcess::Await(const std::string& text) const { EXPECT_EQ(Await(), text); }

void RankProcesses::RunChild(uint32_t rank, int fd, const Body& body) {
  const int first = PartCount();
  RankProcess self(rank, fd);
  std::string result = body(self);
  const std::string failures = Failures(first);
  if (!failures.empty()) result += (result.empty() ? "" : "\n") + failures;
  SendPacket(fd, kResult, result);
  // Not exit: what the parent made (daemons, directories) is not the child's to take down.
  std::fflush(nullptr);
  _exit(0);
}

RankProcesses::RankProcesses(uint32_t count, Body body) : ranks_(count) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  for (uint32_t rank = 0; rank < count; ++rank) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
      std::perror("socketpair");
      std::abort();
    }
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      std::abort();
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(126);
      close(fds[0]);
      for (uint32_t other = 0; other < rank; ++other) {
        close(ranks_[other].fd);
        close(ranks_[other].pidfd);
      }
      RunChild(rank, fds[1], body);
    }
    close(fds[1]);
    ranks_[rank].pid = child;
    ranks_[rank].pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    ranks_[rank].fd = fds[0];
  }
}

RankProcesses::~RankProcesses() {
  for (Rank& rank : ranks_) {
    if (rank.pid > 0 && !rank.ended) {
      kill(rank.pid, SIGKILL);
      Reap(&rank);
    }
    if (rank.fd >= 0) close(rank.fd);
    if (rank.pidfd >= 0) close(rank.pidfd);
  }
}

void RankProcesses::Signal(uint32_t rank, int signal) const {
  if (!ranks_[rank].ended) kill(ranks_[rank].pid, signal);
}

void RankProcesses::Send(uint32_t rank, const std::string& text) const {
  SendPacket(ranks_[rank].fd, kReport, text);
}

void RankProcesses::SendAll(const std::string& text) const {
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) Send(rank, text);
}

bool RankProcesses::Read(Rank* rank, int timeout_ms, std::string* report, bool* timed_out) {
  // The end of the process counts, not of the connection: a child of the rank may still hold that.
  pollfd entries[2] = {{rank->fd, POLLIN, 0}, {rank->pidfd, POLLIN, 0}};
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  int ready;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    ready = poll(entries, 2, left < 0 ? 0 : static_cast<int>(left));
  } while (ready < 0 && errno == EINTR);
  *timed_out = ready == 0;
  if (ready <= 0) return false;
  std::string bytes(kTextBytesMax + 1, '\0');
  // What was sent before the end comes first.
  const ssize_t received = recv(rank->fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received <= 0) return false;
  bytes.resize(static_cast<size_t>(received));
  if (bytes[0] == kResult) {
    rank->result = bytes.substr(1);
    rank->has_result = true;
    return false;
  }
  *report = bytes.substr(1);
  return true;
}

void RankProcesses::Reap(Rank* rank) {
  int status = 0;
  while (waitpid(rank->pid, &status, 0) < 0 && errno == EINTR) {
  }
  rank->ended = true;
  std::string end;
  if (WIFSIGNALED(status)) {
    end = "killed by signal " + std::to_string(WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    end = "exit code " + std::to_string(WEXITSTATUS(status));
  } else if (!rank->has_result) {
    end = "ended without a result";
  }
  if (!end.empty()) rank->result += (rank->result.empty() ? "" : "; ") + end;
}

std::string RankProcesses::AwaitReport(uint32_t rank, std::chrono::milliseconds timeout) {
  std::string report;
  bool timed_out = false;
  if (Read(&ranks_[rank], static_cast<int>(timeout.count()), &report, &timed_out)) return report;
  return timed_out ? "(timeout)" : "(ended) " + ranks_[rank].result;
}

std::vector<std::string> RankProcesses::Wait(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::vector<std::string> results;
  for (Rank& rank : ranks_) {
    bool timed_out = false;
    if (!rank.ended) {
      std::string ignored;
      for (bool more = !rank.has_result; more;) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        more = Read(&rank, left < 0 ? 0 : static_cast<int>(left), &ignored, &timed_out);
      }
      if (timed_out) {
        kill(rank.pid, SIGKILL);
        rank.result = "not done in time";
      }
      Reap(&rank);
    }
    results.push_back(rank.result);
  }
  return results;
}

std::vector<std::string> RunRanks(uint32_t count, RankProcesses::Body body,
                                  std::chrono::milliseconds timeout) {
  RankProcesses ranks(count, std::move(body));
  return ranks.Wait(timeout);
}

}  // namespace qrd::testing
