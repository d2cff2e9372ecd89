// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference_group.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/reference.h"

namespace qrd::reference {
namespace {

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & kMagnitudeMask; }
bool SignBit(float value) { return std::bit_cast<uint32_t>(value) >> 31 != 0; }
float Abs(float value) { return std::bit_cast<float>(MagnitudeBits(value)); }
float WithSign(float magnitude, bool negative) { return negative ? -magnitude : magnitude; }
// ---- int and fp codecs (section 4)

uint8_t EncodeE4m3(float v) {
  const float a = std::min(Abs(v), 448.0f);
  const uint32_t b = std::bit_cast<uint32_t>(a);
  const uint32_t code = a >= 0x1p-6f ? ((b + 0x7FFFF + (b >> 20 & 1)) >> 20) - 960
                                     : std::bit_cast<uint32_t>(a + 16384.0f) & 15;
  return static_cast<uint8_t>(code | (SignBit(v) ? 0x80 : 0));
}

float DecodeE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return WithSign(magnitude, (code & 0x80) != 0);
}

constexpr std::array<float, 8> kE2m1 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

uint8_t EncodeE2m1(float v) {
  const float a = Abs(v);
  const int code =
      (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
  return static_cast<uint8_t>(code | (SignBit(v) ? 8 : 0));
}

float DecodeE2m1(uint8_t code) { return WithSign(kE2m1[code & 7], (code & 8) != 0); }

uint16_t RoundScale(float value, const DtypeSpec& dtype) {
  return dtype.fp16_scale ? ReferenceRoundToFp16(value) : ReferenceRoundToBf16(value);
}
float WidenScale(uint16_t bits, const DtypeSpec& dtype) {
  return dtype.fp16_scale ? ReferenceWidenFp16(bits) : ReferenceWidenBf16(bits);
}

// Section 4.1. Returns false if the block is coded without data.
bool BlockScale(const CodecSpec& spec, Dtype dtype, const Values& x, uint16_t* scale) {
  const DtypeSpec limits = SpecOf(dtype);
  uint32_t top = 0;
  for (uint32_t i = 0; i < spec.group_elements; ++i) top = std::max(top, MagnitudeBits(x[i]));
  if (top >= limits.limit) {
    *scale = limits.scale_nan;
    return false;
  }
  *scale = 0;
  if (top < kFloorBits) return false;
  float extreme = std::bit_cast<float>(top);
  if (spec.kind == CodecKind::kInt) {
    const auto [low, high] = std::minmax_element(x.begin(), x.begin() + spec.group_elements);
    extreme = -*low >= *high ? *low : *high;
  }
  const uint16_t bits = RoundScale(extreme * spec.reciprocal, limits);
  const uint16_t magnitude = std::min<uint16_t>(bits & 0x7FFF, ScaleMax(spec, dtype));
  if (magnitude == 0) return false;
  *scale = static_cast<uint16_t>((bits & 0x8000) | magnitude);
  return true;
}

Group EncodeBlock(const CodecSpec& spec, Dtype dtype, const Values& x) {
  Group group;
  uint16_t scale = 0;
  const bool has_data = BlockScale(spec, dtype, x, &scale);
  group.meta = scale;
  const float inverse = has_data ? 1.0f / WidenScale(scale, SpecOf(dtype)) : 0;
  for (uint32_t i = 0; i < spec.group_elements; ++i) {
    const float v = has_data ? x[i] * inverse : 0;
    if (spec.kind == CodecKind::kInt) {
      const float q = std::clamp(std::rint(v), -spec.top, spec.top - 1);
      group.codes[i] = static_cast<uint8_t>(q + spec.top);
    } else {
      group.codes[i] = spec.codec == Codec::kFp8 ? EncodeE4m3(v) : EncodeE2m1(v);
    }
  }
  return group;
}

void DecodeBlock(const CodecSpec& spec, Dtype dtype, const Group& group, Values* y) {
  const float scale = WidenScale(static_cast<uint16_t>(group.meta), SpecOf(dtype));
  for (uint32_t i = 0; i < spec.group_elements; ++i) {
    const uint8_t code = group.codes[i];
    const float q = spec.kind == CodecKind::kInt ? static_cast<float>(code) - spec.top
                    : spec.codec == Codec::kFp8  ? DecodeE4m3(code)
                                                 : DecodeE2m1(code);
    (*y)[i] = q * scale;
  }
}

// ---- lp codecs (section 5)

// The step of a row and lane code for a spike with biased exponent and first mantissa bit.
float LaneStep(const LpSpec& lp, uint32_t exponent, uint32_t half, uint32_t row, uint32_t code) {
  const uint32_t top = 4 * exponent + (lp.word_mantissa_bits != 0 ? half + 2 : 4);
  const uint32_t attenuation = lp.attenuation[row][code];
  return std::bit_cast<float>(top > attenuation ? (top - attenuation) << 21 : 0);
}

// The index of the largest magnitude, the lowest on a tie.
uint32_t SpikeIndex(const CodecSpec& spec, const Values& x) {
  uint32_t index = 0;
  for (uint32_t i = 1; i < spec.group_elements; ++i) {
    if (MagnitudeBits(x[i]) > MagnitudeBits(x[index])) index = i;
  }
  return index;
}

Group EncodeLp(const CodecSpec& spec, Dtype dtype, const Values& x) {
  const LpSpec& lp = spec.lp;
  const DtypeSpec limits = SpecOf(dtype);
  const uint32_t m = lp.spike_mantissa_bits, lane_elements = spec.group_elements / kLanesPerGroup;
  Group group;
  const uint32_t index = SpikeIndex(spec, x), top = MagnitudeBits(x[index]);
  if (top >= limits.limit || top < kFloorBits) {
    group.meta = top < kFloorBits ? kLpZeroWord : kLpNanWord;
    return group;
  }
  const uint32_t spike =
      std::min((top + (1u << (22 - m))) >> (23 - m), limits.max_exponent << m | ((1u << m) - 1));
  const uint32_t exponent = spike >> m, half = spike >> (m - 1) & 1;

  std::array<float, kLanesPerGroup> lane_max = {};
  for (uint32_t i = 0; i < spec.group_elements; ++i) {
    float& lane = lane_max[i / lane_elements];
    if (i != index) lane = std::max(lane, Abs(x[i]));
  }
  const float rest = *std::max_element(lane_max.begin(), lane_max.end());
  const uint32_t row = rest <= lp.limit * LaneStep(lp, exponent, half, 1, 0);

  group.meta = (spike >> (m - lp.word_mantissa_bits)) << (24 - lp.word_mantissa_bits) |
               row << (23 - lp.word_mantissa_bits) | index << kLpIndexShift;
  for (uint32_t lane = 0; lane < kLanesPerGroup; ++lane) {
    uint32_t k = 0;
    for (uint32_t j = 1; j < 4; ++j) {
      k += lane_max[lane] <= lp.limit * LaneStep(lp, exponent, half, row, j);
    }
    group.meta |= k << 2 * lane;
    const float inverse = 1.0f / LaneStep(lp, exponent, half, row, k);
    for (uint32_t i = lane * lane_elements; i < (lane + 1) * lane_elements; ++i) {
      const float v = Abs(x[i]) * inverse;
      uint32_t level = 0;
      for (uint32_t t = 0; t + 1 < 1u << lp.level_bits; ++t) level += v >= lp.thresholds[t];
      if (i == index) level = spike & ((1u << lp.level_bits) - 1);
      group.codes[i] = static_cast<uint8_t>(level | uint32_t{SignBit(x[i])} << lp.level_bits);
    }
  }
  return group;
}

void DecodeLp(const CodecSpec& spec, const Group& group, Values* y) {
  const LpSpec& lp = spec.lp;
  const uint32_t word = group.meta, exponent = word >> 24, half = word >> 23 & 1;
  const uint32_t row = word >> (23 - lp.word_mantissa_bits) & 1;
  const uint32_t index = word >> kLpIndexShift & (spec.group_elements - 1);
  const uint32_t lane_elements = spec.group_elements / kLanesPerGroup;
  for (uint32_t i = 0; i < spec.group_elements; ++i) {
    const uint32_t level = group.codes[i] & ((1u << lp.level_bits) - 1);
    const uint32_t lane_code = word >> 2 * (i / lane_elements) & 3;
    float magnitude = lp.levels[level] * LaneStep(lp, exponent, half, row, lane_code);
    if (i == index) {
      const uint32_t spike = (word >> (24 - lp.word_mantissa_bits)) << lp.level_bits | level;
      magnitude = std::bit_cast<float>(spike << (23 - lp.spike_mantissa_bits));
    }
    (*y)[i] = WithSign(magnitude, (group.codes[i] >> lp.level_bits & 1) != 0);
    if (exponent == 0) (*y)[i] = 0;
    if (exponent == 255) (*y)[i] = std::bit_cast<float>(kCanonicalNanBits);
  }
}

}  // namespace

Group EncodeGroup(const CodecSpec& spec, Dtype dtype, const Values& x) {
  return spec.kind == CodecKind::kLp ? EncodeLp(spec, dtype, x) : EncodeBlock(spec, dtype, x);
}

Values DecodeGroup(const CodecSpec& spec, Dtype dtype, const Group& group) {
  Values y = {};
  if (spec.kind == CodecKind::kLp) {
    DecodeLp(spec, group, &y);
  } else {
    DecodeBlock(spec, dtype, group, &y);
  }
  return y;
}

}  // namespace qrd::reference
