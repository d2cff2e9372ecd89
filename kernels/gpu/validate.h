// SPDX-License-Identifier: Apache-2.0
// Checks of a launch on GPUs, before anything runs.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace qrd::gpu {

// OK, or an error naming field, value and bound. `world_size` is the communicator's.
absl::Status ValidateLaunch(const LaunchParams& params, uint32_t world_size);

}  // namespace qrd::gpu
