// SPDX-License-Identifier: Apache-2.0
// The lp codecs (wire format, section 5) on the device. A thread holds an octet: one lane of the
// group (lp3c: half a lane); 8 (16) neighbouring lanes of the wave a group. The same bytes as
// kernels/reference.cc.
//
// Thread safety: wave functions on registers.
#pragma once

#include "kernels/codec_table.h"
#include "kernels/gpu/block_codec.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

template <Codec kCodec, Dtype kDtype>
struct LpCodec {
  using D = DtypeOnDevice<kDtype>;
  static constexpr const LpSpec& Lp() { return SpecOf(kCodec).lp; }
  static constexpr uint32_t kGroupElements = SpecOf(kCodec).group_elements;
  static constexpr uint32_t kGroupLanes = kGroupElements / kOctet;
  static constexpr uint32_t kOctetsPerLane = kGroupLanes / kLanesPerGroup;
  static constexpr uint32_t kWidth0 = SpecOf(kCodec).plane_bits[0];
  static constexpr uint32_t kWidth1 = SpecOf(kCodec).plane_bits[1];
  static constexpr uint32_t kMetaBytes = 4;
  static constexpr uint32_t kLevelBits = Lp().level_bits;
  static constexpr uint32_t kLevelMask = (1u << kLevelBits) - 1;
  static constexpr uint32_t kM = Lp().spike_mantissa_bits;
  static constexpr uint32_t kWordM = Lp().word_mantissa_bits;
  static constexpr float kLimit = Lp().limit;
  static constexpr uint32_t kSpikeMax = D::kMaxExponent << kM | ((1u << kM) - 1);

  // The tables as constants in registers: device code must not read the host's arrays. Four
  // attenuations of a row, one a byte.
  static constexpr uint32_t PackedRow(uint32_t row) {
    return Lp().attenuation[row][0] | Lp().attenuation[row][1] << 8 |
           Lp().attenuation[row][2] << 16 | static_cast<uint32_t>(Lp().attenuation[row][3]) << 24;
  }
  static constexpr uint32_t kRow0 = PackedRow(0), kRow1 = PackedRow(1);
  static constexpr uint8_t DoubleLevel(uint32_t i) {
    return static_cast<uint8_t>(Lp().levels[i] * 2);
  }
  static constexpr uint32_t PackedLevels(uint32_t first) {
    return DoubleLevel(first) | DoubleLevel(first + 1) << 8 | DoubleLevel(first + 2) << 16 |
           static_cast<uint32_t>(DoubleLevel(first + 3)) << 24;
  }
  static constexpr uint32_t kLevelsLow = PackedLevels(0), kLevelsHigh = PackedLevels(4);
  static constexpr float kThreshold0 = Lp().thresholds[0], kThreshold1 = Lp().thresholds[1],
                         kThreshold2 = Lp().thresholds[2];

  static QRD_DEVICE uint32_t GroupLane() { return LaneIndex() % kGroupLanes; }

  // `top` of section 5.1 from E and h.
  static QRD_DEVICE uint32_t StepTop(uint32_t exponent, uint32_t half) {
    return 4 * exponent + (kWordM != 0 ? half + 2 : 4);
  }
  static QRD_DEVICE float Step(uint32_t top, uint32_t attenuation) {
    return Float(top > attenuation ? (top - attenuation) << 21 : 0);
  }
  // 1 / step, the same bits as the division. `quarter`: the step's bits >> 21.
  static QRD_DEVICE float InverseOfStep(uint32_t quarter) {
    const uint32_t exponent = quarter >> 2, fraction = quarter & 3;
    // Of the largest spikes of lp2 the inverse is subnormal.
    if (kCodec == Codec::kLp2 && exponent >= 253) return 1.0f / Float(quarter << 21);
    const uint32_t mantissa = fraction == 1 ? 0x4CCCCDu : fraction == 2 ? 0x2AAAABu : 0x124925u;
    return Float((253u << 23) - (exponent << 23) + (fraction == 0 ? 1u << 23 : mantissa));
  }

