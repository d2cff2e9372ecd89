// SPDX-License-Identifier: Apache-2.0
// Whole files in and out.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qrd::tools {

// NOT_FOUND if there is no such file, INVALID_ARGUMENT for a directory or what cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// Whether WriteFile would find a place to write, before the work that gives the text.
// INVALID_ARGUMENT.
absl::Status CheckWritable(const std::string& path);
absl::Status WriteFile(const std::string& path, absl::string_view text);

}  // namespace qrd::tools
