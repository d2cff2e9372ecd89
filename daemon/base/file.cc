// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/unique_fd.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

absl::Status WriteAndSync(const std::string& path, const std::string& contents) {
  const UniqueFd fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (fd.get() < 0) return ErrnoError(errno, absl::StrCat("cannot create ", path));
  size_t done = 0;
  while (done < contents.size()) {
    const ssize_t n = write(fd.get(), contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, absl::StrCat("cannot write ", path));
    done += static_cast<size_t>(n);
  }
  if (fsync(fd.get()) != 0) return ErrnoError(errno, absl::StrCat("cannot fsync ", path));
  return absl::OkStatus();
}

}  // namespace

absl::Status ErrnoError(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    case EEXIST:
    case EADDRINUSE:
      return absl::AlreadyExistsError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  // O_NONBLOCK: a FIFO in the file's place must not block the daemon.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ErrnoError(errno, absl::StrCat("cannot read ", path));
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return ErrnoError(errno, absl::StrCat("cannot stat ", path));
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  std::string contents;
  char buffer[16384];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, absl::StrCat("cannot read ", path));
    if (n == 0) return contents;
    contents.append(buffer, static_cast<size_t>(n));
    if (contents.size() > bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", bytes_max, " bytes"));
    }
  }
}

absl::Status ReplaceFile(const std::string& path, const std::string& contents) {
  const std::string temporary = path + ".tmp";
  if (absl::Status status = WriteAndSync(temporary, contents); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = ErrnoError(errno, absl::StrCat("cannot rename ", temporary));
    unlink(temporary.c_str());
    return status;
  }
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || fsync(fd.get()) != 0) {
    // The new file is in place for everyone who looks; only a power cut could bring the old one
    // back.
    spdlog::warn("cannot fsync {}: {}", directory, strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace qrd
