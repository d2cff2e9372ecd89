// SPDX-License-Identifier: Apache-2.0
// Encode a tile of an int or fp codec, in passes over scratch that stays in the L1 cache: octets
// turned around and their extremes; scales, kLanes blocks at a time; codes, packed; the blocks
// without data, if there are any.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_BLOCK_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_BLOCK_ENCODE_INL_H_
#undef QRD_KERNELS_CODEC_BLOCK_ENCODE_INL_H_
#else
#define QRD_KERNELS_CODEC_BLOCK_ENCODE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/codec_block_shape-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

struct BlockScratch {
  HWY_ALIGN float turned[kTileElements];  // kOctet vectors a unit
  // Extremes of each octet, as bits. Taken as signed integers, positive floats are in order and
  // above all negative ones; as unsigned, negative floats are in order of magnitude and above all
  // positive ones. NaN is above Inf. The fp codecs need magnitudes only, in `highest`.
  HWY_ALIGN float highest[kTileElements / kOctet];
  HWY_ALIGN float lowest[kTileElements / kOctet];
  HWY_ALIGN float inverse[kBlocksPerTile];   // of the scale, finite
  HWY_ALIGN uint16_t scale[kBlocksPerTile];  // as on the wire
};

template <CodecKind kKind>
HWY_INLINE void FindOctetExtremes(const float* HWY_RESTRICT x, uint32_t elements,
                                  BlockScratch& scratch) {
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    VecF v[kOctet];
    LoadOctets(x + at, v);
    VecI highest = hn::Zero(I32());
    VecU lowest = hn::Zero(U32());
    ForOctet([&](auto j) QRD_LAMBDA {
      hn::Store(v[j], F32(), scratch.turned + at + j * kLanes);
      if constexpr (kKind == CodecKind::kInt) {
        highest = hn::Max(highest, AsSigned(v[j]));
        lowest = hn::Max(lowest, AsUnsigned(v[j]));
      } else {
        highest = hn::Max(highest, AsSigned(Magnitude(v[j])));
      }
    });
    hn::Store(AsFloat(highest), F32(), scratch.highest + at / kOctet);
    if constexpr (kKind == CodecKind::kInt) {
      hn::Store(AsFloat(lowest), F32(), scratch.lowest + at / kOctet);
    }
  }
}

// Row i of the result has octet i of kLanes blocks.
HWY_INLINE void LoadBlockOctets(const float* HWY_RESTRICT octets, VecF& a, VecF& b, VecF& c,
                                VecF& d) {
  a = LoadBlocks<kLanes>(octets, 16);
  b = LoadBlocks<kLanes>(octets + 4, 16);
  c = LoadBlocks<kLanes>(octets + 8, 16);
  d = LoadBlocks<kLanes>(octets + 12, 16);
  TransposeBlocks(a, b, c, d);
}

