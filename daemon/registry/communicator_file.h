// SPDX-License-Identifier: Apache-2.0
// The communicators on disk: <state_directory>/communicators.textproto, a ListCommunicatorsResponse
// with the fields that a request may set and create_time.
// Thread safety: the callers exclude each other. Both functions block on the disk.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "qrd/v1/communicator.pb.h"

namespace qrd {

// Empty if there is no file. INVALID_ARGUMENT names file and line.
absl::StatusOr<v1::ListCommunicatorsResponse> LoadCommunicators(const std::string& path);

// Moves a file that makes no sense out of the way, with a warning that says why.
absl::Status SetAsideCommunicators(const std::string& path, const absl::Status& why);

// Replaces the file atomically.
absl::Status SaveCommunicators(const std::string& path, const v1::ListCommunicatorsResponse& saved);

}  // namespace qrd
