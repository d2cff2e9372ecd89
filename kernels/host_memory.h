// SPDX-License-Identifier: Apache-2.0
// Memory of the host: sealed memfd arenas, and how much the machine can still give.
//
// Thread safety: all functions may be called from any thread; an arena is immutable after it is
// made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace qrd {

// Largest arena: sizes are signed in the kernel, and a client maps it into 47 bits of address
// space.
inline constexpr uint64_t kArenaBytesMax = uint64_t{1} << 46;

// A memfd of `bytes` rounded up to whole pages: zeroed, every page reserved, sealed against
// shrinking, growing and other seals, mapped here for reading and writing. INVALID_ARGUMENT for 0
// bytes or more than kArenaBytesMax; RESOURCE_EXHAUSTED if the machine, the control group or the
// process has no room (asked before anything is allocated: without the question the kernel would
// end some process later).
absl::StatusOr<std::unique_ptr<Arena>> AllocateSealedArena(uint64_t bytes);

// What can be allocated without swapping, as of now: the smaller of MemAvailable and what the
// limits of the control group (version 2) leave. UINT64_MAX if the system does not tell.
uint64_t AvailableMemoryBytes();
uint64_t TotalMemoryBytes();

// "Intel(R) Xeon(R) Platinum 8480+, 2 cores"
std::string CpuDescription();

}  // namespace qrd
