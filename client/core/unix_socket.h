// SPDX-License-Identifier: Apache-2.0
// The client's end of the attach socket: requests and replies as packets, descriptors beside them.
// The held connection is the session; the daemon's death shows as a hang-up.
//
// Thread safety: Connect and Call from one thread at a time (the caller locks); HungUp from any
// thread at any time. Ownership: owns the connection; received descriptors belong to the caller,
// are close-on-exec, and are closed when a call fails.
//
// Invariants
//   1. No function waits past its deadline, and none raises SIGPIPE.
//   2. After a Call that timed out or was torn, request and reply no longer match: the connection
//   is
//      shut down and every later Call fails with QRD_DAEMON_LOST.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/core/unique_fd.h"
#include "qrd/qrd.h"
#include "qrd/v1/attach.pb.h"

namespace qrd::client {

inline constexpr size_t kMessageBytesMax = 4096;
inline constexpr size_t kDescriptorsMax = 8;  // more in one packet are an error

class UnixSocket {
 public:
  // QRD_UNAVAILABLE if nobody listens at the path, QRD_PERMISSION_DENIED, QRD_TIMEOUT,
  // QRD_INVALID_ARGUMENT if the path is too long for a socket address.
  qrd_status Connect(const std::string& path, uint64_t deadline_ns);

  // Sends a request and waits for its reply. An AttachError becomes its status and text. `what`
  // names the request in errors, `want_fds` is the number of descriptors that must come along.
  qrd_status Call(const v1::ClientMessage& request, const char* what,
                  v1::ServerMessage::MessageCase want, size_t want_fds, uint64_t deadline_ns,
                  v1::ServerMessage* reply, std::vector<UniqueFd>* fds);

  // True once the daemon has closed the connection (or died). One poll, never blocks.
  bool HungUp() const;

  // What the daemon said before it closed the connection on its own initiative, if anything. Only
  // after HungUp, and not during a Call. Never blocks.
  bool LastWords(qrd_status* status, std::string* text);
  // Something was: the status of the call that failed is the daemon's own. As for Call.
  bool spoke() const { return spoke_; }

  // Ends the connection for both sides; the descriptor stays, so that others may still poll it.
  // From any thread.
  void Shutdown() const;

  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

 private:
  qrd_status Send(const std::string& bytes, const char* what, uint64_t deadline_ns);
  qrd_status Receive(const char* what, uint64_t deadline_ns, v1::ServerMessage* reply,
                     std::vector<UniqueFd>* fds);
  // Shuts the connection down (invariant 2) and returns `status`, whose text is set.
  qrd_status Break(qrd_status status);

  UniqueFd fd_;
  bool broken_ = false;
  bool spoke_ = false;
};

}  // namespace qrd::client
