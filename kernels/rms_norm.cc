// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/float_environment.h"
#include "kernels/simd_targets.h"
#include "kernels/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rms_norm.cc"  // NOLINT: this file, once per instruction set
#include "hwy/foreach_target.h"                   // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/rms_norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// Calls fn(first element) for every row.
template <typename Fn>
HWY_INLINE void ForEachRow(uint64_t tokens, uint32_t hidden, const Fn& fn) {
  for (uint64_t row = 0; row < tokens; ++row) fn(row * hidden);
}

template <Dtype kDtype>
void AddRows(uint64_t tokens, uint32_t hidden, const uint16_t* a, const uint16_t* residual,
             uint16_t* residual_out) {
  RowScratch s;
  ForEachRow(tokens, hidden, [&](uint64_t at) {
    AddRow<kDtype>(a + at, residual != nullptr ? residual + at : nullptr, hidden, s.h);
    std::memcpy(residual_out + at, s.h, hidden * sizeof(s.h[0]));
  });
}

// residual_out null: `a` is normalized as it is.
template <Dtype kDtype>
void NormRows(const NormOptions& o, const uint16_t* a, const uint16_t* residual,
              uint16_t* residual_out, uint16_t* out) {
  RowScratch s;
  MakeGainsOf(o.weight_dtype, o.weight, o.hidden, o.gemma, s.gain);
  ForEachRow(o.tokens, o.hidden, [&](uint64_t at) {
    if (residual_out != nullptr) {
      AddRow<kDtype>(a + at, residual != nullptr ? residual + at : nullptr, o.hidden, s.h);
      std::memcpy(residual_out + at, s.h, o.hidden * sizeof(s.h[0]));
    } else {
      std::memcpy(s.h, a + at, o.hidden * sizeof(s.h[0]));
      PadRow(o.hidden, s.h);
    }
    const float rstd = Rstd(SumOfSquares<kDtype>(s.h, o.hidden, s.partial), o.hidden, o.eps);
    NormalizeRow<kDtype>(s.h, rstd, s.gain, o.hidden, s.y);
    std::memcpy(out + at, s.y, o.hidden * sizeof(s.y[0]));
  });
}

template <Dtype kDtype>
void QuantizeRows(const QuantizeOptions& o, const uint16_t* y, uint8_t* out8, float* scales) {
  RowScratch s;
  const float divisor = o.divisor == 0 ? QuantMax(o.quant) : o.divisor;
  const size_t groups = o.scale_group == 0 ? 1 : (o.hidden + o.scale_group - 1) / o.scale_group;
  ForEachRow(o.tokens, o.hidden, [&](uint64_t at) {
    std::memcpy(s.y, y + at, o.hidden * sizeof(s.y[0]));
    std::memset(s.y + o.hidden, 0, HWY_MAX_BYTES);
    QuantizeRow<kDtype>(o.quant, o.hidden, o.scale_group, divisor, s);
    std::memcpy(out8 + at, s.codes, o.hidden);
    std::memcpy(scales, s.scales, groups * sizeof(float));
    scales += groups;
  });
}

void AddOf(Dtype dtype, uint64_t tokens, uint32_t hidden, const void* a, const void* residual,
           void* residual_out) {
  (dtype == Dtype::kFp16 ? AddRows<Dtype::kFp16>
                         : AddRows<Dtype::kBf16>)(tokens, hidden, static_cast<const uint16_t*>(a),
                                                  static_cast<const uint16_t*>(residual),
                                                  static_cast<uint16_t*>(residual_out));
}

void NormOf(const NormOptions& o, const void* a, const void* residual, void* residual_out,
            void* out) {
  (o.dtype == Dtype::kFp16 ? NormRows<Dtype::kFp16>
                           : NormRows<Dtype::kBf16>)(o, static_cast<const uint16_t*>(a),
                                                     static_cast<const uint16_t*>(residual),
                                                     static_cast<uint16_t*>(residual_out),
                                                     static_cast<uint16_t*>(out));
}

void QuantizeOf(const QuantizeOptions& o, const void* y, uint8_t* out8, float* scales) {
  (o.dtype == Dtype::kFp16
       ? QuantizeRows<Dtype::kFp16>
       : QuantizeRows<Dtype::kBf16>)(o, static_cast<const uint16_t*>(y), out8, scales);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qrd {

HWY_EXPORT(AddOf);
HWY_EXPORT(NormOf);
HWY_EXPORT(QuantizeOf);

void AddResidual(Dtype dtype, uint64_t tokens, uint32_t hidden, const void* a, const void* residual,
                 void* residual_out) {
  const ScopedFloatEnvironment float_environment;
  HWY_DYNAMIC_DISPATCH(AddOf)(dtype, tokens, hidden, a, residual, residual_out);
}

void RmsNorm(const NormOptions& options, const void* h, void* out) {
  const ScopedFloatEnvironment float_environment;
  HWY_DYNAMIC_DISPATCH(NormOf)(options, h, nullptr, nullptr, out);
}

void AddRmsNorm(const NormOptions& options, const void* a, const void* residual, void* residual_out,
                void* out) {
  const ScopedFloatEnvironment float_environment;
  HWY_DYNAMIC_DISPATCH(NormOf)(options, a, residual, residual_out, out);
}

void QuantizeFp8(const QuantizeOptions& options, const void* y, uint8_t* out8, float* scales) {
  const ScopedFloatEnvironment float_environment;
  HWY_DYNAMIC_DISPATCH(QuantizeOf)(options, y, out8, scales);
}

}  // namespace qrd
#endif  // HWY_ONCE
