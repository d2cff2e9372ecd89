// SPDX-License-Identifier: Apache-2.0
// Decode a tile of an lp codec: steps of the lanes, kLanes groups at a time; every element as level
// times step; then, group by group, the spike, and the groups without data.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_LP_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_LP_DECODE_INL_H_
#undef QRD_KERNELS_CODEC_LP_DECODE_INL_H_
#else
#define QRD_KERNELS_CODEC_LP_DECODE_INL_H_
#endif

#include <bit>

#include "hwy/highway.h"
#include "kernels/codec_lp_shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// Steps of the groups first_group .. first_group + kLanes - 1, one a lane.
template <Codec kCodec>
HWY_INLINE void ReadSteps(const uint8_t* HWY_RESTRICT words, uint32_t first_group,
                          float* HWY_RESTRICT steps) {
  using Shape = LpShape<kCodec>;
  const VecU word = LoadBytes(words + first_group * sizeof(uint32_t));
  const VecU top =
      StepTop<kCodec>(hn::ShiftRight<24>(word), hn::And(hn::ShiftRight<23>(word), SetU(1)));
  const auto is_row1 = hn::TestBit(word, SetU(1u << (23 - Shape::kWordM)));
  const VecU attenuations = hn::IfThenElse(is_row1, SetU(PackedAttenuations(Shape::kLp, 1)),
                                           SetU(PackedAttenuations(Shape::kLp, 0)));
  VecF step[kLanesPerGroup];
  ForOctet([&](auto j) QRD_LAMBDA {
    const VecU code = hn::And(hn::ShiftRight<2 * decltype(j)::value>(word), SetU(3));
    const VecU attenuation = hn::And(hn::Shr(attenuations, hn::ShiftLeft<3>(code)), SetU(0xFF));
    const VecI bits = hn::Max(AsSigned(hn::Sub(top, attenuation)), hn::Zero(I32()));
    step[j] = AsFloat(hn::ShiftLeft<21>(bits));
  });
  StoreOctets(step, steps + first_group * kLanesPerGroup);
}

template <Codec kCodec>
HWY_INLINE VecF DecodeElement(VecU code, VecF step) {
  constexpr const LpSpec& kLp = LpShape<kCodec>::kLp;
  if constexpr (kLp.level_bits == 3) {
    alignas(64) static constexpr float kLevels[16] = {
        kLp.levels[0], kLp.levels[1], kLp.levels[2], kLp.levels[3], kLp.levels[4], kLp.levels[5],
        kLp.levels[6], kLp.levels[7], kLp.levels[0], kLp.levels[1], kLp.levels[2], kLp.levels[3],
        kLp.levels[4], kLp.levels[5], kLp.levels[6], kLp.levels[7]};
    const VecU sign = hn::And(hn::ShiftLeft<28>(code), SetU(0x80000000));
    return hn::Mul(hn::Or(Lookup8(kLevels, code), AsFloat(sign)), step);
  } else if constexpr (kLp.level_bits == 2) {
    alignas(64) static constexpr float kValues[16] = {
        kLp.levels[0],  kLp.levels[1],  kLp.levels[2],  kLp.levels[3],
        -kLp.levels[0], -kLp.levels[1], -kLp.levels[2], -kLp.levels[3],
        kLp.levels[0],  kLp.levels[1],  kLp.levels[2],  kLp.levels[3],
        -kLp.levels[0], -kLp.levels[1], -kLp.levels[2], -kLp.levels[3]};
    return hn::Mul(Lookup8(kValues, code), step);
  } else {
    alignas(64) static constexpr float kValues[16] = {
        kLp.levels[0], kLp.levels[1], -kLp.levels[0], -kLp.levels[1],
        kLp.levels[0], kLp.levels[1], -kLp.levels[0], -kLp.levels[1],
        kLp.levels[0], kLp.levels[1], -kLp.levels[0], -kLp.levels[1],
        kLp.levels[0], kLp.levels[1], -kLp.levels[0], -kLp.levels[1]};
    return hn::Mul(Lookup8(kValues, code), step);
  }
}

// Spikes, and the groups without data.
template <Codec kCodec>
HWY_INLINE void PlaceSpikes(const uint8_t* HWY_RESTRICT tile, uint32_t groups,
                            float* HWY_RESTRICT y) {
  using Shape = LpShape<kCodec>;
  for (uint32_t g = 0; g < groups; ++g) {
    uint32_t word;
    std::memcpy(&word, tile + Shape::kLayout.meta_offset() + g * sizeof(word), sizeof(word));
    const uint32_t exponent = word >> 24;
    float* group = y + g * Shape::kGroup;
    if (HWY_UNLIKELY(exponent == 0 || exponent == 255)) {
      const VecF fill = exponent == 0 ? SetF(0) : AsFloat(SetU(kCanonicalNanBits));
      for (uint32_t i = 0; i < Shape::kGroup; i += kLanes) hn::StoreU(fill, F32(), group + i);
      continue;
    }
    const uint32_t index = word >> kLpIndexShift & (Shape::kGroup - 1);
    const uint32_t bit = (g * Shape::kGroup + index) * Shape::kWidth0;
    const uint32_t slot = static_cast<uint32_t>(tile[bit / 8] >> bit % 8) & Shape::kLevelMask;
    const uint32_t spike = (word >> (24 - Shape::kWordM)) << Shape::kLp.level_bits | slot;
    const uint32_t sign = std::bit_cast<uint32_t>(group[index]) & 0x80000000;
    group[index] = std::bit_cast<float>(spike << (23 - Shape::kM) | sign);
  }
}

// elements is a multiple of kBatch; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void DecodeLpTile(const uint8_t* HWY_RESTRICT tile, uint32_t elements,
                             float* HWY_RESTRICT y) {
  using Shape = LpShape<kCodec>;
  HWY_ALIGN float lane_steps[kOctetsPerTile];
  HWY_ALIGN float octet_steps[kOctetsPerTile];
  const uint32_t groups = elements / Shape::kGroup;
  for (uint32_t g = 0; g < groups; g += kLanes) {
    ReadSteps<kCodec>(tile + Shape::kLayout.meta_offset(), g, lane_steps);
  }
  const float* steps = ToOctets<kCodec>(lane_steps, elements, octet_steps);
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
    LoadPlane<Shape::kWidth0, 0>(tile + at / 8 * Shape::kWidth0, codes);
    if constexpr (Shape::kWidth1 != 0) {
      LoadPlane<Shape::kWidth1, Shape::kWidth0>(
          tile + Shape::kLayout.plane_bytes[0] + at / 8 * Shape::kWidth1, codes);
    }
    const VecF step = hn::Load(F32(), steps + at / kOctet);
    VecF v[kOctet];
    ForOctet([&](auto j) QRD_LAMBDA { v[j] = DecodeElement<kCodec>(CodeAt<j>(codes), step); });
    StoreOctets(v, y + at);
  }
  PlaceSpikes<kCodec>(tile, groups, y);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
