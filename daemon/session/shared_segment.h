// SPDX-License-Identifier: Apache-2.0
// A memfd of fixed size that the daemon makes, maps and seals before any client sees it.
//
// Thread safety: as a plain value. Ownership: owns descriptor and mapping; CloseFd() gives up the
// descriptor only (the mapping stays).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"

namespace qrd {

class SharedSegment {
 public:
  // Zeroed and physically reserved. `name` shows up in /proc/PID/maps. RESOURCE_EXHAUSTED names the
  // call that failed.
  static absl::StatusOr<SharedSegment> Create(const char* name, uint64_t bytes);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  // No more change of size, nor of seals; with read_only_for_others no new writable mapping either.
  absl::Status Seal(bool read_only_for_others);

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.reset(); }

 private:
  SharedSegment(UniqueFd fd, std::byte* data, uint64_t bytes)
      : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  UniqueFd fd_;
  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace qrd
