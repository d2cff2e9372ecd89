// SPDX-License-Identifier: Apache-2.0
// All-reduce + residual + RMSNorm (+ FP8) by the letter of the contract of epilogues: one function
// a step, plain loops, one IEEE operation at a time, in that order. Every backend is compared with
// it byte for byte, so it is written to be read, not to be fast. Nothing here is vectorized by hand
// or shared with the SIMD code.
//
// Tensors: [tokens, hidden] row-major, aligned to the element; D is fp16 or bf16 (`dtype`). Any
// hidden >= 1 and tokens >= 0 are computed; what an operation may ask for is checked by
// kernels/validate_epilogue.h.
//
// Thread safety: pure functions of the memory that the arguments name. They set the floating-point
// environment for their own duration (kernels/float_environment.h).
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd {

// One FP8 code: nearest even, saturating (Inf too); NaN gives 0x7F (e4m3fn) or 0x80 (e4m3fnuz).
// `quant` is not kNone.
uint8_t ReferenceEncodeFp8(Quant quant, float value);
// The value of a code; NaN for the codes of NaN.
float ReferenceDecodeFp8(Quant quant, uint8_t code);

// Step 2: residual_out[i] = R(a[i] + residual[i]), count elements of D. residual null: +0.
// residual_out may be a or residual.
void ReferenceAdd(Dtype dtype, uint64_t count, const void* a, const void* residual,
                  void* residual_out);

// What steps 3 to 6 need besides the tensors: a row's length, the gain and eps.
struct ReferenceNorm {
  Dtype dtype;
  uint32_t hidden;
  float eps;
  bool gemma;
  Dtype weight_dtype;
  const void* weight;  // [hidden] weight_dtype
};
ReferenceNorm NormOf(const LaunchParams& params, uint32_t rank);

// Step 3 of one row: the sum of the squares of h[0..count) in the order of the contract.
float ReferenceSumOfSquares(const float* h, uint32_t count);
// Steps 3 and 4 of one row of D.
float ReferenceRstd(const ReferenceNorm& norm, const void* h);
// Steps 3 to 6: y = [tokens, hidden] D. y may be h.
void ReferenceRmsNorm(const ReferenceNorm& norm, uint64_t tokens, const void* h, void* y);

// Steps 7 to 9. `scale_group` 0: scales is [tokens]; else [tokens, ceil(hidden / scale_group)].
// `divisor` 0: QuantMax(quant). y, codes and scales are disjoint.
void ReferenceQuantizeFp8(Dtype dtype, uint64_t tokens, uint32_t hidden, Quant quant,
                          uint32_t scale_group, float divisor, const void* y, uint8_t* codes,
                          float* scales);

// The whole operation for all ranks: ReferenceAllReduce, then the steps above, a rank after the
// other. REQUIRES: ValidateRmsNorm(params) says OK; outputs may share memory with inputs as there.
void ReferenceAllReduceRmsNorm(const LaunchParams& params);

}  // namespace qrd
