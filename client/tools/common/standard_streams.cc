// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/tools/common/exit_codes.h"

namespace qrd::tools {
namespace {

int g_output_error = 0;  // the first one: a later flush of an emptied buffer succeeds

void Note(bool printed) {
  if (!printed && g_output_error == 0) g_output_error = errno;
}

// Input and output are opened the wrong way round, so that using them fails. Nothing is set up yet
// when this runs, the sanitizers neither.
__attribute__((no_sanitize("address", "thread", "undefined"))) void OpenMissing(int, char**,
                                                                                char**) {
  for (int fd = 0; fd <= 2; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) != -1) continue;
    // The lowest free number, that is `fd`.
    if (syscall(SYS_openat, AT_FDCWD, "/dev/null", fd == 1 ? O_RDONLY : O_WRONLY) != fd) {
      _exit(kExitFailed);
    }
  }
}

// Before the constructors of libraries: libgrpc's open a descriptor.
__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeLibraries)(int, char**, char**) = &OpenMissing;

}  // namespace

void Print(absl::string_view text) {
  Note(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void PrintNow(std::FILE* out, absl::string_view text) {
  Note(std::fwrite(text.data(), 1, text.size(), out) == text.size());
  Note(std::fflush(out) == 0);
}

bool OutputIsLost() {
  if (std::ferror(stdout) != 0) return true;
  pollfd output = {STDOUT_FILENO, 0, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

int FinishOutput(absl::string_view tool, int code) {
  Note(std::fflush(stdout) == 0);
  if (std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "%.*s: error: cannot write the result to standard output: %s\n",
               static_cast<int>(tool.size()), tool.data(),
               g_output_error == 0 ? "a part of it was not taken" : std::strerror(g_output_error));
  return code == kExitOk ? kExitFailed : code;
}

}  // namespace qrd::tools
