// SPDX-License-Identifier: Apache-2.0
// Decode a tile of an int or fp codec: every element as code value times scale, one exact product.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_BLOCK_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_BLOCK_DECODE_INL_H_
#undef QRD_KERNELS_CODEC_BLOCK_DECODE_INL_H_
#else
#define QRD_KERNELS_CODEC_BLOCK_DECODE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/codec_block_shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// The values of one element's codes, in units of the scale.
template <Codec kCodec>
HWY_INLINE VecF DecodeCode(VecU code) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  if constexpr (kSpec.kind == CodecKind::kInt) {
    return hn::Sub(hn::ConvertTo(F32(), AsSigned(code)), SetF(kSpec.top));
  } else if constexpr (kCodec == Codec::kFp8) {
    const VecU magnitude = hn::And(code, SetU(0x7F));
    const VecU bits = hn::Add(hn::ShiftLeft<20>(magnitude), SetU(120u << 23));
    // Exponent 0: 1.f * 2^-6 less 2^-6 is f * 2^-9.
    const VecF small =
        hn::Sub(AsFloat(hn::Add(hn::ShiftLeft<20>(magnitude), SetU(121u << 23))), SetF(0x1p-6f));
    const VecU value = hn::IfThenElse(Less(magnitude, SetU(8)), AsUnsigned(small), bits);
    return AsFloat(hn::Or(value, hn::ShiftLeft<24>(hn::And(code, SetU(0x80)))));
  } else {
    alignas(64) static constexpr float kLevels[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6,
                                                      0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const VecU sign = hn::ShiftLeft<28>(hn::And(code, SetU(8)));
    return hn::Or(Lookup8(kLevels, code), AsFloat(sign));
  }
}

// Scales of a tile as floats, NaN canonical. True if all are finite.
HWY_INLINE bool WidenScales(bool fp16_scale, const uint8_t* HWY_RESTRICT wire, uint32_t blocks,
                            float* HWY_RESTRICT scales) {
  const hn::Repartition<uint8_t, U16> bytes;
  VecI top = hn::Zero(I32());
  for (uint32_t at = 0; at < blocks; at += kLanes) {
    const VecU bits = hn::PromoteTo(U32(), hn::BitCast(U16(), hn::LoadU(bytes, wire + 2 * at)));
    VecF magnitude;
    if (fp16_scale) {
      magnitude = WidenFp16Magnitude(hn::And(bits, SetU(0x7FFF)));
    } else {
      magnitude = AsFloat(hn::ShiftLeft<16>(hn::And(bits, SetU(0x7FFF))));
    }
    const VecU sign = hn::ShiftLeft<16>(hn::And(bits, SetU(0x8000)));
    const MaskU is_nan = Less(SetU(0x7F800000), AsUnsigned(magnitude));
    const VecU value =
        hn::IfThenElse(is_nan, SetU(kCanonicalNanBits), hn::Or(AsUnsigned(magnitude), sign));
    top = hn::Max(top, AsSigned(magnitude));
    hn::StoreU(AsFloat(value), F32(), scales + at);
  }
  return hn::AllTrue(I32(), hn::Lt(top, SetI(0x7F800000)));
}

// A NaN can only come from a scale that is not finite: on some machines with another sign or
// payload.
HWY_NOINLINE void CanonicalizeNans(float* HWY_RESTRICT y, uint32_t elements) {
  for (uint32_t at = 0; at < elements; at += kLanes) {
    const VecF v = hn::LoadU(F32(), y + at);
    const VecF nan = AsFloat(SetU(kCanonicalNanBits));
    hn::StoreU(hn::IfThenElse(hn::IsNaN(v), nan, v), F32(), y + at);
  }
}

// elements is a multiple of kBlockBatch; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void DecodeBlockTile(Dtype dtype, const uint8_t* HWY_RESTRICT tile, uint32_t elements,
                                float* HWY_RESTRICT y) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr TileLayout kLayout = FullTile(kSpec);
  HWY_ALIGN float scales[kBlocksPerTile];
  const bool finite = WidenScales(SpecOf(dtype).fp16_scale, tile + kLayout.meta_offset(),
                                  elements / kBlockElements, scales);
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
    LoadPlane<kSpec.plane_bits[0], 0>(tile + at / 8 * kSpec.plane_bits[0], codes);
    if constexpr (kSpec.plane_bits[1] != 0) {
      LoadPlane<kSpec.plane_bits[1], kSpec.plane_bits[0]>(
          tile + kLayout.plane_bytes[0] + at / 8 * kSpec.plane_bits[1], codes);
    }
    const VecF scale = BroadcastToBlocks<kLanes>(scales + at / kBlockElements);
    VecF v[kOctet];
    ForOctet([&](auto j)
                 QRD_LAMBDA { v[j] = hn::Mul(DecodeCode<kCodec>(CodeAt<j>(codes)), scale); });
    StoreOctets(v, y + at);
  }
  if (HWY_UNLIKELY(!finite)) CanonicalizeNans(y, elements);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