// Scales of kLanes blocks from first_block. True if all of them have data.
template <Codec kCodec>
HWY_INLINE bool ChooseScales(const DtypeSpec& dtype, uint32_t scale_max, uint32_t first_block,
                             BlockScratch& scratch) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr float kReciprocal = kSpec.reciprocal < 0 ? -kSpec.reciprocal : kSpec.reciprocal;
  VecF a, b, c, d;
  LoadBlockOctets(scratch.highest + first_block * kOctetsPerBlock, a, b, c, d);
  VecI high = hn::Max(hn::Max(AsSigned(a), AsSigned(b)), hn::Max(AsSigned(c), AsSigned(d)));
  VecU sign = hn::Zero(U32());
  if constexpr (kSpec.kind == CodecKind::kInt) {
    LoadBlockOctets(scratch.lowest + first_block * kOctetsPerBlock, a, b, c, d);
    const VecU lowest =
        hn::Max(hn::Max(AsUnsigned(a), AsUnsigned(b)), hn::Max(AsUnsigned(c), AsUnsigned(d)));
    const VecU has_negative = AsUnsigned(hn::BroadcastSignBit(AsSigned(lowest)));
    const VecI low = AsSigned(hn::And(hn::And(lowest, SetU(kMagnitudeMask)), has_negative));
    // The scale has the opposite sign of the extreme; on a tie the negative extreme counts.
    const MaskU is_positive = hn::RebindMask(U32(), hn::Gt(high, low));
    const VecU positive = hn::Or(hn::VecFromMask(U32(), is_positive), hn::Not(has_negative));
    sign = hn::And(positive, SetU(0x80000000));
    high = hn::Max(high, low);
  }

  const VecU top = AsUnsigned(high);
  const VecU exact = AsUnsigned(hn::Mul(AsFloat(top), SetF(kReciprocal)));
  VecU rounded = hn::Zero(U32());
  if (dtype.fp16_scale) {
    rounded = RoundMagnitudeToFp16(exact);
  } else {
    rounded = RoundToBf16(exact);
  }
  rounded = AsUnsigned(hn::Min(AsSigned(rounded), SetI(scale_max)));
  const MaskU in_range = Less(top, SetU(dtype.limit));
  const MaskU has_data =
      hn::And(hn::And(in_range, Less(SetU(kFloorBits - 1), top)), Less(hn::Zero(U32()), rounded));
  VecF scale = hn::Zero(F32());
  if (dtype.fp16_scale) {
    scale = WidenFp16Magnitude(rounded);
  } else {
    scale = AsFloat(hn::ShiftLeft<16>(rounded));
  }
  scale = hn::IfThenElse(hn::RebindMask(F32(), has_data), hn::Or(scale, AsFloat(sign)), SetF(1));
  hn::Store(hn::Div(SetF(1), scale), F32(), scratch.inverse + first_block);

  const VecU no_data = hn::IfThenZeroElse(in_range, SetU(dtype.scale_nan));
  const VecU bits = hn::IfThenElse(has_data, hn::Or(rounded, hn::ShiftRight<16>(sign)), no_data);
  hn::Store(hn::DemoteTo(U16(), AsSigned(bits)), U16(), scratch.scale + first_block);
  return hn::AllTrue(U32(), has_data);
}

// Codes of small floats: nearest even, saturating, sign bit kept.
template <uint32_t kMantissaBits, uint32_t kBias>
HWY_INLINE VecU EncodeSmallFloat(VecF v, float top) {
  constexpr uint32_t kDropped = 23 - kMantissaBits;
  const VecF a = hn::Min(hn::Abs(v), SetF(top));
  const VecU bits = AsUnsigned(a);
  const VecU odd = hn::And(hn::ShiftRight<kDropped>(bits), SetU(1));
  const VecU normal = hn::Sub(
      hn::ShiftRight<kDropped>(hn::Add(hn::Add(bits, SetU((1u << (kDropped - 1)) - 1)), odd)),
      SetU((127 - kBias) << kMantissaBits));
  // The sum's last bit is worth the smallest subnormal, 2^(1 - bias - mantissa bits).
  const VecF shift = AsFloat(SetU((127 + 1 - kBias + kDropped) << 23));
  const VecU small = hn::And(AsUnsigned(hn::Add(a, shift)), SetU((2u << kMantissaBits) - 1));
  const MaskU is_small = Less(bits, SetU((127 + 1 - kBias) << 23));
  const VecU sign = hn::ShiftRight<31>(AsUnsigned(v));
  return hn::Or(hn::IfThenElse(is_small, small, normal),
                hn::ShiftLeft < kMantissaBits == 3 ? 7 : 3 > (sign));
}

constexpr uint32_t kMagicBits = 0x4B400000;  // 0x1.8p23f: its last bit is worth 1

