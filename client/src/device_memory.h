// SPDX-License-Identifier: Apache-2.0
// Device memory of a communicator: few large arenas of the daemon, cut into blocks. An arena is at
// least kArenaBytes large, since each costs a message, a handle and a mapping.
//
// Thread safety: all functions from any thread. The mutex is held while an arena is fetched or
// given back (a message to the daemon, bounded), so that two threads that run out at the same time
// fetch one.
// Ownership: the arenas, through Source. Whoever destroys a DeviceMemory calls TakeAll first.
//
// Invariants
//   1. Blocks are aligned to 256 bytes and lie in one arena.
//   2. At most one arena has no block (it is kept for the next allocation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "client/gpu/driver.h"
#include "client/src/range_allocator.h"
#include "qrd/qrd.h"

namespace qrd::client {

// As the daemon named it, and where it is mapped.
struct DeviceArena {
  uint32_t id = 0;
  uint32_t generation = 0;
  uint64_t bytes = 0;
  gpu::DevicePtr base = 0;
};

class DeviceMemory {
 public:
  static constexpr uint64_t kArenaBytes = uint64_t{64} << 20;

  class Source {
   public:
    virtual qrd_status AllocateDeviceArena(uint64_t bytes, DeviceArena* arena) = 0;
    virtual void FreeDeviceArena(const DeviceArena& arena) = 0;

   protected:
    ~Source() = default;
  };

  struct Place {
    gpu::DevicePtr address = 0;
    uint32_t arena_id = 0;
    uint32_t generation = 0;
    uint64_t offset_bytes = 0;
  };

  explicit DeviceMemory(Source* source) : source_(source) {}

  // 1 byte or more. Not zeroed where memory is used again.
  qrd_status Allocate(uint64_t bytes, Place* place);
  // False if no block begins there.
  bool Free(gpu::DevicePtr address);
  // Gives the arena without blocks back, if there is one.
  void DropEmpty();
  // All arenas, to be closed by the caller; none is left.
  std::vector<DeviceArena> TakeAll();

  size_t arena_count() const;

 private:
  struct Part {
    DeviceArena arena;
    RangeAllocator range;
  };
  bool AllocateIn(Part* part, uint64_t bytes, Place* place);
  qrd_status Grow(uint64_t bytes, Place* place);
  void FreePart(std::map<gpu::DevicePtr, Part>::iterator part);

  Source* const source_;
  mutable std::mutex mu_;
  std::map<gpu::DevicePtr, Part> parts_;  // by base
};

}  // namespace qrd::client