  // The spike of the group, its magnitude bits (fp32); its place in this octet, or kOctet if it is
  // elsewhere; the largest magnitude bits of this octet without the spike.
  struct Spike {
    uint32_t top, own, rest;
  };

  static QRD_DEVICE Spike FindSpike(const Octet<kDtype>& x) requires(D::kIs16) {
    constexpr uint32_t kMagnitudes = 0x7FFF7FFFu;
    uint32_t m[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) m[i] = x.w[i] & kMagnitudes;
    // Largest and second largest of the even and of the odd elements, then of all.
    const uint32_t a0 = MaxS16x2(m[0], m[1]), b0 = MinS16x2(m[0], m[1]);
    const uint32_t a1 = MaxS16x2(m[2], m[3]), b1 = MinS16x2(m[2], m[3]);
    const uint32_t a = MaxS16x2(a0, a1);
    const uint32_t b = MaxS16x2(MaxS16x2(MinS16x2(a0, a1), b0), b1);
    const uint32_t a_swapped = a << 16 | a >> 16, b_swapped = b << 16 | b >> 16;
    const uint32_t first = MaxS16x2(a, a_swapped);
    const uint32_t second = MaxS16x2(MaxS16x2(MinS16x2(a, a_swapped), b), b_swapped);
    // The lowest lane that has the largest has the larger key.
    const uint32_t rank = kGroupLanes - 1 - GroupLane();
    const uint32_t key = GroupMaxU32<kGroupLanes>((first & 0x7FFF0000u) | rank);
    const bool is_owner = (key & (kGroupLanes - 1)) == rank;
    // Bit j: element j is not the largest.
    const uint32_t both = PackHigh16(key, key);
    uint32_t others = MinS16x2(m[0] ^ both, 0x00010001u);
#pragma unroll
    for (uint32_t i = 1; i < 4; ++i) others += MinS16x2(m[i] ^ both, 0x00010001u) << 2 * i;
    others |= others >> 15;
    const uint32_t own = is_owner ? TrailingZeros(~others) : kOctet;
    const uint32_t rest = is_owner ? second : first;
    if constexpr (kDtype == Dtype::kFp16) return {Bits(Fp16High(key)), own, Bits(Fp16High(rest))};
    return {key & 0x7FFF0000u, own, rest & 0x7FFF0000u};
  }

