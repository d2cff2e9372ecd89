// SPDX-License-Identifier: Apache-2.0
// The int and fp codecs (wire format, section 4): 32 elements a block, one 16-bit scale. A block is
// 4 octets, so it is one 128-bit block of every vector that LoadOctets() makes.
#include "kernels/codec_families.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec_block.cc"
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
const CodecKernels* BlockKernels(Codec) { return nullptr; }
}  // namespace qrd::HWY_NAMESPACE
#else

#include "kernels/codec_block_decode-inl.h"
#include "kernels/codec_block_encode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

template <Codec kCodec>
struct BlockCodec {
  static constexpr const CodecSpec& kSpec = SpecOf(kCodec);

  static uint32_t PaddedElements(uint32_t count) {
    return (count + kBlockBatch - 1) / kBlockBatch * kBlockBatch;
  }

  static void EncodeTile(Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
    uint8_t* bytes = reinterpret_cast<uint8_t*>(wire);
    if (count == kTileElements) return EncodeBlockTile<kCodec>(dtype, x, count, bytes);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    const uint32_t elements = PaddedElements(count);
    std::memcpy(padded, x, count * sizeof(float));
    std::memset(padded + count, 0, (elements - count) * sizeof(float));
    EncodeBlockTile<kCodec>(dtype, padded, elements, tile);
    CutTile(kSpec, GroupCount(kSpec, count), tile, bytes);
  }

  static void DecodeTile(Dtype dtype, const std::byte* wire, uint32_t count, float* y) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(wire);
    if (count == kTileElements) return DecodeBlockTile<kCodec>(dtype, bytes, count, y);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    SpreadTile(kSpec, GroupCount(kSpec, count), bytes, tile);
    DecodeBlockTile<kCodec>(dtype, tile, PaddedElements(count), padded);
    std::memcpy(y, padded, count * sizeof(float));
  }

  static void RoundTripTile(Dtype dtype, const float* x, uint32_t count, float* y) {
    std::byte wire[kTileWireBytesMax];
    EncodeTile(dtype, x, count, wire);
    DecodeTile(dtype, wire, count, y);
  }

  static constexpr CodecKernels kKernels = {EncodeTile, DecodeTile, RoundTripTile};
};

const CodecKernels* BlockKernels(Codec codec) {
  switch (codec) {
    case Codec::kFp8:
      return &BlockCodec<Codec::kFp8>::kKernels;
    case Codec::kInt8:
      return &BlockCodec<Codec::kInt8>::kKernels;
    case Codec::kInt6:
      return &BlockCodec<Codec::kInt6>::kKernels;
    case Codec::kInt4:
      return &BlockCodec<Codec::kInt4>::kKernels;
    case Codec::kFp4:
      return &BlockCodec<Codec::kFp4>::kKernels;
    case Codec::kInt3:
      return &BlockCodec<Codec::kInt3>::kKernels;
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

HWY_EXPORT(BlockKernels);

const CodecKernels* BlockCodecKernels(Codec codec) {
  return HWY_DYNAMIC_DISPATCH(BlockKernels)(codec);
}

}  // namespace qrd
#endif  // HWY_ONCE
