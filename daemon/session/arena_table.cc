// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/arena_table.h"

#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

namespace qrd {
namespace {

constexpr uint64_t kPageBytes = 4096;

}  // namespace

bool ArenaBudget::Reserve(uint64_t bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > bytes_max_ || used > bytes_max_ - bytes) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

ArenaTable::Block::~Block() {
  memory->Post([gone = std::move(arena), b = budget, n = reserved_bytes]() mutable {
    gone.reset();
    b->Release(n);
  });
}

ArenaTable::Pin::Pin(std::shared_ptr<Block> block) : block_(std::move(block)) {
  block_->pins.fetch_add(1, std::memory_order_relaxed);
}

ArenaTable::Pin& ArenaTable::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    Reset();
    block_ = std::move(other.block_);
  }
  return *this;
}

void ArenaTable::Pin::Reset() {
  if (block_ == nullptr) return;
  // Release: a Free() that sees 0 (acquire) comes after everything the operation did to the memory.
  block_->pins.fetch_sub(1, std::memory_order_release);
  block_.reset();
}

ArenaTable::ArenaTable(Backend* backend, std::string device, Limits limits,
                       std::shared_ptr<ArenaBudget> budget, std::shared_ptr<MemoryThread> memory,
                       ArenaCounters counters)
    : backend_(backend),
      device_(std::move(device)),
      limits_(limits),
      budget_(std::move(budget)),
      memory_(std::move(memory)),
      counters_(std::move(counters)) {}

absl::StatusOr<ArenaTable::Allocated> ArenaTable::Allocate(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("arena bytes is 0, want at least 1");
  if (bytes > limits_.bytes_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "arena bytes is %d: arena_bytes_per_session_max is %d", bytes, limits_.bytes_max));
  }
  const uint64_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (absl::Status status = Reserve(rounded); !status.ok()) return status;
  // Outside the lock: the engine looks tensors up meanwhile.
  return Insert(device_.empty() ? backend_->AllocateArena(rounded)
                                : backend_->AllocateDeviceArena(device_, rounded),
                rounded);
}

absl::StatusOr<ArenaTable::Allocated> ArenaTable::Import(std::string_view ipc_handle,
                                                         uint64_t offset_bytes, uint64_t bytes) {
  if (absl::Status status = Reserve(0); !status.ok()) return status;
  return Insert(backend_->ImportArena(device_, ipc_handle, offset_bytes, bytes), 0);
}

void ArenaTable::Unreserve(uint64_t bytes) {
  budget_->Release(bytes);
  MutexLock lock(&mu_);
  --arenas_;
  bytes_ -= bytes;
}

absl::StatusOr<ArenaTable::Allocated> ArenaTable::Insert(
    absl::StatusOr<std::unique_ptr<Arena>> arena, uint64_t reserved_bytes) {
  if (!arena.ok()) {
    Unreserve(reserved_bytes);
    return arena.status();
  }
  auto block = std::make_shared<Block>(*std::move(arena), budget_, memory_, reserved_bytes);
  MutexLock lock(&mu_);
  uint32_t index;
  if (free_ids_.empty()) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_ids_.back();
    free_ids_.pop_back();
  }
  Slot& slot = slots_[index];
  ++slot.generation;
  slot.block = block;
  counters_.arenas->store(arenas_, std::memory_order_relaxed);
  counters_.bytes->store(bytes_, std::memory_order_relaxed);
  return Allocated{index + 1, slot.generation, block->arena->bytes(), block->arena->fd(),
                   std::string(block->arena->ipc_handle())};
}

absl::Status ArenaTable::Reserve(uint64_t bytes) {
  MutexLock lock(&mu_);
  if (arenas_ >= limits_.arenas_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "session has %d arenas: arenas_per_session_max is %d", arenas_, limits_.arenas_max));
  }
  if (bytes > limits_.bytes_max || bytes_ > limits_.bytes_max - bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("session has %d arena bytes and asks for %d more: "
                        "arena_bytes_per_session_max is %d",
                        bytes_, bytes, limits_.bytes_max));
  }
  if (!budget_->Reserve(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("all sessions have %d arena bytes, this one asks for %d more: "
                        "arena_bytes_max is %d",
                        budget_->used_bytes(), bytes, budget_->bytes_max()));
  }
  ++arenas_;
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status ArenaTable::CheckHandle(uint32_t arena_id, uint32_t generation) const {
  if (arena_id == 0 || arena_id > slots_.size()) {
    return absl::NotFoundError(absl::StrFormat(
        "arena_id is %d: this session has no such arena (ids 1 to %d)", arena_id, slots_.size()));
  }
  const Slot& slot = slots_[arena_id - 1];
  if (slot.block == nullptr || slot.generation != generation) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "stale handle: arena %d of generation %d was freed (its last generation is %d)", arena_id,
        generation, slot.generation));
  }
  return absl::OkStatus();
}

void ArenaTable::CloseFd(uint32_t arena_id, uint32_t generation) {
  MutexLock lock(&mu_);
  if (CheckHandle(arena_id, generation).ok()) slots_[arena_id - 1].block->arena->CloseFd();
}

absl::Status ArenaTable::Free(uint32_t arena_id, uint32_t generation) {
  std::shared_ptr<Block> block;  // unmapped after the lock is released
  MutexLock lock(&mu_);
  if (absl::Status status = CheckHandle(arena_id, generation); !status.ok()) return status;
  Slot& slot = slots_[arena_id - 1];
  if (const uint32_t pins = slot.block->pins.load(std::memory_order_acquire); pins != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "arena %d is in use by %d tensors of operations in flight", arena_id, pins));
  }
  block = std::move(slot.block);
  slot.block.reset();
  --arenas_;
  bytes_ -= block->reserved_bytes;
  // An id whose generations are used up is retired.
  if (slot.generation != std::numeric_limits<uint32_t>::max()) free_ids_.push_back(arena_id - 1);
  counters_.arenas->store(arenas_, std::memory_order_relaxed);
  counters_.bytes->store(bytes_, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<ArenaTable::Pin> ArenaTable::Lookup(uint32_t arena_id, uint32_t generation) {
  MutexLock lock(&mu_);
  if (absl::Status status = CheckHandle(arena_id, generation); !status.ok()) return status;
  return Pin(slots_[arena_id - 1].block);
}

void ArenaTable::Clear() {
  std::vector<Slot> slots;
  {
    MutexLock lock(&mu_);
    slots.swap(slots_);
    free_ids_.clear();
    arenas_ = 0;
    bytes_ = 0;
  }
  counters_.arenas->store(0, std::memory_order_relaxed);
  counters_.bytes->store(0, std::memory_order_relaxed);
}

}  // namespace qrd
