// SPDX-License-Identifier: Apache-2.0
// Conversion of rows to FP8: correctly rounded quotients by one scale, then nearest even,
// saturating. Hardware conversions where they give the same bytes, integers elsewhere.
//
// Thread safety: device functions on registers.
#pragma once

#include "kernels/epilogue.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

inline constexpr uint32_t kPoisonedScaleBits = 0x7FC00000;
QRD_DEVICE uint32_t Fp8NanWord(Quant quant) {
  return quant == Quant::kE4m3fn ? 0x7F7F7F7Fu : 0x80808080u;
}

// Divides by a scale: one reciprocal, then two multiply-adds a value give the correctly rounded
// quotient. Outside of [2^-100, 2^100] both sides are scaled by a power of two, so that no step
// leaves the range of normal numbers before the quotient is far below the formats.
class Divider {
 public:
  explicit QRD_DEVICE Divider(float scale) {
    constexpr float kLow = 0x1p-100f, kHigh = 0x1p100f;
    shift_ = scale < kLow ? 0x1p64f : scale > kHigh ? 0x1p-64f : 1.0f;
    scale_ = scale * shift_;
    inverse_ = Reciprocal(scale_);
    // By Inf: +-0.
    if (scale_ > kHigh) scale_ = 1.0f, inverse_ = 0.0f;
  }
  QRD_DEVICE void Divide(Floats& y) const {
    if (shift_ != 1.0f) {
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) y.v[j] *= shift_;
    }
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) {
      const float q = y.v[j] * inverse_;
      // Of this sign, so that -0 stays -0.
      const float excess = Fma(q, scale_, -y.v[j]);
      y.v[j] = Fma(-excess, inverse_, q);
    }
  }

 private:
  float scale_, inverse_, shift_;
};

// step 8 of the contract; `amax` is finite.
QRD_DEVICE float ScaleOf(float amax, float divisor) {
  const float scale = Divide(amax, divisor);
  return amax == 0.0f ? 1.0f : scale > 0x1p-126f ? scale : 0x1p-126f;
}

// Four bytes of finite values, element 0 lowest.
template <Quant kQuant>
struct Fp8 {
  static constexpr bool kFnuz = kQuant == Quant::kE4m3fnuz;
  static constexpr float kLargest = QuantMax(kQuant);
  static constexpr uint32_t kBias = kFnuz ? 8 : 7;

  static QRD_DEVICE uint32_t EncodeOne(float x) {
    const float magnitude = Abs(x) < kLargest ? Abs(x) : kLargest;
    const uint32_t bits = Bits(magnitude);
    // Below the smallest normal number the codes count quanta, rounded by an addition.
    constexpr float kQuanta = kFnuz ? 0x1p10f : 0x1p9f;
    const uint32_t small = Bits(magnitude * kQuanta + 0x1p23f) - 0x4B000000u;
    const uint32_t normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - kBias) << 3);
    return (magnitude < 8 / kQuanta ? small : normal) | (Bits(x) >> 24 & 0x80);
  }

  static QRD_DEVICE uint32_t Encode(const Floats& x, uint32_t first) {
    uint32_t codes = 0;
#if defined(QRD_HAS_E4M3_CONVERT)
    // FNUZ is OCP at half the value, but for the code of 240, which OCP has no number for.
    constexpr float kFactor = kFnuz ? 2.0f : 1.0f;
    codes = EncodeE4m3Pair(x.v[first] * kFactor, x.v[first + 1] * kFactor) |
            EncodeE4m3Pair(x.v[first + 2] * kFactor, x.v[first + 3] * kFactor) << 16;
    if constexpr (kFnuz) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) codes |= (Abs(x.v[first + j]) > 232.0f ? 1u : 0u) << 8 * j;
    }
#else
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) codes |= EncodeOne(x.v[first + j]) << 8 * j;
#endif
    if constexpr (kFnuz) {  // no -0
      const uint32_t has_magnitude = (codes & 0x7F7F7F7Fu) + 0x7F7F7F7Fu;
      codes &= has_magnitude | 0x7F7F7F7Fu;
    }
    return codes;
  }
};

QRD_DEVICE void EncodeFp8(Quant quant, const Floats& x, uint32_t* low, uint32_t* high) {
  if (quant == Quant::kE4m3fn) {
    *low = Fp8<Quant::kE4m3fn>::Encode(x, 0);
    *high = Fp8<Quant::kE4m3fn>::Encode(x, 4);
  } else {
    *low = Fp8<Quant::kE4m3fnuz>::Encode(x, 0);
    *high = Fp8<Quant::kE4m3fnuz>::Encode(x, 4);
  }
}

}  // namespace qrd::gpu
