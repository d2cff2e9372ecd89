// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/process_team.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/interrupt.h"

namespace qrd::tools {
namespace {

using Clock = std::chrono::steady_clock;

std::string HowItEnded(pid_t pid) {
  int status = 0;
  // The socket closed, so the process is ending; a moment may pass until it can be waited for.
  for (int tries = 0; tries < 200; ++tries) {
    if (waitpid(pid, &status, WNOHANG) == pid) {
      return WIFSIGNALED(status) ? absl::StrCat("killed by signal ", WTERMSIG(status))
                                 : absl::StrCat("exit status ", WEXITSTATUS(status));
    }
    usleep(5'000);
  }
  return "it closed its socket";
}

[[noreturn]] void RunChild(const ProcessTeam::Body& body, int socket, int index, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before the line above
  InstallRankSignals();
  const int status = body(socket, index);
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessTeam>> ProcessTeam::Fork(int processes, const Body& body) {
  std::unique_ptr<ProcessTeam> team(new ProcessTeam);
  std::fflush(nullptr);  // else each child would print what the parent has buffered
  const pid_t parent = getpid();
  for (int index = 0; index < processes; ++index) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
    }
    const pid_t pid = fork();
    if (pid == 0) {
      close(pair[0]);
      for (const Member& other : team->members_) close(other.socket);
      RunChild(body, pair[1], index, parent);
    }
    close(pair[1]);
    if (pid < 0) {
      close(pair[0]);
      return absl::ResourceExhaustedError(
          absl::StrCat("fork of rank process ", index, ": ", std::strerror(errno)));
    }
    team->members_.push_back({pid, pair[0]});
  }
  return team;
}

ProcessTeam::~ProcessTeam() {
  for (const Member& member : members_) close(member.socket);
  const auto ask = Clock::now() + std::chrono::seconds(3);
  const auto insist = ask + std::chrono::seconds(1);
  bool asked = Interrupted();
  for (const Member& member : members_) {
    if (asked) kill(member.pid, SIGTERM);
  }
  for (const Member& member : members_) {
    // ECHILD: HowItEnded has waited for it.
    while (waitpid(member.pid, nullptr, WNOHANG) == 0) {
      if (!asked && Clock::now() > ask) {
        asked = true;
        for (const Member& late : members_) kill(late.pid, SIGTERM);
      }
      if (Clock::now() > insist) kill(member.pid, SIGKILL);
      usleep(2'000);
    }
  }
}

absl::Status ProcessTeam::ReceiveOne(int index, std::span<std::byte> reply) {
  const ssize_t got = recv(members_[index].socket, reply.data(), reply.size(), 0);
  if (got == static_cast<ssize_t>(reply.size())) return absl::OkStatus();
  if (got < 0 && errno == EINTR) return absl::CancelledError("interrupted");
  return absl::UnavailableError(
      absl::StrCat("rank process ", index, " ended: ", HowItEnded(members_[index].pid)));
}

absl::Status ProcessTeam::Ask(int members,
                              const std::function<std::span<const std::byte>(int)>& request,
                              std::span<std::byte> replies, size_t reply_bytes,
                              std::chrono::milliseconds timeout) {
  for (int i = 0; i < members; ++i) {
    const std::span<const std::byte> bytes = request(i);
    if (send(members_[i].socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
      return absl::UnavailableError(
          absl::StrCat("rank process ", i, " ended: ", HowItEnded(members_[i].pid)));
    }
  }
  std::vector<pollfd> waiting;
  for (int i = 0; i < members; ++i) waiting.push_back({members_[i].socket, POLLIN, 0});
  const auto deadline = Clock::now() + timeout;
  for (int missing = members; missing > 0;) {
    if (Interrupted()) return absl::CancelledError("interrupted");
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      std::string names;
      for (int i = 0; i < members; ++i) {
        if (waiting[i].fd >= 0) absl::StrAppend(&names, names.empty() ? "" : ", ", i);
      }
      return absl::DeadlineExceededError(
          absl::StrCat("no reply from rank process ", names, " within ", timeout.count(), " ms"));
    }
    // A signal may come just before poll(): look at the flag at least every 100 ms.
    if (poll(waiting.data(), waiting.size(), static_cast<int>(std::min<int64_t>(left, 100))) <= 0) {
      continue;
    }
    for (int i = 0; i < members; ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      const absl::Status status = ReceiveOne(i, replies.subspan(i * reply_bytes, reply_bytes));
      if (!status.ok()) return status;
      waiting[i].fd = -1;
      --missing;
    }
  }
  return absl::OkStatus();
}

bool ReceiveRequest(int socket, std::span<std::byte> request) {
  ssize_t got;
  do {
    got = recv(socket, request.data(), request.size(), 0);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(request.size());
}

bool SendReply(int socket, std::span<const std::byte> reply) {
  return send(socket, reply.data(), reply.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(reply.size());
}

SharedMemory::SharedMemory(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace qrd::tools
