// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/directories.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/file.h"
#include "daemon/base/names.h"

namespace qrd {
namespace {

constexpr mode_t kDirectoryMode = 0750;
constexpr char kLockName[] = "qrd.lock";

// True if the directory was made here.
absl::StatusOr<bool> MakeDirectory(const std::string& field, const std::string& path,
                                   const std::string& hint) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("cannot create ", field, " ", path, ": ",
                                                    parent, ": ", error.message(), "; ", hint));
  }
  if (mkdir(path.c_str(), kDirectoryMode) == 0) return true;
  const int mkdir_error = errno;
  struct stat status;
  if (mkdir_error == EEXIST && stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return false;
    return absl::FailedPreconditionError(absl::StrCat(field, " ", path, " is not a directory"));
  }
  return ErrnoError(mkdir_error, absl::StrCat("cannot create ", field, " ", path, " (", hint, ")"));
}

// What everybody can write to is refused: `danger` says what they could do there.
absl::Status CheckNotWorldWritable(const std::string& field, const std::string& path,
                                   const std::string& danger, const std::string& flag) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot stat ", path));
  }
  if ((status.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(field, " ", path, " can be written by everybody, who could then replace ",
                   danger, " in it; chmod o-w it, or choose another with ", flag));
}

}  // namespace

absl::Status GiveToGroup(const std::string& path, gid_t group) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot stat ", path));
  }
  // A sandbox may forbid the call itself.
  if (status.st_gid == group || lchown(path.c_str(), -1, group) == 0) return absl::OkStatus();
  return ErrnoError(
      errno,
      absl::StrCat("cannot give ", path, " to group ", group,
                   " (attach_group; the daemon's user must be a member of it, and chown must "
                   "be allowed, or that be the group that the daemon runs with)"));
}

absl::Status PrepareRuntimeDirectory(const std::string& path, std::optional<gid_t> group) {
  auto made = MakeDirectory("runtime_directory", path,
                            "choose another with --runtime-directory, or create it");
  if (!made.ok()) return made.status();
  if (absl::Status checked =
          CheckNotWorldWritable("runtime_directory", path, "the sockets", "--runtime-directory");
      !checked.ok()) {
    return checked;
  }
  struct stat status;
  if (stat(path.c_str(), &status) != 0)
    return ErrnoError(errno, absl::StrCat("cannot stat ", path));
  if (status.st_uid != geteuid()) return absl::OkStatus();  // its owner decides
  if (group.has_value()) {
    if (absl::Status given = GiveToGroup(path, *group); !given.ok()) return given;
  }
  // After chown; mkdir's mode was cut by the umask.
  if ((*made || group.has_value()) && chmod(path.c_str(), kDirectoryMode) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot chmod runtime_directory ", path));
  }
  return absl::OkStatus();
}

absl::Status PrepareStateDirectory(const std::string& path) {
  auto made =
      MakeDirectory("state_directory", path, "choose another with --state-directory, or create it");
  if (!made.ok()) return made.status();
  if (absl::Status checked =
          CheckNotWorldWritable("state_directory", path, "the policy", "--state-directory");
      !checked.ok()) {
    return checked;
  }
  // mkdir's mode was cut by the umask.
  if (*made && chmod(path.c_str(), kDirectoryMode) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot chmod state_directory ", path));
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot write to state_directory ", path,
                                          " (choose another with --state-directory)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, int type, std::optional<gid_t> group) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", Quoted(path, 40), " has ",
                                                   path.size(), " bytes; at most ",
                                                   sizeof(address.sun_path) - 1));
  }
  memcpy(address.sun_path, path.data(), path.size());
  struct stat status;
  if (lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " exists and is not a socket; remove it"));
    }
    if (unlink(path.c_str()) != 0) {
      return ErrnoError(errno, absl::StrCat("cannot remove the stale socket ", path));
    }
  }
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, absl::StrCat("cannot create a socket for ", path));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot bind ", path));
  }
  // Until listen() every connect() is refused: the umask does not matter.
  if (group.has_value()) {
    if (absl::Status given = GiveToGroup(path, *group); !given.ok()) return given;
  }
  if (chmod(path.c_str(), 0660) != 0) return ErrnoError(errno, absl::StrCat("cannot chmod ", path));
  if (listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot listen on ", path));
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<LockFile>> LockFile::Acquire(const std::string& directory,
                                                            const char* flag) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!fd.valid()) return ErrnoError(errno, absl::StrCat("cannot open the lock file ", path));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError(errno, absl::StrCat("cannot lock ", path));
    char text[32] = {};
    const ssize_t n = pread(fd.get(), text, sizeof(text) - 1, 0);
    const std::string pid(absl::StripAsciiWhitespace(std::string(text, n > 0 ? n : 0)));
    return absl::FailedPreconditionError(
        absl::StrCat("another qrd (pid ", pid.empty() ? "unknown" : pid, ") runs with ", directory,
                     "; stop it first, or choose another directory with ", flag));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoError(errno, absl::StrCat("cannot write ", path));
  }
  return std::unique_ptr<LockFile>(new LockFile(std::move(fd)));
}

}  // namespace qrd
