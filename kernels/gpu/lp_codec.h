// SPDX-License-Identifier: Apache-2.0
// The lp codecs (wire format, section 5) on the device. A thread holds an octet: one lane of the group
// (lp3c: half a lane); 8 (16) neighbouring lanes of the wave a group. The same bytes as
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

  static constexpr uint32_t Attenuation(uint32_t row, uint32_t code) {
    return Lp().attenuation[row][code];
  }
  // Four attenuations of a row, one a byte.
  static constexpr uint32_t PackedRow(uint32_t row) {
    return Attenuation(row, 0) | Attenuation(row, 1) << 8 | Attenuation(row, 2) << 16 |
           Attenuation(row, 3) << 24;
  }
  static constexpr uint32_t kRow0 = PackedRow(0), kRow1 = PackedRow(1);
  static constexpr uint8_t DoubleLevel(uint32_t i) { return static_cast<uint8_t>(Lp().levels[i] * 2); }
  static constexpr uint32_t PackedLevels(uint32_t first) {
    return DoubleLevel(first) | DoubleLevel(first + 1) << 8 | DoubleLevel(first + 2) << 16 |
           static_cast<uint32_t>(DoubleLevel(first + 3)) << 24;
  }
  static constexpr uint32_t kLevelsLow = PackedLevels(0), kLevelsHigh = PackedLevels(4);
  static constexpr float Threshold(uint32_t i) { return Lp().thresholds[i]; }

  static QRD_DEVICE uint32_t GroupLane() { return LaneIndex() % kGroupLanes; }

  // `top` of section 5.1 from E and h.
  static QRD_DEVICE uint32_t StepTop(uint32_t exponent, uint32_t half) {
    return 4 * exponent + (kWordM != 0 ? half + 2 : 4);
  }
  static QRD_DEVICE float Step(uint32_t top, uint32_t attenuation) {
    return Float(top > attenuation ? (top - attenuation) << 21 : 0);
  }
  // 1 / step, the same bits as the division.
  static QRD_DEVICE float InverseOfStep(uint32_t quarter) {
    const uint32_t exponent = quarter >> 2, fraction = quarter & 3;
    if (exponent >= 253) return 1.0f / Float(quarter << 21);  // the inverse may be subnormal
    const uint32_t mantissa = fraction == 1   ? 0x4CCCCDu
                              : fraction == 2 ? 0x2AAAABu
                                              : 0x124925u;
    return Float(fraction == 0 ? (254 - exponent) << 23 : (253 - exponent) << 23 | mantissa);
  }

  // The spike of the group: magnitude bits (fp32) and index, and the largest magnitude bits of the
  // octet without the spike.
  struct Spike {
    uint32_t top, index, rest;
  };

  // Is the spike in this octet, and where.
  static QRD_DEVICE uint32_t OwnIndex(uint32_t index) { return index - GroupLane() * kOctet; }

  static QRD_DEVICE Spike FindSpike(const Octet<kDtype>& x)
    requires(D::kIs16)
  {
    // Magnitude above, what is left of the group after the element below: the lowest index wins.
    constexpr uint32_t kUpper = 0x7FFF0000u;
    uint32_t key = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      key = MaxU32(key, (x.w[i] << 16 & kUpper) | (7 - 2 * i));
      key = MaxU32(key, (x.w[i] & kUpper) | (6 - 2 * i));
    }
    key = GroupMaxU32<kGroupLanes>(key + (kGroupLanes - 1 - GroupLane()) * kOctet);
    const uint32_t index = kGroupElements - 1 - (key & (kGroupElements - 1));
    const uint32_t own = OwnIndex(index);
    uint32_t rest = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t magnitudes = x.w[i] & 0x7FFF7FFFu;
      if (own >> 1 == i) magnitudes &= own % 2 == 0 ? 0xFFFF0000u : 0x0000FFFFu;
      rest = MaxS16x2(rest, magnitudes);
    }
    rest = MaxU32(rest & 0xFFFF, rest >> 16);
    if constexpr (kDtype == Dtype::kFp16) return {Bits(Fp16High(key)), index, Bits(Fp16Low(rest))};
    return {key & kUpper, index, rest << 16};
  }

  static QRD_DEVICE Spike FindSpike(const Floats& x) {
    uint32_t own_top = 0;
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) own_top = MaxU32(own_top, Bits(x.v[j]) & kMagnitudeMask);
    const uint32_t top = GroupMaxU32<kGroupLanes>(own_top);
    uint32_t left = 0;  // 1 + what is left of the group after the element; 0: not in this octet
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) {
      const bool is_top = (Bits(x.v[kOctet - 1 - j]) & kMagnitudeMask) == top;
      left = is_top ? 1 + j + (kGroupLanes - 1 - GroupLane()) * kOctet : left;
    }
    const uint32_t index = kGroupElements - GroupMaxU32<kGroupLanes>(left);
    const uint32_t own = OwnIndex(index);
    uint32_t rest = 0;
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) {
      rest = MaxU32(rest, own == j ? 0 : Bits(x.v[j]) & kMagnitudeMask);
    }
    return {top, index, rest};
  }

  static QRD_DEVICE uint32_t LevelOf(float v) {
    if constexpr (kCodec == Codec::kLp4) {
      // Below 4.25: whole numbers up to 3; above: halves.
      return v < 4.25f ? FloorSmall(v < 3.0f ? v : 3.0f) : MinU32(FloorHalf(v) + 2, 7);
    } else {
      uint32_t level = v >= Threshold(0);
#pragma unroll
      for (uint32_t t = 1; t < kLevelMask; ++t) level += v >= Threshold(t);
      return level;
    }
  }

  // Sections 5.2 and 5.3.
  static QRD_DEVICE uint32_t EncodeSpike(const Spike& spike, const Floats& x, Planes* planes) {
    const uint32_t rounded = MinU32((spike.top + (1u << (22 - kM))) >> (23 - kM), kSpikeMax);
    const uint32_t top = StepTop(rounded >> kM, rounded >> (kM - 1) & 1);
    uint32_t lane_max = spike.rest;
    if constexpr (kOctetsPerLane == 2) lane_max = MaxU32(lane_max, LaneXor<1>(lane_max));
    const uint32_t rest = GroupMaxU32<kGroupLanes>(lane_max);
    const bool has_data = spike.top < D::kLimit && spike.top >= kFloorBits;

    const uint32_t row = Float(rest) <= kLimit * Step(top, Attenuation(1, 0));
    uint32_t code = 0;
#pragma unroll
    for (uint32_t j = 1; j < 4; ++j) {
      const uint32_t attenuation = row != 0 ? Attenuation(1, j) : Attenuation(0, j);
      code += Float(lane_max) <= kLimit * Step(top, attenuation);
    }
    const float inverse =
        InverseOfStep(top - ((row != 0 ? kRow1 : kRow0) >> 8 * code & 0xFF));

    CodePairs codes;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      codes.w[j] = PackLow16(CodeOf(x.v[j], inverse), CodeOf(x.v[j + 4], inverse));
    }
    *planes = PackCodes(codes);
    const uint32_t own = OwnIndex(spike.index);
    if (own < kOctet) {
      planes->low = (planes->low & ~(kLevelMask << own * kWidth0)) |
                    (rounded & kLevelMask) << own * kWidth0;
    }
    // The lane codes of the group, gathered from its lanes.
    const uint32_t lane = GroupLane() / kOctetsPerLane;
    uint32_t lane_codes = code << 2 * lane;
    if constexpr (kOctetsPerLane == 1) lane_codes |= LaneXor<1>(lane_codes);
    lane_codes |= LaneXor<2>(lane_codes);
    lane_codes |= LaneXor<4>(lane_codes);
    if constexpr (kOctetsPerLane == 2) lane_codes |= LaneXor<8>(lane_codes);
    uint32_t word = (rounded >> (kM - kWordM)) << (24 - kWordM) | row << (23 - kWordM) |
                    spike.index << kLpIndexShift | lane_codes;
    if (!has_data) {
      *planes = {0, 0, 0};
      word = spike.top < kFloorBits ? kLpZeroWord : kLpNanWord;
    }
    return word;
  }

  static QRD_DEVICE uint32_t CodeOf(float x, float inverse) {
    return LevelOf(Float(Bits(x) & kMagnitudeMask) * inverse) | Bits(x) >> 31 << kLevelBits;
  }

  static QRD_DEVICE Planes PackCodes(const CodePairs& codes) {
    if constexpr (kWidth1 == 0) {
      return {PackPlane<kWidth0, 0>(codes), 0, 0};
    } else {
      return {PackPlane<kWidth0, 0>(codes), 0, PackPlane<kWidth1, kWidth0>(codes)};
    }
  }

  static QRD_DEVICE uint32_t Encode(const Octet<kDtype>& x, Planes* planes) {
    const Floats widened = Widen<kDtype>(x);
    if constexpr (D::kIs16) {
      return EncodeSpike(FindSpike(x), widened, planes);
    } else {
      return EncodeSpike(FindSpike(widened), widened, planes);
    }
  }
  static QRD_DEVICE uint32_t EncodeFloats(const Floats& x, Planes* planes) {
    return EncodeSpike(FindSpike(x), x, planes);
  }

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
