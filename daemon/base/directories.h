// SPDX-License-Identifier: Apache-2.0
// The runtime directory (sockets and lock), the state directory, and the lock that keeps a second
// daemon off them. Thread safety: any thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace qrd {

// Gives what is at `path` to the group, if it does not have it.
absl::Status GiveToGroup(const std::string& path, gid_t group);

// Makes the directory and its parents if needed, with mode 0750 and the given group. One that
// exists keeps its mode but is refused if others may write to it, as they could swap the sockets;
// its group and mode are set if it belongs to the daemon's user.
absl::Status PrepareRuntimeDirectory(const std::string& path, std::optional<gid_t> group);
// The same with the daemon's group: others could swap the policy. Checks that files can be made in
// it.
absl::Status PrepareStateDirectory(const std::string& path);

// Binds and listens on a unix socket of the runtime directory: mode 0660, the given group, nobody
// can connect before both are set. The caller holds the LockFile, so a socket that is there already
// is stale and is replaced; FAILED_PRECONDITION for anything else of that name. Non-blocking.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int type, std::optional<gid_t> group);

// Held as long as the daemon runs. Released by the kernel when the process dies, however it dies;
// the file stays, since removing it would let two daemons lock two different files of one name.
class LockFile {
 public:
  // FAILED_PRECONDITION at once if another process holds it, naming its pid and the flag that
  // chooses another directory. The runtime directory's before touching any socket: a second server
  // would silently take over the path of the first; the state directory's before reading it.
  static absl::StatusOr<std::unique_ptr<LockFile>> Acquire(
      const std::string& directory, const char* flag = "--runtime-directory");

 private:
  explicit LockFile(UniqueFd fd) : fd_(std::move(fd)) {}
  const UniqueFd fd_;
};

}  // namespace qrd
