// SPDX-License-Identifier: Apache-2.0
// Encode a tile of an lp codec, in passes over scratch that stays in the L1 cache:
//   1. octets turned around; largest and second largest magnitude of each octet
//   2. kLanes groups at a time, one in each vector lane: spike, row, lane codes, inverses of the
//   steps
//   3. codes of every element, packed
//   4. group by group: the spike's place, its slot, the group word
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_LP_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_LP_ENCODE_INL_H_
#undef QRD_KERNELS_CODEC_LP_ENCODE_INL_H_
#else
#define QRD_KERNELS_CODEC_LP_ENCODE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/codec_lp_shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// What pass 2 leaves for pass 4, one entry a group.
struct LpGroupScratch {
  HWY_ALIGN uint32_t spike_magnitude[kGroupsMax];
  HWY_ALIGN uint32_t spike[kGroupsMax];  // P
  HWY_ALIGN uint32_t lane[kGroupsMax];   // of the spike
  HWY_ALIGN uint32_t word[kGroupsMax];   // without the index
};

struct LpScratch {
  HWY_ALIGN float turned[kTileElements];  // kOctet vectors a unit
  // First and second largest magnitude (as bits) of an octet, later of a lane.
  HWY_ALIGN float first[kOctetsPerTile];
  HWY_ALIGN float second[kOctetsPerTile];
  HWY_ALIGN float lane_inverse[kOctetsPerTile];
  HWY_ALIGN float octet_inverse[kOctetsPerTile];
  LpGroupScratch groups;
};

HWY_INLINE void FindOctetMaxima(const float* HWY_RESTRICT x, uint32_t elements,
                                LpScratch& scratch) {
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    VecF v[kOctet];
    LoadOctets(x + at, v);
    VecI first = hn::Zero(I32()), second = hn::Zero(I32());
    ForOctet([&](auto j) QRD_LAMBDA {
      hn::Store(v[j], F32(), scratch.turned + at + j * kLanes);
      const VecI magnitude = AsSigned(Magnitude(v[j]));
      second = hn::Max(second, hn::Min(first, magnitude));
      first = hn::Max(first, magnitude);
    });
    hn::Store(AsFloat(first), F32(), scratch.first + at / kOctet);
    hn::Store(AsFloat(second), F32(), scratch.second + at / kOctet);
  }
}

// Two octets a lane: in place from octets to lanes.
HWY_INLINE void MergeOctets(uint32_t elements, LpScratch& scratch) {
  for (uint32_t lane = 0; lane < elements / 16; lane += kLanes) {
    VecF f0, f1, s0, s1;
    hn::LoadInterleaved2(F32(), scratch.first + 2 * lane, f0, f1);
    hn::LoadInterleaved2(F32(), scratch.second + 2 * lane, s0, s1);
    const VecI a = AsSigned(f0), b = AsSigned(f1);
    const VecI second = hn::Max(hn::Min(a, b), hn::Max(AsSigned(s0), AsSigned(s1)));
    hn::Store(AsFloat(hn::Max(a, b)), F32(), scratch.first + lane);
    hn::Store(AsFloat(second), F32(), scratch.second + lane);
  }
}

