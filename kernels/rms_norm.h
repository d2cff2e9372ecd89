// SPDX-License-Identifier: Apache-2.0
// The steps that follow an all-reduce, one at a time on the host: residual add, RMSNorm, FP8
// quantization. Made of the functions of the fused operation (kernels/all_reduce.h), so a chain of
// these gives its bits; for shadow evaluation, tests and benchmarks.
//
// Tensors are [tokens, hidden] row-major of `dtype` (fp16 or bf16), aligned to the element. hidden
// is a multiple of kHiddenMultiple from kHiddenMin to kHiddenMax. NaN in the results is canonical.
//
// Thread safety: pure functions of the memory that the arguments name; ranges of rows may run at
// the same time. No allocation; about 200 KiB of stack. They set the floating-point environment for
// their own duration.
#pragma once

#include <cstdint>

#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd {

// What a norm needs besides the tensors.
struct NormOptions {
  Dtype dtype = Dtype::kBf16;
  uint64_t tokens = 0;
  uint32_t hidden = 0;
  float eps = 0;
  bool gemma = false;
  Dtype weight_dtype = Dtype::kBf16;  // dtype or kFp32
  const void* weight = nullptr;       // [hidden] weight_dtype
};

// residual_out = R(a + residual); residual null: +0. residual_out may be a or residual.
void AddResidual(Dtype dtype, uint64_t tokens, uint32_t hidden, const void* a, const void* residual,
                 void* residual_out);
// out = R((h * rstd) * gain). out may be h.
void RmsNorm(const NormOptions& options, const void* h, void* out);
// Both at once: residual_out as above, out = the norm of residual_out. residual_out may be
// residual, out may be a.
void AddRmsNorm(const NormOptions& options, const void* a, const void* residual, void* residual_out,
                void* out);

struct QuantizeOptions {
  Dtype dtype = Dtype::kBf16;
  uint64_t tokens = 0;
  uint32_t hidden = 0;
  Quant quant = Quant::kE4m3fn;  // not kNone
  uint32_t scale_group = 0;      // 0 or kScaleGroup
  float divisor = 0;             // 0: QuantMax(quant)
};
// out8 = [tokens, hidden] codes; scales = [tokens], or [tokens, ceil(hidden / scale_group)].
void QuantizeFp8(const QuantizeOptions& options, const void* y, uint8_t* out8, float* scales);

}  // namespace qrd
