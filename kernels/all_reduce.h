// SPDX-License-Identifier: Apache-2.0
// All-reduce on the host, with or without an epilogue: for a range of units it reads the inputs of
// all ranks and writes the outputs of all ranks. Units do not depend on each other, so any split of
// an operation into ranges, in any order and on any threads, gives the same bits.
//
// A unit is a tile (wire format, section 6). With RMSNorm it is whole rows: the fewest that end
// where a codec group ends, and at least a tile. So nothing that a unit reads of the inputs (its
// groups) is read for another one, and an output that takes the memory of an input needs no copy.
//
// Thread safety: pure functions of their arguments and of the memory that these name; ranges of one
// operation that do not overlap may run at the same time. No allocation; 32 KiB of stack, 256 KiB
// with RMSNorm.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/types.h"

namespace qrd {

// From this many bytes of all inputs and outputs of an operation together, out-of-place results are
// written past the caches. Below, the reader finds them in the cache (measured: kernels/README.md).
inline constexpr uint64_t kStreamTrafficBytesMin = uint64_t{4} << 20;

// True if instances.def has a line for the combination.
bool HasAllReduce(Algorithm algorithm, Codec codec, Dtype dtype, uint32_t world_size,
                  Epilogue epilogue = Epilogue::kNone);

// Elements [first, last) of an operation.
struct Elements {
  uint64_t first;
  uint64_t last;
};

// How many units a validated operation has, and the elements of each but the last, which may be
// shorter. Never more units than TileCount(params.count).
uint64_t AllReduceUnits(const LaunchParams& params);
uint64_t AllReduceUnitElements(const LaunchParams& params);

// REQUIRES: params passed HostBackend::Validate; range.first <= range.last <=
// AllReduceUnits(params). Returns how many elements of the reduced tensor (before the residual) in
// the range are NaN or Inf. All stores, also those that bypass the caches, are ordered before any
// later store of the calling thread.
uint64_t AllReduceRange(const LaunchParams& params, TileRange range);

}  // namespace qrd
