// SPDX-License-Identifier: Apache-2.0
// A unique directory that goes with the object. Short enough for a socket path.
#pragma once

#include <string>

namespace qrd::testing {

class TempDirectory {
 public:
  TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory();

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace qrd::testing
