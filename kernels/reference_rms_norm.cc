// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference_rms_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/float_environment.h"
#include "kernels/reference.h"

#if defined(__FAST_MATH__) || defined(__FP_FAST_MATH)
#error "the contract asks for IEEE arithmetic: no -ffast-math"
#endif

namespace qrd {
namespace {

constexpr uint32_t kNanBits = 0x7FC00000;
constexpr float kScaleMin = 0x1p-126f;
constexpr uint32_t kMantissaBits = 3;  // of e4m3

struct Fp8Format {
  uint32_t bias;
  float largest;
  uint8_t nan;
  bool negative_zero;
};
Fp8Format FormatOf(Quant quant) {
  return quant == Quant::kE4m3fn ? Fp8Format{7, 448.0f, 0x7F, true}
                                 : Fp8Format{8, 240.0f, 0x80, false};
}

// value / 2^shift, to nearest, ties to even.
uint32_t ShiftRightRounded(uint32_t value, uint32_t shift) {
  if (shift >= 32) return 0;
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1), half = 1u << (shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1) != 0));
}

// Codes of the magnitudes: those of subnormals count multiples of the smallest step, and a carry
// out of the mantissa steps the exponent.
uint32_t EncodeMagnitude(const Fp8Format& format, float magnitude) {
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t exponent = bits >> 23;
  const uint32_t lowest = 127 + 1 - format.bias;  // fp32's exponent of the smallest normal number
  if (exponent >= lowest) {
    return ShiftRightRounded(bits, 23 - kMantissaBits) - ((lowest - 1) << kMantissaBits);
  }
  if (exponent == 0) return 0;
  // The mantissa counts 2^(exponent - 150); a step is 2^(1 - bias - kMantissaBits).
  const uint32_t mantissa = (bits & 0x7FFFFF) | 0x800000;
  return ShiftRightRounded(mantissa, lowest + 23 - kMantissaBits - exponent);
}

std::vector<float> Widened(Dtype dtype, const void* tensor, uint64_t first, uint64_t count) {
  std::vector<float> values(count);
  ReferenceWidenToFp32(dtype, static_cast<const std::byte*>(tensor) + first * DtypeBytes(dtype),
                       count, values.data());
  return values;
}

void StoreRounded(Dtype dtype, const std::vector<float>& values, uint64_t first, void* tensor) {
  ReferenceRoundToDtype(dtype, values.data(), values.size(),
                        static_cast<std::byte*>(tensor) + first * DtypeBytes(dtype));
}

float RstdOf(const ReferenceNorm& norm, const std::vector<float>& h) {
  const float mean = ReferenceSumOfSquares(h.data(), norm.hidden) / static_cast<float>(norm.hidden);
  const float sum = mean + norm.eps;
  return 1.0f / std::sqrt(sum);
}

// Steps 7 to 9 of the values that share a scale.
void QuantizeGroup(Quant quant, float divisor, const float* y, uint32_t count, uint8_t* codes,
                   float* scale) {
  float amax = 0;
  bool poisoned = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!std::isfinite(y[i])) poisoned = true;
    amax = std::max(amax, std::fabs(y[i]));
  }
  if (poisoned) {
    *scale = std::bit_cast<float>(kNanBits);
    std::fill(codes, codes + count, FormatOf(quant).nan);
    return;
  }
  *scale = amax == 0 ? 1.0f : std::max(amax / divisor, kScaleMin);
  for (uint32_t i = 0; i < count; ++i) codes[i] = ReferenceEncodeFp8(quant, y[i] / *scale);
}

}  // namespace

uint8_t ReferenceEncodeFp8(Quant quant, float value) {
  const Fp8Format format = FormatOf(quant);
  if (std::isnan(value)) return format.nan;
  const uint32_t magnitude = EncodeMagnitude(format, std::min(std::fabs(value), format.largest));
  if (magnitude == 0 && !format.negative_zero) return 0;
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 0x80 : 0));
}

float ReferenceDecodeFp8(Quant quant, uint8_t code) {
  const Fp8Format format = FormatOf(quant);
  const bool is_nan = quant == Quant::kE4m3fn ? (code & 0x7F) == 0x7F : code == 0x80;
  if (is_nan) return std::bit_cast<float>(kNanBits);
  const int exponent = code >> kMantissaBits & 15, mantissa = code & 7;
  const int bias = static_cast<int>(format.bias);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), 1 - bias - 3)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - bias - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

void ReferenceAdd(Dtype dtype, uint64_t count, const void* a, const void* residual,
                  void* residual_out) {
  const ScopedFloatEnvironment float_environment;
  std::vector<float> h = Widened(dtype, a, 0, count);
  const std::vector<float> other =
      residual != nullptr ? Widened(dtype, residual, 0, count) : std::vector<float>(count, 0.0f);
  for (uint64_t i = 0; i < count; ++i) h[i] = h[i] + other[i];
  StoreRounded(dtype, h, 0, residual_out);
}

ReferenceNorm NormOf(const LaunchParams& params, uint32_t rank) {
  const RmsNormParams& p = params.rms_norm;
  return {params.dtype, p.hidden, p.eps, p.gemma, p.weight_dtype, p.weight[rank]};
}

