// SPDX-License-Identifier: Apache-2.0
// Checks the daemon's copy of a descriptor. Nothing of it is used before this said yes.
// Thread safety: pure but for pins on the arenas.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/session/arena_table.h"
#include "daemon/session/rms_norm_operands.h"
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
  std::unique_ptr<RmsNormOperands> rms_norm;  // with epilogue 1, whose tensors it pins
};

// A tensor of `count` elements within an arena of the session, pinned; `field` names it in errors.
absl::StatusOr<ArenaTable::Pin> CheckTensor(const char* field, const shm::Tensor& tensor,
                                            uint64_t count, uint64_t element_bytes,
                                            ArenaTable* arenas, const char* count_name = "count");

// INVALID_ARGUMENT or UNIMPLEMENTED, naming field, value and bound.
absl::StatusOr<ValidatedDescriptor> ValidateDescriptor(const shm::Descriptor& descriptor,
                                                       uint64_t expected_sequence, uint32_t rank,
                                                       uint32_t world_size, ArenaTable* arenas);

}  // namespace qrd
