// SPDX-License-Identifier: Apache-2.0
// The stream segment of a session (proto/shm/layout.h), mapped and checked.
//
// Thread safety: immutable after Map; who may write which word: layout.h.
// Ownership: owns the mapping. A forked child does not get it: its pages are pinned for a device.
#pragma once

#include "client/core/segment.h"
#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

class StreamSegment {
 public:
  qrd_status Map(int fd, uint64_t bytes, uint32_t entry_count);
  // Leaves the pages mapped until the process ends: a device may still use them.
  void Leak();

  uint32_t entry_count() const { return entry_count_; }
  std::byte* data() const { return mapping_.data(); }
  size_t bytes() const { return mapping_.bytes(); }
  shm::StreamHeader* header() const {
    return reinterpret_cast<shm::StreamHeader*>(mapping_.data());
  }
  shm::StreamEntry* entry(uint32_t index) const {
    return reinterpret_cast<shm::StreamEntry*>(mapping_.data() + shm::kStreamEntryOffsetBytes) +
           index;
  }

 private:
  Mapping mapping_;
  uint32_t entry_count_ = 0;
};

}  // namespace qrd::client