  static QRD_DEVICE Spike FindSpike(const Floats& x) {
    uint32_t first = 0, second = 0;
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) {
      const uint32_t m = Bits(x.v[j]) & kMagnitudeMask;
      second = MaxU32(second, MinU32(first, m));
      first = MaxU32(first, m);
    }
    const uint32_t top = GroupMaxU32<kGroupLanes>(first);
    const uint32_t rank = kGroupLanes - GroupLane();
    const bool is_owner = GroupMaxU32<kGroupLanes>(first == top ? rank : 0) == rank;
    uint32_t own = kOctet;
#pragma unroll
    for (uint32_t j = kOctet; j-- > 0;) own = (Bits(x.v[j]) & kMagnitudeMask) == top ? j : own;
    return {top, is_owner ? own : kOctet, is_owner ? second : first};
  }

  // Magnitudes and, in bit j, the sign of element j.
  static QRD_DEVICE Floats MagnitudesOf(const Octet<kDtype>& x) requires(D::kIs16) {
    Octet<kDtype> magnitudes;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) magnitudes.w[i] = x.w[i] & 0x7FFF7FFFu;
    return Widen<kDtype>(magnitudes);
  }
  static QRD_DEVICE Floats MagnitudesOf(const Floats& x) {
    Floats magnitudes;
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) magnitudes.v[j] = Abs(x.v[j]);
    return magnitudes;
  }
  static QRD_DEVICE uint32_t SignsOf(const Octet<kDtype>& x) requires(D::kIs16) {
    uint32_t signs = 0;
#pragma unroll
    for (uint32_t i = 4; i-- > 0;) signs = PushSign(PushSign(signs, x.w[i]), x.w[i] << 16);
    return signs;
  }
  static QRD_DEVICE uint32_t SignsOf(const Floats& x) {
    uint32_t signs = 0;
#pragma unroll
    for (uint32_t j = kOctet; j-- > 0;) signs = PushSign(signs, Bits(x.v[j]));
    return signs;
  }

  // Levels of all elements, element j at bit j * kWidth0: sums of products that are exact.
  static QRD_DEVICE uint32_t PackLevels(const Floats& magnitudes, float inverse) {
    if constexpr (kCodec == Codec::kLp4) {
      uint32_t levels = 0;
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) {
        const float v = magnitudes.v[j] * inverse;
        // Below 4.25: whole numbers up to 3; above: halves.
        const uint32_t low = FloorBits(v < 3.0f ? v : 3.0f);
        const uint32_t high = MinU32(HalfFloorBits(v), 0x4B000007u);
        levels += (v < 4.25f ? low : high) << 4 * j;
      }
      return levels - (0x4B000000u + (0x4B000000u << 4));
    } else {
      float levels = 0x1p23f;
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) {
        const float v = magnitudes.v[j] * inverse;
        float level = AtLeast(v, kThreshold0);
        if constexpr (kLevelBits == 2) {
          level = level + AtLeast(v, kThreshold1) + AtLeast(v, kThreshold2);
        }
        levels = Fma(level, static_cast<float>(1u << 2 * j), levels);
      }
      return Bits(levels) & 0xFFFF;
    }
  }

  struct LaneStep {
    uint32_t code;     // 0 to 3
    uint32_t quarter;  // bits of the step >> 21
  };
  // Steps get smaller with the code; the largest code that fits counts.
  static QRD_DEVICE LaneStep ChooseStep(uint32_t top, uint32_t row, uint32_t lane_max) {
    LaneStep step = {0, top - (row != 0 ? kRow1 & 0xFF : kRow0 & 0xFF)};
#pragma unroll
    for (uint32_t j = 1; j < 4; ++j) {
      const uint32_t quarter = top - (row != 0 ? kRow1 >> 8 * j & 0xFF : kRow0 >> 8 * j & 0xFF);
      const bool fits = Float(lane_max) <= kLimit * Float(quarter << 21);
      step.code = fits ? j : step.code;
      step.quarter = fits ? quarter : step.quarter;
    }
    return step;
  }

  // Sections 5.2 and 5.3.
  template <typename Source>
  static QRD_DEVICE uint32_t EncodeFrom(const Source& x, Planes* planes) {
    const Spike spike = FindSpike(x);
    const uint32_t rounded = MinU32((spike.top + (1u << (22 - kM))) >> (23 - kM), kSpikeMax);
    const uint32_t top = StepTop(rounded >> kM, rounded >> (kM - 1) & 1);
    uint32_t lane_max = spike.rest;
    if constexpr (kOctetsPerLane == 2) lane_max = MaxU32(lane_max, LaneXor<1>(lane_max));
    const uint32_t rest = GroupMaxU32<kGroupLanes>(lane_max);
    // (Of a group without data nothing that follows counts.)
    const uint32_t row = Float(rest) <= kLimit * Float((top - (kRow1 & 0xFF)) << 21);
    const LaneStep step = ChooseStep(top, row, lane_max);

    uint32_t levels = PackLevels(MagnitudesOf(x), InverseOfStep(step.quarter));
    // The lane codes and the spike's index, gathered from the lanes of the group.
    uint32_t gathered = step.code << 2 * (GroupLane() / kOctetsPerLane);
    if (spike.own < kOctet) {
      const uint32_t at = spike.own * kWidth0;
      levels = (levels & ~(kLevelMask << at)) | (rounded & kLevelMask) << at;
      gathered |= (GroupLane() * kOctet + spike.own) << kLpIndexShift;
    }
    gathered |= LaneXor<1>(gathered);
    gathered |= LaneXor<2>(gathered);
    gathered |= LaneXor<4>(gathered);
    if constexpr (kGroupLanes == 16) gathered |= LaneXor<8>(gathered);
    const uint32_t signs = SignsOf(x);
    if constexpr (kWidth1 != 0) {
      *planes = {levels, 0, signs};
    } else if constexpr (kWidth0 == 4) {
      *planes = {levels | SpreadBitsToNibbles(signs) << 3, 0, 0};
    } else {
      *planes = {levels | SpreadBitsToPairs(signs) << 1, 0, 0};
    }
    if (spike.top >= D::kLimit || spike.top < kFloorBits) {
      *planes = {0, 0, 0};
      return spike.top < kFloorBits ? kLpZeroWord : kLpNanWord;
    }
    return (rounded >> (kM - kWordM)) << (24 - kWordM) | row << (23 - kWordM) | gathered;
  }

  static QRD_DEVICE uint32_t Encode(const Octet<kDtype>& x, Planes* planes) {
    if constexpr (D::kIs16) {
      return EncodeFrom(x, planes);
    } else {
      return EncodeFrom(Widen<kDtype>(x), planes);
    }
  }
  static QRD_DEVICE uint32_t EncodeFloats(const Floats& x, Planes* planes) {
    return EncodeFrom(x, planes);
  }

  // Can this group decode to NaN? (Or to Inf; no encoder writes that.)
  static QRD_DEVICE bool MayBeNan(uint32_t word) { return word >> 24 == 255; }

  // Section 5.4. `lane` is the octet's place in its group.
  static QRD_DEVICE Floats Decode(const Planes& planes, uint32_t word, uint32_t lane) {
    const uint32_t exponent = word >> 24, half = word >> 23 & 1;
    const bool row = (word >> (23 - kWordM) & 1) != 0;
    const uint32_t lane_code = word >> 2 * (lane / kOctetsPerLane) & 3;
    const uint32_t attenuation = (row ? kRow1 : kRow0) >> 8 * lane_code & 0xFF;
    float step = Step(StepTop(exponent, half), attenuation);
    uint32_t spike_word = word >> (24 - kWordM);
    uint32_t own = (word >> kLpIndexShift & (kGroupElements - 1)) - lane * kOctet;
    uint32_t nibbles = planes.low, signs;
    if constexpr (kWidth0 == 4) {
      signs = nibbles & 0x88888888u;
    } else {
      nibbles = SpreadPairsToNibbles(planes.low);
      signs = kWidth1 != 0 ? SpreadBitsToNibbles(planes.second) << 3 : nibbles << 2 & 0x88888888u;
      if constexpr (kWidth1 == 0) nibbles &= 0x11111111u;
    }
    if (exponent == 0 || exponent == 255) {
      // No data: +0 or NaN, whatever the planes say.
      step = Float(exponent == 0 ? 0 : kCanonicalNanBits);
      signs = 0;
      own = kOctet;
    }
    const Lookup8 levels(kLevelsLow, kLevelsHigh, nibbles);
    const uint32_t slot = nibbles >> (own & 7) * 4 & kLevelMask;
    const float spike = Float((spike_word << kLevelBits | slot) << (23 - kM));
    Floats y;
    DecodeElement<0>(levels, signs, step, own, spike, y);
    return y;
  }

  template <uint32_t kIndex>
  static QRD_DEVICE void DecodeElement(const Lookup8& levels, uint32_t signs, float step,
                                       uint32_t own, float spike, Floats& y) {
    const float magnitude = own == kIndex ? spike : levels.Half<kIndex>() * step;
    y.v[kIndex] = Float(Bits(magnitude) ^ (signs << (28 - 4 * kIndex) & 0x80000000u));
    if constexpr (kIndex + 1 < kOctet) {
      DecodeElement<kIndex + 1>(levels, signs, step, own, spike, y);
    }
  }
};

}  // namespace qrd::gpu
