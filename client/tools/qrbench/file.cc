// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace qrd::tools {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  const size_t got = std::fread(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  if (got != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": read ", got, " of ", bytes.size(), " bytes"));
  }
  return bytes;
}

absl::Status CheckWritable(const std::string& path) {
  struct stat info = {};
  const bool there = stat(path.c_str(), &info) == 0;
  const std::string parent = std::filesystem::path(path).parent_path().string();
  int error = 0;
  if (there && S_ISDIR(info.st_mode)) {
    error = EISDIR;
  } else if (access(there ? path.c_str() : (parent.empty() ? "." : parent.c_str()), W_OK) != 0) {
    error = errno;
  }
  if (error == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": cannot write: ", std::strerror(error)));
}

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot write: ", std::strerror(errno)));
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot write: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace qrd::tools
