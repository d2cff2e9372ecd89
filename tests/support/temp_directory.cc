// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_directory.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace qrd::testing {

TempDirectory::TempDirectory() {
  char path[] = "/tmp/qrd-test-XXXXXX";
  if (mkdtemp(path) == nullptr) {
    std::perror("mkdtemp /tmp/qrd-test-XXXXXX");
    std::abort();
  }
  path_ = path;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace qrd::testing
