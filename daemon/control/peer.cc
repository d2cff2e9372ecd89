// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/peer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/file.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/names.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

// Inode of an open socket; 0 if the descriptor is something else or closed.
ino_t SocketInode(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

absl::StatusOr<std::vector<gid_t>> PeerGroups(int fd) {
  std::vector<gid_t> groups(64);
  while (true) {
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
      groups.resize(bytes / sizeof(gid_t));
      return groups;
    }
    // The kernel tells the size that it wants; a process has at most 65536 groups.
    if (errno != ERANGE || groups.size() >= 65536) return ErrnoError(errno, "SO_PEERGROUPS");
    groups.resize(std::max<size_t>(bytes / sizeof(gid_t), groups.size() * 2));
  }
}

}  // namespace

absl::StatusOr<Peer> IdentifyPeer(int fd, std::optional<gid_t> admin_group) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return ErrnoError(errno, "SO_PEERCRED");
  }
  Peer peer{credentials.pid, credentials.uid, credentials.uid == 0 || credentials.uid == geteuid()};
  if (peer.is_admin || !admin_group.has_value()) return peer;
  peer.is_admin = credentials.gid == *admin_group;
  if (peer.is_admin) return peer;
  const absl::StatusOr<std::vector<gid_t>> groups = PeerGroups(fd);
  if (!groups.ok()) return groups.status();
  peer.is_admin = std::find(groups->begin(), groups->end(), *admin_group) != groups->end();
  return peer;
}

absl::Status PeerTable::Add(int fd, const Peer& peer) {
  const size_t connections_max = peer.is_admin ? kConnectionsMax : kStrangerConnectionsMax;
  MutexLock lock(&mu_);
  if (entries_.size() >= connections_max) RemoveClosed();
  if (entries_.size() >= connections_max && entries_.count(fd) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(entries_.size(), " control connections are open; at most ", connections_max));
  }
  if (!peer.is_admin && CountOf(peer.uid) >= kUidConnectionsMax) {
    RemoveClosed();
    if (const size_t open = CountOf(peer.uid); open >= kUidConnectionsMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "uid ", peer.uid, " has ", open, " control connections; at most ", kUidConnectionsMax));
    }
  }
  entries_[fd] = Entry{peer, SocketInode(fd)};
  return absl::OkStatus();
}

size_t PeerTable::CountOf(uid_t uid) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [uid](const auto& entry) {
        return !entry.second.peer.is_admin && entry.second.peer.uid == uid;
      }));
}

void PeerTable::RemoveClosed() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    it = SocketInode(it->first) == it->second.inode ? std::next(it) : entries_.erase(it);
  }
}

absl::StatusOr<Peer> PeerTable::Find(const std::string& peer_text) const {
  int fd = -1;
  if (absl::StartsWith(peer_text, "fd:") && absl::SimpleAtoi(peer_text.substr(3), &fd)) {
    MutexLock lock(&mu_);
    const auto it = entries_.find(fd);
    if (it != entries_.end()) return it->second.peer;
  }
  return absl::InternalError(absl::StrCat("no credentials for the caller ", Quoted(peer_text)));
}

absl::StatusOr<Peer> PeerTable::Authorize(const std::string& peer_text,
                                          const std::string& action) const {
  absl::StatusOr<Peer> peer = Find(peer_text);
  if (!peer.ok() || peer->is_admin) return peer;
  metrics_->RecordPermissionDenied();
  static LogLimit limit;
  WarnLimited(&limit, absl::StrCat("uid ", peer->uid, " (pid ", peer->pid, ") may not ", action));
  return absl::PermissionDeniedError(absl::StrCat("uid ", peer->uid, " may not ", action,
                                                  ": it needs uid 0, the daemon's uid ", geteuid(),
                                                  " or membership in admin_group"));
}

}  // namespace qrd
