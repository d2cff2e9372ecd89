// SPDX-License-Identifier: Apache-2.0
// What encode and decode of the lp codecs share.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_LP_SHAPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_LP_SHAPE_INL_H_
#undef QRD_KERNELS_CODEC_LP_SHAPE_INL_H_
#else
#define QRD_KERNELS_CODEC_LP_SHAPE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/codec_tiles.h"
#include "kernels/codec_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

inline constexpr size_t kOctetsPerTile = kTileElements / kOctet;
inline constexpr size_t kGroupsMax = kTileElements / 64;
static_assert(kGroupsMax % kLanes == 0 && kGroupsMax / 2 % kLanes == 0);

template <Codec kCodec>
struct LpShape {
  static constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  static constexpr const LpSpec& kLp = kSpec.lp;
  static constexpr uint32_t kGroup = kSpec.group_elements;
  static constexpr uint32_t kOctetsPerLane = kGroup / kLanesPerGroup / kOctet;
  static constexpr uint32_t kWidth0 = kSpec.plane_bits[0], kWidth1 = kSpec.plane_bits[1];
  static constexpr uint32_t kM = kLp.spike_mantissa_bits, kWordM = kLp.word_mantissa_bits;
  static constexpr uint32_t kLevelMask = (1u << kLp.level_bits) - 1;
  static constexpr TileLayout kLayout = FullTile(kSpec);
  // Elements that pass 2 takes at once.
  static constexpr uint32_t kBatch = kLanes * kGroup;
};

// Four lane codes' attenuations of a row, one a byte.
constexpr uint32_t PackedAttenuations(const LpSpec& lp, int row) {
  return lp.attenuation[row][0] | lp.attenuation[row][1] << 8 | lp.attenuation[row][2] << 16 |
         static_cast<uint32_t>(lp.attenuation[row][3]) << 24;
}

// top of section 5.1 from E and h.
template <Codec kCodec>
HWY_INLINE VecU StepTop(VecU exponent, VecU half) {
  const VecU four = hn::ShiftLeft<2>(exponent);
  if constexpr (LpShape<kCodec>::kWordM == 0) return hn::Add(four, SetU(4));
  return hn::Add(hn::Add(four, half), SetU(2));
}

// Lane values to octets: twice each where a lane has two octets.
template <Codec kCodec>
HWY_INLINE const float* ToOctets(const float* HWY_RESTRICT lanes, uint32_t elements,
                                 float* HWY_RESTRICT octets) {
  if constexpr (LpShape<kCodec>::kOctetsPerLane == 1) return lanes;
  for (uint32_t lane = 0; lane < elements / 16; lane += kLanes) {
    const VecF v = hn::Load(F32(), lanes + lane);
    hn::StoreInterleaved2(v, v, F32(), octets + 2 * lane);
  }
  return octets;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
