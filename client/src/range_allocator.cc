// SPDX-License-Identifier: Apache-2.0
#include "client/src/range_allocator.h"

namespace qrd::client {
namespace {

constexpr uint64_t kMask = RangeAllocator::kAlignmentBytes - 1;

}  // namespace

RangeAllocator::RangeAllocator(uint64_t bytes) : bytes_(bytes) {
  if (bytes > 0) free_.emplace(0, bytes);
}

bool RangeAllocator::Allocate(uint64_t bytes, uint64_t* offset) {
  if (bytes == 0 || bytes > bytes_) return false;
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const uint64_t start = it->first;
    const uint64_t have = it->second;
    if (have < bytes) continue;
    // The end of the range need not be aligned: the last block takes what is there.
    const uint64_t rounded = (bytes + kMask) & ~kMask;
    const uint64_t take = rounded < have ? rounded : have;
    if (take < have) free_.emplace_hint(std::next(it), start + take, have - take);
    try {
      used_.emplace(start, take);
    } catch (...) {
      free_.erase(start + take);
      throw;
    }
    free_.erase(it);
    used_bytes_ += take;
    *offset = start;
    return true;
  }
  return false;
}

bool RangeAllocator::Free(uint64_t offset) {
  const auto block = used_.find(offset);
  if (block == used_.end()) return false;
  uint64_t start = block->first;
  uint64_t bytes = block->second;
  auto after = free_.upper_bound(start);
  // The node of the used block becomes the free one: nothing is allocated, so nothing can fail.
  auto node = used_.extract(block);
  used_bytes_ -= bytes;
  if (after != free_.end() && after->first == start + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == start) {
      before->second += bytes;
      return true;
    }
  }
  node.mapped() = bytes;
  free_.insert(std::move(node));
  return true;
}

}  // namespace qrd::client
