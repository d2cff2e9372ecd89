// SPDX-License-Identifier: Apache-2.0
// Who calls: the kernel's word (SO_PEERCRED, SO_PEERGROUPS) for each connection of the control
// socket.
//
// gRPC shows no credentials of a unix socket, but the peer() of a connection that it got by
// descriptor is "fd:N". The table is filled before gRPC sees the descriptor.
//
// Invariant: the entry of N is right while a call of that connection lives. A call's stream holds a
// reference on its transport, and gRPC closes the descriptor only with the last of those, so that N
// cannot be another connection before the call is over. Look up inside the handler, never later.
//
// Thread safety: all functions from any thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/telemetry/metrics.h"

namespace qrd {

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  bool is_admin = false;
};

// Who may call what: uid 0, the daemon's uid, and members of `admin_group` (if there is one) at the
// time when they connected. INTERNAL if the kernel does not tell.
absl::StatusOr<Peer> IdentifyPeer(int fd, std::optional<gid_t> admin_group);

class PeerTable {
 public:
  // More connections than this are refused; what others than admins may have leaves room for
  // admins.
  static constexpr size_t kConnectionsMax = 256;
  static constexpr size_t kStrangerConnectionsMax = 224;
  // Of one uid that is no admin's: it cannot lock out the others.
  static constexpr size_t kUidConnectionsMax = 64;

  explicit PeerTable(Metrics* metrics) : metrics_(metrics) {}

  // Before gRPC gets the descriptor. RESOURCE_EXHAUSTED if there are too many connections.
  absl::Status Add(int fd, const Peer& peer);
  // INTERNAL if peer_text is not that of a connection in the table.
  absl::StatusOr<Peer> Find(const std::string& peer_text) const;
  // The caller if it is an admin, else PERMISSION_DENIED (counted and logged). `action` for the
  // text: "set the policy".
  absl::StatusOr<Peer> Authorize(const std::string& peer_text, const std::string& action) const;

 private:
  struct Entry {
    Peer peer;
    ino_t inode = 0;  // of the socket: tells whether gRPC has closed it
  };
  size_t CountOf(uid_t uid) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Metrics* const metrics_;
  mutable Mutex mu_;
  std::map<int, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace qrd
