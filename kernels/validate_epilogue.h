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
// tensors of all ranks. `params.outputs` and codec and algorithm are not looked at.
absl::Status ValidateRmsNorm(const LaunchParams& params);

}  // namespace qrd
