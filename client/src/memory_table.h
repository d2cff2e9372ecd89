// SPDX-License-Identifier: Apache-2.0
// What a communicator knows of the process's memory: blocks of qrd_mem_alloc (arenas themselves),
// registered ranges (each with an arena that mirrors it), and staging arenas for everything else.
// Finds by pointer, interior pointers too.
//
// Thread safety: none; the communicator's mutex guards it. No function talks to the daemon.
// Ownership: owns the arenas' mappings. A Block* stays valid until Remove of it.
//
// Invariants
//   1. Blocks do not overlap.
//   2. A block with pins is in use by operations and is not removed.
//   3. Idle staging arenas are bounded in number and bytes (the two newest are kept at any size,
//   since
//      a loop of one large operation needs them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/core/segment.h"

namespace qrd::client {

// Memory that the daemon can reach, as it named it: an arena of the host as a whole, or a block in
// one of a device (the DeviceMemory or, if imported, the caller owns it).
struct Arena {
  Mapping mapping;  // of host memory
  uint32_t id = 0;
  uint32_t generation = 0;
  std::byte* device_data = nullptr;
  size_t device_bytes = 0;
  uint64_t offset_bytes = 0;  // in the daemon's arena
  bool imported = false;

  std::byte* data() const { return device_data != nullptr ? device_data : mapping.data(); }
  size_t bytes() const { return device_data != nullptr ? device_bytes : mapping.bytes(); }
};

// A range of the caller's addresses.
struct Block {
  uintptr_t start = 0;
  size_t bytes = 0;
  bool registered = false;  // arena mirrors the range; else the arena is the range
  bool imported = false;    // the caller's own device memory
  bool leaving = false;     // being freed: no longer found
  uint32_t pins = 0;        // buffers of operations in flight
  // Byte `start` is arena byte `arena_offset`: a mirror keeps the address modulo a cache line, so
  // that elements stay aligned.
  size_t arena_offset = 0;
  std::unique_ptr<Arena> arena;
};

class MemoryTable {
 public:
  static constexpr size_t kStagingBytesMin = size_t{64} << 10;
  static constexpr size_t kIdleBytesMax = size_t{256} << 20;
  static constexpr size_t kIdleCountMax = 16;
  static constexpr size_t kIdleCountKept = 2;

  // Room for the staging of every slot at once, so that PutIdle never allocates.
  MemoryTable() { idle_.reserve(kIdleCountMax + 2 * shm::kSlotsMax); }

  // The block that overlaps [start, start + bytes), the lowest if there are several, or nullptr.
  Block* FindOverlap(uintptr_t start, size_t bytes);
  // The block that begins at start, or nullptr.
  Block* FindStart(uintptr_t start);
  // FindOverlap(block) must be nullptr. May throw std::bad_alloc (nothing changed then).
  Block* Insert(Block block);
  // pins must be 0. Returns the arena.
  std::unique_ptr<Arena> Remove(Block* block);

  // Bytes of a new staging arena for `bytes`: a power of two.
  static size_t StagingBytes(size_t bytes);
  // An idle staging arena that fits without waste, or nullptr.
  std::unique_ptr<Arena> TakeIdle(size_t bytes);
  // Keeps an arena for later. The caller then frees what TakeExcess returns, until it is nullptr.
  void PutIdle(std::unique_ptr<Arena> arena);
  std::unique_ptr<Arena> TakeExcess();
  // Any idle arena, or nullptr: to make room when the daemon has none.
  std::unique_ptr<Arena> TakeAnyIdle();

 private:
  static bool Within(const Block& block, uintptr_t address) {
    return address >= block.start && address - block.start < block.bytes;
  }

  std::map<uintptr_t, Block> blocks_;
  std::vector<std::unique_ptr<Arena>> idle_;  // oldest first
  size_t idle_bytes_ = 0;
};

}  // namespace qrd::client