// Spike, row, lane codes and steps of the groups first_group .. first_group + kLanes - 1.
template <Codec kCodec>
HWY_INLINE void ChooseSteps(const DtypeSpec& dtype, uint32_t first_group, LpScratch& scratch) {
  using Shape = LpShape<kCodec>;
  constexpr uint32_t kM = Shape::kM, kWordM = Shape::kWordM;
  const uint32_t first_lane = first_group * kLanesPerGroup;
  VecF lane_max[kLanesPerGroup], lane_second[kLanesPerGroup];
  LoadOctets(scratch.first + first_lane, lane_max);
  LoadOctets(scratch.second + first_lane, lane_second);

  VecI top = hn::Zero(I32());
  ForOctet([&](auto j) QRD_LAMBDA { top = hn::Max(top, AsSigned(lane_max[j])); });
  // The first lane that has it is the spike's; there the second largest counts.
  VecI spike_lane = SetI(kLanesPerGroup - 1);
  ForOctet([&](auto j) QRD_LAMBDA {
    constexpr size_t kLane = kLanesPerGroup - 1 - decltype(j)::value;
    const auto is_top = hn::Eq(AsSigned(lane_max[kLane]), top);
    spike_lane = hn::IfThenElse(is_top, SetI(kLane), spike_lane);
  });
  VecI rest = hn::Zero(I32());
  ForOctet([&](auto j) QRD_LAMBDA {
    const auto is_spike = hn::RebindMask(F32(), hn::Eq(spike_lane, SetI(j)));
    lane_max[j] = hn::IfThenElse(is_spike, lane_second[j], lane_max[j]);
    rest = hn::Max(rest, AsSigned(lane_max[j]));
  });

  const VecU top_bits = AsUnsigned(top);
  const MaskU has_data =
      hn::And(Less(top_bits, SetU(dtype.limit)), Less(SetU(kFloorBits - 1), top_bits));
  const VecU cap = SetU(dtype.max_exponent << kM | ((1u << kM) - 1));
  VecU spike = hn::ShiftRight<23 - kM>(hn::Add(top_bits, SetU(1u << (22 - kM))));
  spike = AsUnsigned(hn::Min(AsSigned(spike), AsSigned(cap)));
  spike = hn::IfThenElse(has_data, spike, SetU(128u << kM));
  const VecU half = hn::And(hn::ShiftRight<kM - 1>(spike), SetU(1));
  const VecU step_top = StepTop<kCodec>(hn::ShiftRight<kM>(spike), half);

  const auto step_below = [&](VecU attenuation) QRD_LAMBDA {
    return AsFloat(hn::ShiftLeft<21>(hn::Sub(step_top, attenuation)));
  };
  const VecF limit = SetF(Shape::kLp.limit);
  const auto& attenuation = Shape::kLp.attenuation;
  // Magnitudes compare as integers; not greater is less or equal.
  const VecI row_limit = AsSigned(hn::Mul(limit, step_below(SetU(attenuation[1][0]))));
  const MaskU is_row0 = hn::RebindMask(U32(), hn::Gt(rest, row_limit));
  VecF inverse[4];
  VecI lane_limit[4];
  for (int k = 0; k < 4; ++k) {
    const VecF step =
        step_below(hn::IfThenElse(is_row0, SetU(attenuation[0][k]), SetU(attenuation[1][k])));
    inverse[k] = hn::IfThenElseZero(hn::RebindMask(F32(), has_data), hn::Div(SetF(1), step));
    lane_limit[k] = AsSigned(hn::Mul(limit, step));
  }

  VecU word = hn::ShiftLeft<24 - kWordM>(hn::ShiftRight<kM - kWordM>(spike));
  word = hn::Or(word, hn::IfThenZeroElse(is_row0, SetU(1u << (23 - kWordM))));
  ForOctet([&](auto j) QRD_LAMBDA {
    // Steps and limits get smaller with the lane code, so the last one that holds counts.
    VecF chosen = inverse[0];
    VecU code = hn::Zero(U32());
    for (int k = 1; k < 4; ++k) {
      const auto fails = hn::Gt(AsSigned(lane_max[j]), lane_limit[k]);
      chosen = hn::IfThenElse(hn::RebindMask(F32(), fails), chosen, inverse[k]);
      code = hn::IfThenElse(hn::RebindMask(U32(), fails), code, SetU(k));
    }
    word = hn::Or(word, hn::ShiftLeft<2 * decltype(j)::value>(code));
    lane_max[j] = chosen;
  });
  StoreOctets(lane_max, scratch.lane_inverse + first_lane);
  LpGroupScratch& groups = scratch.groups;
  hn::Store(top_bits, U32(), groups.spike_magnitude + first_group);
  hn::Store(spike, U32(), groups.spike + first_group);
  hn::Store(AsUnsigned(spike_lane), U32(), groups.lane + first_group);
  hn::Store(word, U32(), groups.word + first_group);
}

// Number of thresholds that v reaches; v >= 0 or NaN (then any level).
template <Codec kCodec>
HWY_INLINE VecU LevelOf(VecF v) {
  constexpr const LpSpec& kLp = LpShape<kCodec>::kLp;
  if constexpr (kCodec == Codec::kLp4) {
    // Thresholds 1 2 3 | 4.25 | 6 8 10.
    static_assert(kLp.thresholds[3] == 4.25f && kLp.thresholds[6] == 10);
    const VecI whole = hn::ConvertTo(I32(), v);
    const VecI low = hn::Min(whole, SetI(3));
    const VecI high = hn::Min(hn::Add(hn::ShiftRight<1>(whole), SetI(2)), SetI(7));
    const auto is_low = hn::RebindMask(I32(), hn::Lt(v, SetF(4.25f)));
    return AsUnsigned(hn::IfThenElse(is_low, low, high));
  } else {
    VecI level = hn::Zero(I32());
    for (uint32_t t = 0; t < LpShape<kCodec>::kLevelMask; ++t) {
      // A true mask is -1.
      const auto reached = hn::RebindMask(I32(), hn::Ge(v, SetF(kLp.thresholds[t])));
      level = hn::Sub(level, hn::VecFromMask(I32(), reached));
    }
    return AsUnsigned(level);
  }
}

