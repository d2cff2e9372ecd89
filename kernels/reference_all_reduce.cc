// SPDX-License-Identifier: Apache-2.0
// All-reduce as the wire format writes it down (section 6): whole messages, one after the other.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/reference.h"

namespace qrd {
namespace {

using Floats = std::vector<float>;

struct Problem {
  Codec codec;
  Dtype dtype;
  ReduceOp op;
  uint32_t world_size;
  const void* const* inputs;

  // Elements [first, first + count) of a rank's tensor, exact.
  Floats Exact(uint32_t rank, uint64_t first, uint64_t count) const {
    Floats x(count);
    ReferenceWidenToFp32(dtype,
                         static_cast<const std::byte*>(inputs[rank]) + first * DtypeBytes(dtype),
                         count, x.data());
    return x;
  }

  // The same after it crossed a link. `first` is at a tile boundary.
  Floats Received(uint32_t rank, uint64_t first, uint64_t count) const {
    return ThroughWire(Exact(rank, first, count));
  }

  Floats ThroughWire(const Floats& x) const {
    std::vector<std::byte> wire(EncodedBytes(codec, dtype, x.size()));
    Floats y(x.size());
    ReferenceEncodeFp32(codec, dtype, x.data(), x.size(), wire.data());
    ReferenceDecode(codec, dtype, wire.data(), x.size(), y.data());
    return y;
  }

  // Starts from rank 0's values, adds the others in rank order; avg divides the finished sum.
  Floats Reduce(const std::vector<Floats>& parts) const {
    Floats sum = parts[0];
    for (uint32_t r = 1; r < world_size; ++r) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + parts[r][i];
    }
    if (op == ReduceOp::kAvg) {
      for (float& value : sum) value = value / static_cast<float>(world_size);
    }
    return sum;
  }
};

Floats OneShot(const Problem& problem, uint64_t count) {
  std::vector<Floats> parts;
  for (uint32_t r = 0; r < problem.world_size; ++r) parts.push_back(problem.Received(r, 0, count));
  return problem.Reduce(parts);
}

Floats TwoShot(const Problem& problem, uint64_t count) {
  Floats result;
  for (uint32_t owner = 0; owner < problem.world_size; ++owner) {
    const TileRange tiles = OwnedTiles(count, problem.world_size, owner);
    const uint64_t first = std::min(count, tiles.first * kTileElements);
    const uint64_t last = std::min(count, tiles.last * kTileElements);
    std::vector<Floats> parts;
    for (uint32_t r = 0; r < problem.world_size; ++r) {
      parts.push_back(r == owner ? problem.Exact(r, first, last - first)
                                 : problem.Received(r, first, last - first));
    }
    const Floats sum = problem.ThroughWire(problem.Reduce(parts));
    result.insert(result.end(), sum.begin(), sum.end());
  }
  return result;
}

}  // namespace

void ReferenceAllReduce(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op,
                        uint32_t world_size, uint64_t count, const void* const* inputs,
                        void* output) {
  if (count == 0) return;
  if (world_size == 1) {
    std::memcpy(output, inputs[0], count * DtypeBytes(dtype));
    return;
  }
  const Problem problem{codec, dtype, op, world_size, inputs};
  const Floats result =
      algorithm == Algorithm::kOneShot ? OneShot(problem, count) : TwoShot(problem, count);
  ReferenceRoundToDtype(dtype, result.data(), count, output);
}

void ReferenceReduceAtOwner(Codec codec, Dtype dtype, uint32_t world_size, uint64_t count,
                            const void* const* inputs, uint32_t owner, void* output) {
  if (world_size == 1) {
    std::memcpy(output, inputs[0], count * DtypeBytes(dtype));
    return;
  }
  const Problem problem{codec, dtype, ReduceOp::kSum, world_size, inputs};
  std::vector<Floats> parts;
  for (uint32_t r = 0; r < world_size; ++r) {
    parts.push_back(r == owner ? problem.Exact(r, 0, count) : problem.Received(r, 0, count));
  }
  ReferenceRoundToDtype(dtype, problem.Reduce(parts).data(), count, output);
}

}  // namespace qrd
