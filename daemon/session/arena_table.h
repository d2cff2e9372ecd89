// SPDX-License-Identifier: Apache-2.0
// The arenas of one session: memory that client and daemon share, named by id and generation.
//
// Thread safety: all functions from any thread (the attach thread allocates and frees, the engine
// pins). Ownership: the table owns its blocks; a pin keeps a block's memory alive after Free() or
// the table's end, so that nothing is unmapped under a running operation.
//
// Invariants
//   1. An id is reused, an (id, generation) pair never is.
//   2. A block's bytes count against the budget until its memory is given back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/session/memory_thread.h"
#include "kernels/backend.h"
#include "proto/shm/layout.h"

namespace qrd {

// Bytes of all sessions. Thread safety: any thread.
class ArenaBudget {
 public:
  explicit ArenaBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  bool Reserve(uint64_t bytes);
  void Release(uint64_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> used_bytes_{0};
};

// Counters of a session that the registry shows. Shared with it.
struct ArenaCounters {
  std::shared_ptr<std::atomic<uint64_t>> arenas = std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<std::atomic<uint64_t>> bytes = std::make_shared<std::atomic<uint64_t>>(0);
};

class ArenaTable {
 public:
  struct Limits {
    uint32_t arenas_max = 0;
    uint64_t bytes_max = 0;
  };
  struct Block {
    Block(std::unique_ptr<Arena> a, std::shared_ptr<ArenaBudget> b, std::shared_ptr<MemoryThread> m,
          uint64_t n)
        : arena(std::move(a)), budget(std::move(b)), memory(std::move(m)), reserved_bytes(n) {}
    ~Block();
    std::shared_ptr<Arena> arena;
    const std::shared_ptr<ArenaBudget> budget;
    const std::shared_ptr<MemoryThread> memory;  // unmaps it
    const uint64_t reserved_bytes;
    std::atomic<uint32_t> pins{0};
  };
  // Movable; keeps the block while it lives.
  class Pin {
   public:
    Pin() = default;
    explicit Pin(std::shared_ptr<Block> block);
    Pin(Pin&& other) noexcept : block_(std::move(other.block_)) {}
    Pin& operator=(Pin&& other) noexcept;
    ~Pin() { Reset(); }
    void Reset();
    std::byte* data() const { return block_->arena->data(); }
    uint64_t bytes() const { return block_->arena->bytes(); }
    explicit operator bool() const { return block_ != nullptr; }

   private:
    std::shared_ptr<Block> block_;
  };
  struct Allocated {
    uint32_t arena_id = 0;
    uint32_t generation = 0;
    uint64_t bytes = 0;
    int fd = -1;  // the backend's; valid until CloseFd(); -1: device memory
    std::string ipc_handle;
  };

  // `device`: empty for host memory.
  ArenaTable(Backend* backend, std::string device, Limits limits,
             std::shared_ptr<ArenaBudget> budget, std::shared_ptr<MemoryThread> memory,
             ArenaCounters counters);
  ~ArenaTable() { Clear(); }

  // INVALID_ARGUMENT for 0 bytes; RESOURCE_EXHAUSTED names the bound that is reached. Takes as long
  // as the backend needs for the memory: for the memory thread.
  absl::StatusOr<Allocated> Allocate(uint64_t bytes);
  // A client's own device memory, which counts against no bound of bytes. For the memory thread.
  absl::StatusOr<Allocated> Import(std::string_view ipc_handle, uint64_t offset_bytes,
                                   uint64_t bytes);
  // NOT_FOUND for an unknown id, INVALID_ARGUMENT for a stale generation, FAILED_PRECONDITION while
  // an operation uses the arena.
  absl::Status Free(uint32_t arena_id, uint32_t generation);
  // The client has been sent its descriptor (Allocated::fd). Unknown arenas are ignored.
  void CloseFd(uint32_t arena_id, uint32_t generation);
  // INVALID_ARGUMENT for an unknown id or a stale generation.
  absl::StatusOr<Pin> Lookup(uint32_t arena_id, uint32_t generation);
  // Frees everything that is not pinned; pinned memory goes with its last pin.
  void Clear();

 private:
  struct Slot {
    uint32_t generation = 0;
    std::shared_ptr<Block> block;  // null: free
  };
  // Counts an arena of `bytes` against all bounds.
  absl::Status Reserve(uint64_t bytes);
  // Takes the reservation back.
  void Unreserve(uint64_t bytes);
  absl::StatusOr<Allocated> Insert(absl::StatusOr<std::unique_ptr<Arena>> arena,
                                   uint64_t reserved_bytes);
  absl::Status CheckHandle(uint32_t arena_id, uint32_t generation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Backend* const backend_;
  const std::string device_;
  const Limits limits_;
  const std::shared_ptr<ArenaBudget> budget_;
  const std::shared_ptr<MemoryThread> memory_;
  const ArenaCounters counters_;
  mutable Mutex mu_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);  // id = index + 1
  std::vector<uint32_t> free_ids_ ABSL_GUARDED_BY(mu_);
  uint32_t arenas_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace qrd