// The codes of one unit of turned octets.
template <Codec kCodec>
HWY_INLINE OctetCodes EncodeUnit(const float* HWY_RESTRICT turned, VecF inverse) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
  if constexpr (kSpec.kind == CodecKind::kInt) {
    // The sum rounds to an integer; L is even, so ties still go to even q. The clamped bits are the
    // code plus kMagicBits, which is taken off once, after packing.
    constexpr uint32_t kTop = static_cast<uint32_t>(kSpec.top);
    const VecF magic = SetF(0x1.8p23f + kSpec.top);
    ForOctet([&](auto j) QRD_LAMBDA {
      const VecF x = hn::Load(F32(), turned + j * kLanes);
      VecI bits = AsSigned(hn::Add(hn::Mul(x, inverse), magic));
      bits = hn::Min(hn::Max(bits, SetI(kMagicBits)), SetI(kMagicBits + 2 * kTop - 1));
      AddCode<j>(AsUnsigned(bits), codes);
    });
    const VecU extra =
        SetU(kMagicBits + (kMagicBits << 8) + (kMagicBits << 16) + (kMagicBits << 24));
    codes = {hn::Sub(codes.even, extra), hn::Sub(codes.odd, extra)};
  } else {
    ForOctet([&](auto j) QRD_LAMBDA {
      const VecF v = hn::Mul(hn::Load(F32(), turned + j * kLanes), inverse);
      if constexpr (kCodec == Codec::kFp8) {
        AddCode<j>(EncodeSmallFloat<3, 7>(v, kSpec.top), codes);
      } else {
        AddCode<j>(EncodeSmallFloat<1, 1>(v, kSpec.top), codes);
      }
    });
  }
  return codes;
}

// The code of zero in all elements of a block that has no data.
template <Codec kCodec>
HWY_INLINE void ClearBlock(uint32_t block, uint8_t* HWY_RESTRICT tile) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr uint32_t kZero = kSpec.kind == CodecKind::kInt ? static_cast<uint32_t>(kSpec.top) : 0;
  uint32_t offset = 0, shift = 0;
  for (const uint32_t width : kSpec.plane_bits) {
    if (width == 0) break;
    const uint32_t mask = (1u << width) - 1, bytes = kBlockElements * width / 8;
    const uint32_t pattern = (kZero >> shift & mask) * (0xFF / mask);
    std::memset(tile + offset + block * bytes, static_cast<int>(pattern), bytes);
    offset += kBlocksPerTile * bytes;
    shift += width;
  }
}

// elements is a multiple of kBlockBatch; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void EncodeBlockTile(Dtype dtype, const float* HWY_RESTRICT x, uint32_t elements,
                                uint8_t* HWY_RESTRICT tile) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr TileLayout kLayout = FullTile(kSpec);
  const uint32_t blocks = elements / kBlockElements;
  BlockScratch scratch;
  FindOctetExtremes<kSpec.kind>(x, elements, scratch);
  bool all_have_data = true;
  for (uint32_t block = 0; block < blocks; block += kLanes) {
    all_have_data &= ChooseScales<kCodec>(SpecOf(dtype), ScaleMax(kSpec, dtype), block, scratch);
  }
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    const VecF inverse = BroadcastToBlocks<kLanes>(scratch.inverse + at / kBlockElements);
    const OctetCodes codes = EncodeUnit<kCodec>(scratch.turned + at, inverse);
    StorePlane<kSpec.plane_bits[0], 0>(codes, tile + at / 8 * kSpec.plane_bits[0]);
    if constexpr (kSpec.plane_bits[1] != 0) {
      StorePlane<kSpec.plane_bits[1], kSpec.plane_bits[0]>(
          codes, tile + kLayout.plane_bytes[0] + at / 8 * kSpec.plane_bits[1]);
    }
  }
  std::memcpy(tile + kLayout.meta_offset(), scratch.scale, blocks * sizeof(uint16_t));
  if (HWY_LIKELY(all_have_data)) return;
  for (uint32_t block = 0; block < blocks; ++block) {
    const uint32_t magnitude = scratch.scale[block] & 0x7FFFu;
    if (magnitude == 0 || magnitude == SpecOf(dtype).scale_nan) ClearBlock<kCodec>(block, tile);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
