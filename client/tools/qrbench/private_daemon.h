// SPDX-License-Identifier: Apache-2.0
// A daemon for one benchmark run: own temporary runtime and state directory, metrics off.
//
// Thread safety: one thread. Ownership: the destructor stops the daemon and removes its directory.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace qrd::tools {

class PrivateDaemon {
 public:
  // `program` is the path of qrd; "" looks beside this program, in the build tree, then in $PATH.
  // Returns when the daemon accepts connections, at the latest after 15 s. Errors carry the end of
  // its log.
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(const std::string& program);
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  const std::string& runtime_directory() const { return directory_; }

 private:
  explicit PrivateDaemon(std::string directory) : directory_(std::move(directory)) {}
  absl::Status Spawn(const std::string& program);
  absl::Status WaitUntilReady();
  std::string LogTail() const;

  const std::string directory_;
  pid_t pid_ = -1;
};

}  // namespace qrd::tools
