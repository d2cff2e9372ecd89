// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace qrd {

absl::StatusOr<SharedSegment> SharedSegment::Create(const char* name, uint64_t bytes) {
  const auto failed = [&](const char* call) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("shared segment of %d bytes: %s: %s", bytes, call, std::strerror(errno)));
  };
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failed("memfd_create");
  // Reserved now: a page that cannot be had later would be a SIGBUS in the engine.
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) return failed("fallocate");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  return SharedSegment(std::move(fd), static_cast<std::byte*>(data), bytes);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::Status SharedSegment::Seal(bool read_only_for_others) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (read_only_for_others) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(fd_.get(), F_ADD_SEALS, seals) != 0) {
    return absl::InternalError(absl::StrFormat("F_ADD_SEALS: %s", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace qrd
