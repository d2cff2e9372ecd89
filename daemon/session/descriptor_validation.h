// SPDX-License-Identifier: Apache-2.0
// Checks the daemon's copy of a descriptor. Nothing of it is used before this said yes.
// Thread safety: pure but for pins on the arenas.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "daemon/session/arena_table.h"
#include "kernels/types.h"
#include "proto/shm/layout.h"

namespace qrd {

inline constexpr uint32_t kOperationTimeoutMsMax = 3'600'000;

// A descriptor that may run. Tensors are null if count is 0; the pins keep their memory.
struct ValidatedDescriptor {
  shm::Kind kind = shm::Kind::kAllReduce;
  Dtype dtype = Dtype::kFp32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t epilogue = 0;
  uint64_t count = 0;
  uint32_t timeout_ms = 0;  // 0: the daemon's default
  const void* input = nullptr;
  void* output = nullptr;
  ArenaTable::Pin input_pin, output_pin;
};

// INVALID_ARGUMENT or UNIMPLEMENTED, naming field, value and bound.
absl::StatusOr<ValidatedDescriptor> ValidateDescriptor(const shm::Descriptor& descriptor,
                                                       uint64_t expected_sequence,
                                                       ArenaTable* arenas);

}  // namespace qrd
