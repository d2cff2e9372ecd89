// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/groups.h"

#include <errno.h>
#include <grp.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/file.h"
#include "daemon/base/names.h"

namespace qrd {

absl::StatusOr<gid_t> FindGroup(const std::string& name) {
  if (name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("a group name has a NUL byte");
  }
  uint32_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return static_cast<gid_t>(number);
  struct group entry;
  struct group* found = nullptr;
  std::vector<char> buffer(1024);
  int error = 0;
  while ((error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) ==
             ERANGE &&
         buffer.size() < (1u << 20)) {
    buffer.resize(buffer.size() * 4);
  }
  if (found != nullptr) return found->gr_gid;
  if (error != 0 && error != ENOENT) {
    return ErrnoError(error, absl::StrCat("cannot look up group ", Quoted(name)));
  }
  return absl::NotFoundError(absl::StrCat("there is no group ", Quoted(name), " on this machine"));
}

}  // namespace qrd
