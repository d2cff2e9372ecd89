// SPDX-License-Identifier: Apache-2.0
// What an operation with an epilogue may look like, for every backend: the errors of the contract
// of epilogues that concern one node. Limits that a backend adds (codecs, devices, its instances)
// are its own; that a tensor lies in its arena is checked where arenas are known.
//
// Thread safety: pure functions of their arguments. No tensor is read: pointers may be those of a
// device. No allocation if the result is OK.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace qrd {

// OK, or INVALID_ARGUMENT with the field, its value and the bound, for an operation with
// Epilogue::kRmsNorm: dtype, op, world size, shape, options, presence, alignment and overlap of the
// tensors of all ranks; a sharded residual wants algorithm two_shot. `params.outputs` and codec are
// not looked at.
absl::Status ValidateRmsNorm(const LaunchParams& params);

// The same for the tensors of one rank, given as those of rank 0 of world size 1; `rank` and
// `world_size` say which rows are its own.
absl::Status ValidateRmsNormOfRank(const LaunchParams& params, uint32_t rank, uint32_t world_size);

}  // namespace qrd
