// SPDX-License-Identifier: Apache-2.0
// The tensors of a benchmark and what became of them. Any process can make any rank's input again,
// so nothing but seeds and hashes travels between processes.
//
// Thread safety: pure functions; TensorSource is immutable after it was filled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace qrd::tools {

// Inputs of all ranks: real tensors, one a rank, or values made from (seed, rank, index), which are
// near a Gaussian (sum of four uniform numbers) with standard deviation 1.
struct TensorSource {
  uint64_t seed = 1;
  std::vector<std::vector<float>> files;  // empty: synthetic

  // Elements [first, first + count) of the rank's tensor, as fp32 before rounding to a dtype.
  void Values(uint32_t rank, uint64_t first, uint64_t count, float* out) const;
  // The rank's tensor: `count` elements of `dtype`.
  void Fill(uint32_t rank, Dtype dtype, uint64_t count, void* out) const;
};

// How far a result is from the exact sum (or average) of the inputs, in double precision.
struct Quality {
  double sqnr_db = 0;    // +inf for an exact result, NaN if nothing finite was compared
  double max_error = 0;  // largest absolute error of a finite element
  uint64_t compared = 0;
  uint64_t nonfinite = 0;  // elements left out: the result or the sum is NaN or Inf
};
// Looks at the first min(count, limit) elements.
Quality Measure(const TensorSource& source, Dtype dtype, ReduceOp op, uint32_t ranks,
                uint64_t count, const void* result, uint64_t limit);

// The same on inputs in memory.
Quality MeasureInputs(Dtype dtype, ReduceOp op, const std::vector<const void*>& inputs,
                      uint64_t count, const void* result);

// 64-bit hash, the same for the same bytes everywhere (not for keeping secrets).
uint64_t Hash(const void* data, uint64_t bytes);

}  // namespace qrd::tools
