// SPDX-License-Identifier: Apache-2.0
#include "client/src/device_memory.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "client/core/error.h"

namespace qrd::client {

bool DeviceMemory::AllocateIn(Part* part, uint64_t bytes, Place* place) {
  uint64_t offset = 0;
  if (!part->range.Allocate(bytes, &offset)) return false;
  *place = {part->arena.base + offset, part->arena.id, part->arena.generation, offset};
  return true;
}

qrd_status DeviceMemory::Grow(uint64_t bytes, Place* place) {
  DeviceArena arena;
  qrd_status status = source_->AllocateDeviceArena(std::max(bytes, kArenaBytes), &arena);
  // Near the daemon's bound the block alone may still fit.
  if (status == QRD_RESOURCE_EXHAUSTED && bytes < kArenaBytes) {
    status = source_->AllocateDeviceArena(bytes, &arena);
  }
  if (status != QRD_OK) return status;
  std::map<gpu::DevicePtr, Part>::iterator part;
  bool is_new = false;
  try {
    std::tie(part, is_new) =
        parts_.try_emplace(arena.base, Part{arena, RangeAllocator(arena.bytes)});
  } catch (...) {
    source_->FreeDeviceArena(arena);
    throw;
  }
  if (!is_new) {
    return Fail(QRD_INTERNAL, "two arenas from the daemon are mapped at 0x%" PRIx64, arena.base);
  }
  if (AllocateIn(&part->second, bytes, place)) return QRD_OK;
  parts_.erase(part);
  source_->FreeDeviceArena(arena);
  return Fail(QRD_INTERNAL, "arena from the daemon has %" PRIu64 " bytes, want %" PRIu64 " or more",
              arena.bytes, bytes);
}

qrd_status DeviceMemory::Allocate(uint64_t bytes, Place* place) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (auto& [base, part] : parts_) {
    if (AllocateIn(&part, bytes, place)) return QRD_OK;
  }
  return Grow(bytes, place);
}

void DeviceMemory::FreePart(std::map<gpu::DevicePtr, Part>::iterator part) {
  const DeviceArena arena = part->second.arena;
  parts_.erase(part);
  source_->FreeDeviceArena(arena);
}

bool DeviceMemory::Free(gpu::DevicePtr address) {
  const std::lock_guard<std::mutex> lock(mu_);
  auto part = parts_.upper_bound(address);
  if (part == parts_.begin()) return false;
  --part;
  if (!part->second.range.Free(address - part->first)) return false;
  if (!part->second.range.empty()) return true;
  // Two are empty now: the larger one goes.
  for (auto other = parts_.begin(); other != parts_.end(); ++other) {
    if (other == part || !other->second.range.empty()) continue;
    FreePart(other->second.arena.bytes > part->second.arena.bytes ? other : part);
    break;
  }
  return true;
}

void DeviceMemory::DropEmpty() {
  const std::lock_guard<std::mutex> lock(mu_);
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if (!part->second.range.empty()) continue;
    FreePart(part);
    return;
  }
}

std::vector<DeviceArena> DeviceMemory::TakeAll() {
  const std::lock_guard<std::mutex> lock(mu_);
  std::vector<DeviceArena> arenas;
  arenas.reserve(parts_.size());
  for (const auto& [base, part] : parts_) arenas.push_back(part.arena);
  parts_.clear();
  return arenas;
}

size_t DeviceMemory::arena_count() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return parts_.size();
}

}  // namespace qrd::client
