// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/runtime_directory.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace qrd::tools {
namespace {

constexpr char kSystemDirectory[] = "/run/qrd";
constexpr char kSocketName[] = "control.sock";

std::string SocketPath(const std::string& directory) {
  return absl::StrCat(directory, "/", kSocketName);
}

std::string HowToStart(const std::string& directory) {
  return absl::StrCat("start it with 'systemctl start qrd' or 'qrd --runtime-directory ", directory,
                      "', or name another directory with --runtime-directory");
}

std::string GroupName(gid_t gid) {
  const group* entry = getgrgid(gid);
  return entry != nullptr ? entry->gr_name : absl::StrCat(gid);
}

absl::Status Explain(const std::string& directory, const std::string& path, int error) {
  struct stat info = {};
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::UnavailableError(
          absl::StrCat("no daemon: ", path, " does not exist; ", HowToStart(directory)));
    case ECONNREFUSED:
      return absl::UnavailableError(absl::StrCat(
          "no daemon answers at ", path, ": the socket is left over from one that has ended; ",
          HowToStart(directory)));
    case EACCES: {
      const bool known = stat(path.c_str(), &info) == 0 || stat(directory.c_str(), &info) == 0;
      return absl::PermissionDeniedError(
          absl::StrCat("permission denied on ", path, ": the daemon is open to the group ",
                       known ? GroupName(info.st_gid) : "of its configuration (attach_group)",
                       "; join that group or run this as the daemon's user"));
    }
    default:
      return absl::UnavailableError(
          absl::StrCat("cannot connect to ", path, ": ", strerror(error)));
  }
}

}  // namespace

absl::StatusOr<std::string> FindRuntimeDirectory(const std::string& flag) {
  if (!flag.empty()) return flag;
  if (const char* set = getenv("QRD_RUNTIME_DIRECTORY"); set != nullptr && *set != '\0') return set;
  std::vector<std::string> candidates = {kSystemDirectory};
  if (const char* xdg = getenv("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg != '\0') {
    candidates.push_back(absl::StrCat(xdg, "/qrd"));
  }
  for (const std::string& directory : candidates) {
    struct stat info = {};
    // A directory that may not be searched is the daemon's all the same: connecting explains it.
    if (stat(SocketPath(directory).c_str(), &info) == 0 || errno == EACCES) return directory;
  }
  return absl::UnavailableError(absl::StrCat("no daemon: no ", kSocketName, " in ",
                                             absl::StrJoin(candidates, " or "), "; ",
                                             HowToStart("DIR")));
}

absl::StatusOr<int> ConnectControlSocket(const std::string& directory) {
  const std::string path = SocketPath(directory);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("runtime directory \"", directory, "\" is ", directory.size(),
                     " bytes long, above the bound ",
                     sizeof(address.sun_path) - sizeof(kSocketName) - 1, " of socket paths"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return absl::UnavailableError(absl::StrCat("cannot make a socket: ", strerror(errno)));
  // EAGAIN: the listener's backlog is full, so a daemon is there; try for a bounded time.
  int error = 0;
  for (int tries = 0; tries < 100; ++tries) {
    error =
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
    if (error != EAGAIN && error != EINTR) break;
    usleep(10'000);
  }
  if (error == 0) return fd;
  close(fd);
  return Explain(directory, path, error);
}

}  // namespace qrd::tools