template <Codec kCodec>
HWY_INLINE void EncodeElements(uint32_t elements, const float* HWY_RESTRICT turned,
                               const float* HWY_RESTRICT inverses, uint8_t* HWY_RESTRICT tile) {
  using Shape = LpShape<kCodec>;
  constexpr uint32_t kSignShift = Shape::kLp.level_bits;
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    const VecF inverse = hn::Load(F32(), inverses + at / kOctet);
    OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
    ForOctet([&](auto j) QRD_LAMBDA {
      const VecF x = hn::Load(F32(), turned + at + j * kLanes);
      const VecU level = LevelOf<kCodec>(hn::Mul(AsFloat(Magnitude(x)), inverse));
      const VecU sign = hn::ShiftLeft<kSignShift>(hn::ShiftRight<31>(AsUnsigned(x)));
      AddCode<j>(hn::Or(level, sign), codes);
    });
    StorePlane<Shape::kWidth0, 0>(codes, tile + at / 8 * Shape::kWidth0);
    if constexpr (Shape::kWidth1 != 0) {
      StorePlane<Shape::kWidth1, Shape::kWidth0>(
          codes, tile + Shape::kLayout.plane_bytes[0] + at / 8 * Shape::kWidth1);
    }
  }
}

// Index of the first of the `count` values with this magnitude; there is one.
HWY_INLINE uint32_t FindMagnitude(const float* HWY_RESTRICT x, uint32_t count, uint32_t magnitude) {
  constexpr size_t kStep = HWY_MIN(kLanes, 8);
  const hn::FixedTag<float, kStep> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto mask = hn::Set(du, kMagnitudeMask), wanted = hn::Set(du, magnitude);
  for (uint32_t at = 0; at < count; at += kStep) {
    const auto bits = hn::BitCast(du, hn::LoadU(d, x + at));
    const intptr_t found = hn::FindFirstTrue(du, hn::Eq(hn::And(bits, mask), wanted));
    if (found >= 0) return at + static_cast<uint32_t>(found);
  }
  return 0;
}

template <Codec kCodec>
HWY_INLINE void FinishGroups(const DtypeSpec& dtype, const float* HWY_RESTRICT x, uint32_t groups,
                             const LpGroupScratch& scratch, uint8_t* HWY_RESTRICT tile) {
  using Shape = LpShape<kCodec>;
  constexpr uint32_t kLaneElements = Shape::kGroup / kLanesPerGroup;
  constexpr uint32_t kBytes0 = Shape::kGroup * Shape::kWidth0 / 8;
  constexpr uint32_t kBytes1 = Shape::kGroup * Shape::kWidth1 / 8;
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t magnitude = scratch.spike_magnitude[g];
    uint32_t word = 0;
    if (HWY_UNLIKELY(magnitude >= dtype.limit || magnitude < kFloorBits)) {
      word = magnitude < kFloorBits ? kLpZeroWord : kLpNanWord;
      std::memset(tile + g * kBytes0, 0, kBytes0);
      std::memset(tile + Shape::kLayout.plane_bytes[0] + g * kBytes1, 0, kBytes1);
    } else {
      const uint32_t first = scratch.lane[g] * kLaneElements;
      const uint32_t index =
          first + FindMagnitude(x + g * Shape::kGroup + first, kLaneElements, magnitude);
      word = scratch.word[g] | index << kLpIndexShift;
      // The levels are the low bits of plane 0's code.
      const uint32_t bit = (g * Shape::kGroup + index) * Shape::kWidth0;
      const uint32_t slot = scratch.spike[g] & Shape::kLevelMask;
      uint8_t& byte = tile[bit / 8];
      byte = static_cast<uint8_t>((byte & ~(Shape::kLevelMask << bit % 8)) | slot << bit % 8);
    }
    std::memcpy(tile + Shape::kLayout.meta_offset() + g * sizeof(word), &word, sizeof(word));
  }
}

// elements is a multiple of kBatch; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void EncodeLpTile(Dtype dtype, const float* HWY_RESTRICT x, uint32_t elements,
                             uint8_t* HWY_RESTRICT tile) {
  using Shape = LpShape<kCodec>;
  const DtypeSpec limits = SpecOf(dtype);
  LpScratch scratch;
  FindOctetMaxima(x, elements, scratch);
  if constexpr (Shape::kOctetsPerLane == 2) MergeOctets(elements, scratch);
  const uint32_t groups = elements / Shape::kGroup;
  for (uint32_t g = 0; g < groups; g += kLanes) ChooseSteps<kCodec>(limits, g, scratch);
  const float* inverses = ToOctets<kCodec>(scratch.lane_inverse, elements, scratch.octet_inverse);
  EncodeElements<kCodec>(elements, scratch.turned, inverses, tile);
  FinishGroups<kCodec>(limits, x, groups, scratch.groups, tile);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
