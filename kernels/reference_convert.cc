// SPDX-License-Identifier: Apache-2.0
// Conversions between fp32 and the dtypes, one element at a time, in integers.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codec_table.h"
#include "kernels/reference.h"

namespace qrd {
namespace {

// value >> shift, to nearest, ties to even.
uint32_t ShiftRightRounded(uint32_t value, uint32_t shift) {
  if (shift >= 32) return 0;
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1), half = 1u << (shift - 1);
  return quotient + (rest > half || (rest == half && (quotient & 1) != 0));
}

}  // namespace

uint16_t ReferenceRoundToBf16(float value) {
  if (std::isnan(value)) return 0x7FC0;
  // A carry out of the mantissa steps the exponent, in the end to Inf: just what is wanted.
  return static_cast<uint16_t>(ShiftRightRounded(std::bit_cast<uint32_t>(value), 16));
}

uint16_t ReferenceRoundToFp16(float value) {
  if (std::isnan(value)) return 0x7E00;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & kMagnitudeMask;
  const uint32_t exponent = magnitude >> 23;
  if (magnitude >= SpecOf(Dtype::kFp16).limit) return static_cast<uint16_t>(sign | 0x7C00);
  if (exponent >= 113) {  // 2^-14: normal in fp16
    return static_cast<uint16_t>(sign | (ShiftRightRounded(magnitude, 13) - (112 << 10)));
  }
  if (exponent == 0) return static_cast<uint16_t>(sign);
  // Subnormal in fp16: a multiple of 2^-24. The mantissa counts 2^(exponent - 150).
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  return static_cast<uint16_t>(sign | ShiftRightRounded(mantissa, 126 - exponent));
}

float ReferenceWidenBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float ReferenceWidenFp16(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

void ReferenceRoundToDtype(Dtype dtype, const float* y, uint64_t count, void* out) {
  for (uint64_t i = 0; i < count; ++i) {
    if (dtype == Dtype::kFp32) {
      static_cast<float*>(out)[i] =
          std::isnan(y[i]) ? std::bit_cast<float>(kCanonicalNanBits) : y[i];
    } else {
      static_cast<uint16_t*>(out)[i] =
          dtype == Dtype::kFp16 ? ReferenceRoundToFp16(y[i]) : ReferenceRoundToBf16(y[i]);
    }
  }
}

void ReferenceWidenToFp32(Dtype dtype, const void* x, uint64_t count, float* y) {
  if (dtype == Dtype::kFp32) {
    if (count != 0) std::memmove(y, x, count * sizeof(float));
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint16_t bits = static_cast<const uint16_t*>(x)[i];
    y[i] = dtype == Dtype::kFp16 ? ReferenceWidenFp16(bits) : ReferenceWidenBf16(bits);
  }
}

}  // namespace qrd
