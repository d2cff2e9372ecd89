// SPDX-License-Identifier: Apache-2.0
#include "client/core/ring.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace qrd::client {

void RingProducer::Ring() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the engine has been woken already. Any other error means that
  // the daemon is gone, which the waiting side finds out.
  while (write(doorbell_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

bool PrepareDoorbell(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return false;
  if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || S_ISREG(info.st_mode)) return false;
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace qrd::client
