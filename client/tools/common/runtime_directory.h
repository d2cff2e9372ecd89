// SPDX-License-Identifier: Apache-2.0
// Finds the daemon's runtime directory and says why a socket in it cannot be reached.
//
// Thread safety: functions read the environment; otherwise pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace qrd::tools {

// The directory that `flag` names, else $QRD_RUNTIME_DIRECTORY, else the first of /run/qrd and
// $XDG_RUNTIME_DIR/qrd that holds a control socket. UNAVAILABLE says where it looked.
absl::StatusOr<std::string> FindRuntimeDirectory(const std::string& flag);

// A connected, non-blocking, close-on-exec stream socket to <directory>/control.sock. UNAVAILABLE
// (no daemon) and PERMISSION_DENIED say what to do next.
absl::StatusOr<int> ConnectControlSocket(const std::string& directory);

}  // namespace qrd::tools
