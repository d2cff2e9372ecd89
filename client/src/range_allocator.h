// SPDX-License-Identifier: Apache-2.0
// Which parts of one range of bytes are in use: first fit over the free parts, which are merged
// when they touch. Knows offsets only; the memory is elsewhere (a device's, so nothing can be
// written into it).
//
// Thread safety: none, the owner locks. Ownership: none.
//
// Invariants
//   1. Blocks begin at multiples of kAlignmentBytes and do not overlap.
//   2. No two free parts touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace qrd::client {

class RangeAllocator {
 public:
  static constexpr uint64_t kAlignmentBytes = 256;

  explicit RangeAllocator(uint64_t bytes);

  // 1 byte or more. False if no free part is large enough. May throw std::bad_alloc (nothing
  // changed then).
  bool Allocate(uint64_t bytes, uint64_t* offset);
  // False if no block begins there.
  bool Free(uint64_t offset);

  bool empty() const { return used_.empty(); }
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  uint64_t used_bytes_ = 0;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes
  std::map<uint64_t, uint64_t> used_;
};

}  // namespace qrd::client
