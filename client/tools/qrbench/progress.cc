// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/progress.h"

#include <unistd.h>

#include <cstdio>

namespace qrd::tools {
namespace {

bool g_shown = false;

}  // namespace

void Progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s ...", text.c_str());
  g_shown = true;
}

void ClearProgress() {
  if (g_shown) std::fputs("\r\033[K", stderr);
  g_shown = false;
}

}  // namespace qrd::tools
