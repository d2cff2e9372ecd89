// SPDX-License-Identifier: Apache-2.0
#include "client/src/memory_table.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace qrd::client {

Block* MemoryTable::FindOverlap(uintptr_t start, size_t bytes) {
  if (bytes == 0) return nullptr;
  // Only the last block that begins at or before `start` can contain it; else the next one may
  // begin within the range.
  auto it = blocks_.upper_bound(start);
  if (it != blocks_.begin()) {
    Block& before = std::prev(it)->second;
    if (Within(before, start)) return &before;
  }
  if (it != blocks_.end() && it->first - start < bytes) return &it->second;
  return nullptr;
}

Block* MemoryTable::FindStart(uintptr_t start) {
  const auto it = blocks_.find(start);
  return it == blocks_.end() ? nullptr : &it->second;
}

Block* MemoryTable::Insert(Block block) {
  const uintptr_t start = block.start;
  return &blocks_.insert_or_assign(start, std::move(block)).first->second;
}

std::unique_ptr<Arena> MemoryTable::Remove(Block* block) {
  std::unique_ptr<Arena> arena = std::move(block->arena);
  blocks_.erase(block->start);
  return arena;
}

size_t MemoryTable::StagingBytes(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 4) return bytes;  // refused by the daemon anyway
  return std::max(kStagingBytesMin, std::bit_ceil(bytes));
}

std::unique_ptr<Arena> MemoryTable::TakeIdle(size_t bytes) {
  const size_t wanted = StagingBytes(bytes);
  // The newest that fits is the one whose pages are most likely still in a cache.
  for (auto it = idle_.rbegin(); it != idle_.rend(); ++it) {
    const size_t have = (*it)->bytes();
    if (have < bytes || have / 4 > wanted) continue;
    std::unique_ptr<Arena> arena = std::move(*it);
    idle_.erase(std::next(it).base());
    idle_bytes_ -= have;
    return arena;
  }
  return nullptr;
}

void MemoryTable::PutIdle(std::unique_ptr<Arena> arena) {
  idle_bytes_ += arena->bytes();
  idle_.push_back(std::move(arena));
}

std::unique_ptr<Arena> MemoryTable::TakeExcess() {
  const bool over = idle_.size() > kIdleCountMax ||
                    (idle_bytes_ > kIdleBytesMax && idle_.size() > kIdleCountKept);
  return over ? TakeAnyIdle() : nullptr;
}

std::unique_ptr<Arena> MemoryTable::TakeAnyIdle() {
  if (idle_.empty()) return nullptr;
  std::unique_ptr<Arena> arena = std::move(idle_.front());
  idle_.erase(idle_.begin());
  idle_bytes_ -= arena->bytes();
  return arena;
}

}  // namespace qrd::client
