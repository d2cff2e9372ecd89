// SPDX-License-Identifier: Apache-2.0
// The operations in flight of one communicator: which slots are free, what each used one stands
// for, and what must be given back when it ends.
//
//   free -> reserved (being prepared) -> posted -> finishing (result taken, outputs being copied)
//   -> free
//
// Thread safety: none; the communicator's mutex guards it. Several threads may wait for one
// operation: each holds a waiter count, the first that sees the end takes the result, the others
// find the token gone. A slot with waiters is not used again, since they still look at its
// completion word. Ownership: staging arenas of the operation; blocks are pinned, not owned.
//
// Invariants
//   1. A token is sequence << kSlotBits | slot; sequences start at 1 and are never used twice, so a
//      token is never 0 and a stale one is never taken for a live one.
//   2. Nothing here allocates after the constructor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/memory_table.h"
#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

inline constexpr size_t kRmsNormOperandsMax = 8;

// One buffer of an operation, found or staged.
struct Buffer {
  shm::Tensor tensor{};
  Block* block = nullptr;          // pinned, if the buffer lies in one
  std::byte* mirror = nullptr;     // where the staged copy lies, nullptr if there is none
  std::unique_ptr<Arena> staging;  // of buffers in no block
};

// The buffers of an operation with RMSNorm, by its call's operands.
struct RmsNormOperands {
  std::array<Buffer, kRmsNormOperandsMax> buffers;
  std::array<void*, kRmsNormOperandsMax> copy_to{};  // where staged results go
  std::array<size_t, kRmsNormOperandsMax> bytes{};
  bool staged = false;
};

struct Operation {
  uint64_t sequence = 0;  // 0 unless posted
  uint64_t payload_bytes = 0;
  uint32_t waiters = 0;
  bool finished = false;  // released, but waiters still hold the slot
  Buffer input;
  Buffer output;            // of in-place operations: a copy of what `input` has, without ownership
  void* copy_to = nullptr;  // where a staged output goes
  std::unique_ptr<RmsNormOperands> rms_norm;  // in the place of input, output and copy_to
};

class OperationTable {
 public:
  static constexpr uint32_t kSlotBits = 10;
  static_assert(shm::kSlotsMax == 1u << kSlotBits);

  explicit OperationTable(uint32_t slot_count);

  // False if all slots are in use.
  bool Reserve(uint32_t* slot);
  // Gives a reserved or finishing slot back; with waiters, the last of them does it.
  void Release(uint32_t slot);

  Operation& operator[](uint32_t slot) { return operations_[slot]; }
  uint32_t slot_count() const { return static_cast<uint32_t>(operations_.size()); }

  // Names the slot's operation from here on.
  qrd_operation Post(uint32_t slot, uint64_t sequence);
  // The slot of a posted operation. False if there is none of this token.
  bool Find(qrd_operation token, uint32_t* slot) const;

  void AddWaiter(uint32_t slot) { ++operations_[slot].waiters; }
  // Frees a slot that only waited for its last waiter.
  void RemoveWaiter(uint32_t slot);

 private:
  std::vector<Operation> operations_;
  std::vector<uint32_t> free_;  // used as a stack: the newest slot is the warmest
};

}  // namespace qrd::client
