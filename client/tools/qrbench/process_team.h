// SPDX-License-Identifier: Apache-2.0
// A set of forked processes, one a rank, each with a SOCK_SEQPACKET socket to the parent. The
// parent sends a request to some of them and collects one reply from each; a process that ends
// meanwhile is an error with its number and its signal, never a wait.
//
// Fork before the process has threads or a gRPC channel: the bodies use malloc and libqrd.
//
// Thread safety: one thread. Ownership: the destructor ends the processes (SIGTERM, then SIGKILL)
// and waits for them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace qrd::tools {

class ProcessTeam {
 public:
  // `body(socket, index)` runs in each child; its result is the exit status.
  using Body = std::function<int(int socket, int index)>;
  static absl::StatusOr<std::unique_ptr<ProcessTeam>> Fork(int processes, const Body& body);
  ~ProcessTeam();
  ProcessTeam(const ProcessTeam&) = delete;
  ProcessTeam& operator=(const ProcessTeam&) = delete;

  int count() const { return static_cast<int>(members_.size()); }

  // Sends one request and receives a reply of reply_bytes from each of the first `members`
  // processes into replies[i * reply_bytes]. CANCELLED if the user interrupted; UNAVAILABLE if a
  // process ended; DEADLINE_EXCEEDED.
  absl::Status Ask(int members, const std::function<std::span<const std::byte>(int)>& request,
                   std::span<std::byte> replies, size_t reply_bytes,
                   std::chrono::milliseconds timeout);

  // Asks with one plain struct for all and a vector of structs back.
  template <typename Reply, typename Request>
  absl::StatusOr<std::vector<Reply>> AskAll(int members, const Request& request,
                                            std::chrono::milliseconds timeout) {
    std::vector<Reply> replies(static_cast<size_t>(members));
    absl::Status status = Ask(
        members, [&](int) { return std::as_bytes(std::span(&request, 1)); },
        std::as_writable_bytes(std::span(replies)), sizeof(Reply), timeout);
    if (!status.ok()) return status;
    return replies;
  }

 private:
  struct Member {
    pid_t pid = -1;
    int socket = -1;
  };
  ProcessTeam() = default;
  absl::Status ReceiveOne(int index, std::span<std::byte> reply);

  std::vector<Member> members_;
};

// Child side. False when the parent has gone or sent something of another size.
bool ReceiveRequest(int socket, std::span<std::byte> request);
bool SendReply(int socket, std::span<const std::byte> reply);

// Zeroed memory that forked processes share, or nullptr. Pages are taken when first touched.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  std::byte* data_;
};

}  // namespace qrd::tools
