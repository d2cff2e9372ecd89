// SPDX-License-Identifier: Apache-2.0
// Small files on disk: read whole, replace atomically.
// Thread safety: any thread; writers of one path must exclude each other.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace qrd {

// NOT_FOUND if there is no such file; INVALID_ARGUMENT if it has more than bytes_max bytes or is
// not a regular file; else an error that names path and errno.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max);

// Writes path + ".tmp" (mode 0640), fsyncs, renames it over `path`, fsyncs the directory. On an
// error the old file is as it was (RESOURCE_EXHAUSTED if the disk is full). Blocks on the disk.
absl::Status ReplaceFile(const std::string& path, const std::string& contents);

// An error with errno's text: "what: No such file or directory". The code follows from errno.
absl::Status ErrnoError(int error, const std::string& what);

}  // namespace qrd
