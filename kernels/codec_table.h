// SPDX-License-Identifier: Apache-2.0
// The numbers of the wire format (sections 2 to 5) as constants: one line a codec, one line a
// dtype. The scalar reference, the SIMD code and the GPU code read the same tables; the golden
// files of tests/data/golden/codec hold them to the specification.
//
// Thread safety: constants.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/types.h"

namespace qrd {

enum class CodecKind : uint8_t {
  kNone,  // the elements themselves
  kInt,   // code = rint(x / scale) + L
  kFp,    // code = x / scale as a small float
  kLp,    // one spike a group, one step a lane
};

inline constexpr uint32_t kLanesPerGroup = 8;  // lp codecs: lanes of a group
inline constexpr uint32_t kLevelsMax = 8;
// Magnitude bits of 0x1p-100f: a group whose largest magnitude is smaller is coded as zeros.
inline constexpr uint32_t kFloorBits = 0x0D800000;
inline constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;
inline constexpr uint32_t kCanonicalNanBits = 0x7FC00000;
// Group words of the lp codecs without data.
inline constexpr uint32_t kLpZeroWord = 0;
inline constexpr uint32_t kLpNanWord = 0xFF000000;
// Where the spike's index starts in a group word, for all lp codecs; the lane codes are below it.
inline constexpr uint32_t kLpIndexShift = 16;

// The lp codecs' own constants. Levels and thresholds are in units of the lane's step.
struct LpSpec {
  uint32_t level_bits = 0;
  std::array<float, kLevelsMax> levels = {};
  std::array<float, kLevelsMax - 1> thresholds = {};  // 2^level_bits - 1 of them
  float limit = 0;                                    // C
  uint32_t spike_mantissa_bits = 0;                   // M
  uint32_t word_mantissa_bits = 0;  // of them in the group word; the rest in the slot
  uint8_t attenuation[2][4] = {};   // A[row][lane code], quarter octaves
};

struct CodecSpec {
  Codec codec;
  CodecKind kind;
  uint32_t group_elements;
  uint32_t plane_bits[2];  // plane 0 holds the low bits of the code; 0 = no such plane
  uint32_t meta_bytes;     // of a group
  float top = 0;           // int: L; fp: largest element
  float reciprocal = 0;    // int: -1/L (exact); fp: 1/top rounded
  uint16_t scale_max_fp16 = 0;
  uint16_t scale_max_bf16 = 0;
  LpSpec lp = {};
};

inline constexpr LpSpec kLp4Spec = {.level_bits = 3,
                                    .levels = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 9, 11},
                                    .thresholds = {1, 2, 3, 4.25f, 6, 8, 10},
                                    .limit = 12,
                                    .spike_mantissa_bits = 4,
                                    .word_mantissa_bits = 1,
                                    .attenuation = {{14, 16, 17, 19}, {17, 19, 22, 30}}};
inline constexpr LpSpec kLp3Spec = {.level_bits = 2,
                                    .levels = {0.5f, 1.5f, 3, 5},
                                    .thresholds = {1, 2.25f, 4},
                                    .limit = 6.25f,
                                    .spike_mantissa_bits = 3,
                                    .word_mantissa_bits = 1,
                                    .attenuation = {{10, 11, 13, 15}, {13, 15, 20, 26}}};
inline constexpr LpSpec kLp3cSpec = {.level_bits = 2,
                                     .levels = {0.5f, 1.5f, 3, 5},
                                     .thresholds = {1, 2.25f, 4},
                                     .limit = 6.5f,
                                     .spike_mantissa_bits = 2,
                                     .word_mantissa_bits = 0,
                                     .attenuation = {{11, 13, 15, 24}, {15, 18, 23, 29}}};
inline constexpr LpSpec kLp2Spec = {.level_bits = 1,
                                    .levels = {0.5f, 2},
                                    .thresholds = {1.25f},
                                    .limit = 3,
                                    .spike_mantissa_bits = 2,
                                    .word_mantissa_bits = 1,
                                    .attenuation = {{6, 9, 11, 15}, {11, 14, 19, 24}}};

// In order of the ids.
inline constexpr std::array<CodecSpec, kCodecCount> kCodecSpecs = {{
    {Codec::kNone, CodecKind::kNone, 1, {0, 0}, 0},
    {Codec::kFp8, CodecKind::kFp, 32, {8, 0}, 2, 448, 0x1.24924ap-9f, 0x5891, 0x7B11},
    {Codec::kInt8, CodecKind::kInt, 32, {8, 0}, 2, 128, -1.0f / 128, 0x5FFF, 0x7BFF},
    {Codec::kInt6, CodecKind::kInt, 32, {4, 2}, 2, 32, -1.0f / 32, 0x67FF, 0x7CFF},
    {Codec::kInt4, CodecKind::kInt, 32, {4, 0}, 2, 8, -1.0f / 8, 0x6FFF, 0x7DFF},
    {Codec::kFp4, CodecKind::kFp, 32, {4, 0}, 2, 6, 0x1.555556p-3f, 0x7154, 0x7E2A},
    {Codec::kInt3, CodecKind::kInt, 32, {2, 1}, 2, 4, -1.0f / 4, 0x73FF, 0x7E7F},
    {Codec::kLp4, CodecKind::kLp, 64, {4, 0}, 4, 0, 0, 0, 0, kLp4Spec},
    {Codec::kLp3, CodecKind::kLp, 64, {2, 1}, 4, 0, 0, 0, 0, kLp3Spec},
    {Codec::kLp3c, CodecKind::kLp, 128, {2, 1}, 4, 0, 0, 0, 0, kLp3cSpec},
    {Codec::kLp2, CodecKind::kLp, 64, {2, 0}, 4, 0, 0, 0, 0, kLp2Spec},
}};

constexpr const CodecSpec& SpecOf(Codec codec) { return kCodecSpecs[static_cast<uint8_t>(codec)]; }

struct DtypeSpec {
  uint32_t limit;         // fp32 magnitude bits from which a value rounds to Inf in the dtype
  uint32_t max_exponent;  // largest biased fp32 exponent of a finite value
  bool fp16_scale;        // scales are fp16, else bf16
  uint16_t scale_nan;
};
constexpr DtypeSpec SpecOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp16:
      return {0x477FF000, 142, true, 0x7E00};
    case Dtype::kBf16:
      return {0x7F7F8000, 254, false, 0x7FC0};
    case Dtype::kFp32:
      break;
  }
  return {0x7F800000, 254, false, 0x7FC0};
}
constexpr uint16_t ScaleMax(const CodecSpec& spec, Dtype dtype) {
  return dtype == Dtype::kFp16 ? spec.scale_max_fp16 : spec.scale_max_bf16;
}

namespace internal {
// The table is consistent with the sizes of types.h and in order of the ids.
constexpr bool CodecTableIsConsistent() {
  for (const Codec codec : kAllCodecs) {
    const CodecSpec& spec = SpecOf(codec);
    const CodecShape shape = ShapeOf(codec, Dtype::kFp16);
    if (spec.codec != codec || spec.group_elements != shape.group_elements) return false;
    if (codec == Codec::kNone) continue;
    const uint32_t bits = spec.plane_bits[0] + spec.plane_bits[1];
    if (spec.group_elements * bits / 8 + spec.meta_bytes != shape.group_bytes) return false;
    if (spec.kind == CodecKind::kLp && bits != spec.lp.level_bits + 1) return false;
  }
  return true;
}
static_assert(CodecTableIsConsistent());
}  // namespace internal

}  // namespace qrd
