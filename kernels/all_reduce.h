// SPDX-License-Identifier: Apache-2.0
// All-reduce on the host, tile by tile (wire format, section 6): for a range of tiles it reads the
// inputs of all ranks and writes the outputs of all ranks. Tiles do not depend on each other, so
// any split of an operation into ranges, in any order and on any threads, gives the same bits.
//
// Thread safety: pure functions of their arguments and of the memory that these name; ranges of one
// operation that do not overlap may run at the same time. No allocation; about 24 KiB of stack.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/types.h"

namespace qrd {

// From this many bytes of all inputs and outputs of an operation together, out-of-place results are
// written past the caches. Below, the reader finds them in the cache (measured: kernels/README.md).
inline constexpr uint64_t kStreamTrafficBytesMin = uint64_t{4} << 20;

// True if instances.def has a line for the combination.
bool HasAllReduce(Algorithm algorithm, Codec codec, Dtype dtype, uint32_t world_size);

// REQUIRES: params passed HostBackend::Validate; range.first <= range.last <=
// TileCount(params.count). Returns how many elements of the result in the range are NaN or Inf. All
// stores, also those that bypass the caches, are ordered before any later store of the calling
// thread.
uint64_t AllReduceTiles(const LaunchParams& params, TileRange range);

}  // namespace qrd