float ReferenceSumOfSquares(const float* h, uint32_t count) {
  std::vector<float> sums(std::bit_ceil(std::max(count, 1u)), 0.0f);
  for (uint32_t i = 0; i < count; ++i) sums[i] = h[i] * h[i];
  while (sums.size() > 1) {
    for (size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
    sums.resize(sums.size() / 2);
  }
  return sums[0];
}

float ReferenceRstd(const ReferenceNorm& norm, const void* h) {
  const ScopedFloatEnvironment float_environment;
  return RstdOf(norm, Widened(norm.dtype, h, 0, norm.hidden));
}

void ReferenceRmsNorm(const ReferenceNorm& norm, uint64_t tokens, const void* h, void* y) {
  const ScopedFloatEnvironment float_environment;
  std::vector<float> gain = Widened(norm.weight_dtype, norm.weight, 0, norm.hidden);
  if (norm.gemma) {
    for (float& g : gain) g = 1.0f + g;
  }
  for (uint64_t row = 0; row < tokens; ++row) {
    std::vector<float> values = Widened(norm.dtype, h, row * norm.hidden, norm.hidden);
    const float rstd = RstdOf(norm, values);
    for (uint32_t i = 0; i < norm.hidden; ++i) values[i] = (values[i] * rstd) * gain[i];
    StoreRounded(norm.dtype, values, row * norm.hidden, y);
  }
}

void ReferenceQuantizeFp8(Dtype dtype, uint64_t tokens, uint32_t hidden, Quant quant,
                          uint32_t scale_group, float divisor, const void* y, uint8_t* codes,
                          float* scales) {
  const ScopedFloatEnvironment float_environment;
  const float by = divisor == 0 ? QuantMax(quant) : divisor;
  const uint32_t step = scale_group == 0 ? hidden : scale_group;
  for (uint64_t row = 0; row < tokens; ++row) {
    const std::vector<float> values = Widened(dtype, y, row * hidden, hidden);
    for (uint32_t i = 0; i < hidden; i += step) {
      QuantizeGroup(quant, by, &values[i], std::min(step, hidden - i), codes + row * hidden + i,
                    scales++);
    }
  }
}

namespace {

// `owner` takes its rows, and every rank gets what it makes of them.
void ReferenceSharded(const LaunchParams& params) {
  const RmsNormParams& p = params.rms_norm;
  std::vector<std::vector<uint16_t>> reduced(params.world_size);
  for (uint32_t owner = 0; owner < params.world_size; ++owner) {
    const ScopedFloatEnvironment float_environment;
    reduced[owner].resize(params.count);
    ReferenceReduceAtOwner(params.codec, params.dtype, params.world_size, params.count,
                           params.inputs, owner, reduced[owner].data());
  }
  // Every input has been read: an output may now take its memory.
  const size_t row_scales =
      p.scale_group == 0 ? 1 : (p.hidden + size_t{p.scale_group} - 1) / p.scale_group;
  for (uint32_t owner = 0; owner < params.world_size; ++owner) {
    const RowRange rows = OwnedRows(p.tokens, params.world_size, owner);
    const uint64_t tokens = rows.last - rows.first, first = rows.first * p.hidden;
    if (tokens == 0) continue;
    std::vector<uint16_t> y(tokens * p.hidden);
    ReferenceAdd(params.dtype, y.size(), reduced[owner].data() + first, p.residual[owner],
                 p.residual_out[owner]);
    ReferenceRmsNorm(NormOf(params, owner), tokens, p.residual_out[owner], y.data());
    for (uint32_t rank = 0; rank < params.world_size; ++rank) {
      void* const copy = p.quant == Quant::kNone ? p.out[rank] : p.mirror[rank];
      if (copy != nullptr) {
        std::memcpy(static_cast<uint16_t*>(copy) + first, y.data(), y.size() * sizeof(uint16_t));
      }
      if (p.quant == Quant::kNone) continue;
      ReferenceQuantizeFp8(params.dtype, tokens, p.hidden, p.quant, p.scale_group, p.divisor,
                           y.data(), p.out8[rank] + first,
                           p.scales[rank] + rows.first * row_scales);
    }
  }
}

}  // namespace

void ReferenceAllReduceRmsNorm(const LaunchParams& params) {
  const RmsNormParams& p = params.rms_norm;
  if (p.residual_layout == ResidualLayout::kSharded) return ReferenceSharded(params);
  std::vector<uint16_t> reduced(params.count), y(params.count);
  {
    const ScopedFloatEnvironment float_environment;
    ReferenceAllReduce(params.codec, params.algorithm, params.dtype, params.op, params.world_size,
                       params.count, params.inputs, reduced.data());
  }
  // Every input has been read: an output may now take its memory.
  for (uint32_t rank = 0; rank < params.world_size; ++rank) {
    ReferenceAdd(params.dtype, params.count, reduced.data(), p.residual[rank],
                 p.residual_out[rank]);
    ReferenceRmsNorm(NormOf(params, rank), p.tokens, p.residual_out[rank], y.data());
    void* const copy = p.quant == Quant::kNone ? p.out[rank] : p.mirror[rank];
    if (copy != nullptr) std::memcpy(copy, y.data(), params.count * sizeof(uint16_t));
    if (p.quant == Quant::kNone) continue;
    ReferenceQuantizeFp8(params.dtype, p.tokens, p.hidden, p.quant, p.scale_group, p.divisor,
                         y.data(), p.out8[rank], p.scales[rank]);
  }
}

}  // namespace qrd
