// SPDX-License-Identifier: Apache-2.0
// One rank's operands of an operation with RMSNorm, out of the daemon's copy of a descriptor.
// Thread safety: pure but for pins on the arenas.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/session/arena_table.h"
#include "kernels/backend.h"
#include "proto/shm/layout.h"

namespace qrd {

struct RmsNormOperands {
  const void* input = nullptr;
  RmsNormParams params;  // tensors of this rank at index 0
  bool has_rows = true;  // of residual and residual_out: false only with a sharded residual
  std::array<ArenaTable::Pin, 8> pins;
};

// `d` has epilogue 1, and scalars that were checked. INVALID_ARGUMENT names the field, its value
// and the bound.
absl::StatusOr<std::unique_ptr<RmsNormOperands>> ReadRmsNorm(const shm::Descriptor& d,
                                                             uint32_t rank, uint32_t world_size,
                                                             ArenaTable* arenas);

// Writes this rank's tensors to index `rank` of `to`, and of rank 0 everything else too.
void AddRank(const RmsNormOperands& from, uint32_t rank, RmsNormParams* to);

}  // namespace qrd
