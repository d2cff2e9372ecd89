// SPDX-License-Identifier: Apache-2.0
// The lp codecs (wire format, section 5): a spike and 8 lanes a group, one step a lane. A lane is
// one octet (lp3c: two).
#include "kernels/codec_families.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec_lp.cc"
// simd_targets.h has to come before Highway.
// clang-format off
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format on

#include "hwy/highway.h"
#include "kernels/codec_tiles.h"

#if HWY_TARGET == HWY_SCALAR
namespace qrd::HWY_NAMESPACE {
// No vectors: kernels/codec.cc uses the reference.
const CodecKernels* LpKernels(Codec) { return nullptr; }
}  // namespace qrd::HWY_NAMESPACE
#else

#include "kernels/codec_lp_decode-inl.h"
#include "kernels/codec_lp_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

template <Codec kCodec>
struct LpCodec {
  static constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  static constexpr uint32_t kBatch = LpShape<kCodec>::kBatch;

  static uint32_t PaddedElements(uint32_t count) { return (count + kBatch - 1) / kBatch * kBatch; }

  static void EncodeTile(Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
    uint8_t* bytes = reinterpret_cast<uint8_t*>(wire);
    if (count == kTileElements) return EncodeLpTile<kCodec>(dtype, x, count, bytes);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    const uint32_t elements = PaddedElements(count);
    std::memcpy(padded, x, count * sizeof(float));
    std::memset(padded + count, 0, (elements - count) * sizeof(float));
    EncodeLpTile<kCodec>(dtype, padded, elements, tile);
    CutTile(kSpec, GroupCount(kSpec, count), tile, bytes);
  }

  static void DecodeTile(Dtype, const std::byte* wire, uint32_t count, float* y) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(wire);
    if (count == kTileElements) return DecodeLpTile<kCodec>(bytes, count, y);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    SpreadTile(kSpec, GroupCount(kSpec, count), bytes, tile);
    DecodeLpTile<kCodec>(tile, PaddedElements(count), padded);
    std::memcpy(y, padded, count * sizeof(float));
  }

  static void RoundTripTile(Dtype dtype, const float* x, uint32_t count, float* y) {
    std::byte wire[kTileWireBytesMax];
    EncodeTile(dtype, x, count, wire);
    DecodeTile(dtype, wire, count, y);
  }

  static constexpr CodecKernels kKernels = {EncodeTile, DecodeTile, RoundTripTile};
};

const CodecKernels* LpKernels(Codec codec) {
  switch (codec) {
    case Codec::kLp4:
      return &LpCodec<Codec::kLp4>::kKernels;
    case Codec::kLp3:
      return &LpCodec<Codec::kLp3>::kKernels;
    case Codec::kLp3c:
      return &LpCodec<Codec::kLp3c>::kKernels;
    case Codec::kLp2:
      return &LpCodec<Codec::kLp2>::kKernels;
    default:
      return nullptr;
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_ONCE
namespace qrd {

HWY_EXPORT(LpKernels);

const CodecKernels* LpCodecKernels(Codec codec) { return HWY_DYNAMIC_DISPATCH(LpKernels)(codec); }

}  // namespace qrd
#endif  // HWY_ONCE
