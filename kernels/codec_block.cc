// SPDX-License-Identifier: Apache-2.0
// The int and fp codecs (wire format, section 4): 32 elements a block, one 16-bit scale. A block is 4
// octets, so it is one 128-bit block of every vector that LoadOctets() makes.
#include "kernels/codec_families.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec_block.cc"
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/codec_tiles.h"

#if HWY_TARGET == HWY_SCALAR
namespace qrd::HWY_NAMESPACE {
// No vectors: kernels/codec.cc uses the reference.
const CodecKernels* BlockKernels(Codec) { return nullptr; }
}  // namespace qrd::HWY_NAMESPACE
#else

#include "kernels/codec_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

inline constexpr size_t kBlocksPerUnit = kLanes / 4;
inline constexpr uint32_t kBlockElements = 32;

// Largest of the 4 lanes of each 128-bit block, in all of them.
template <typename V>
HWY_INLINE V MaxOfBlock(V v) {
  v = hn::Max(v, hn::Shuffle2301(v));
  return hn::Max(v, hn::Shuffle1032(v));
}

// The extreme of each block: magnitude bits and, for int codecs, whether the negative one counts.
struct Extreme {
  VecU magnitude;
  MaskU is_negative;
};

template <CodecKind kKind>
HWY_INLINE Extreme FindExtreme(const VecF (&x)[kOctet]) {
  if constexpr (kKind == CodecKind::kInt) {
    // As signed integers, positive floats are in order and above all negative ones; as unsigned,
    // negative floats are in order of magnitude and above all positive ones. NaN is above Inf.
    VecI highest = AsSigned(x[0]);
    VecU lowest = AsUnsigned(x[0]);
    ForOctet([&](auto j) QRD_LAMBDA {
      highest = hn::Max(highest, AsSigned(x[j]));
      lowest = hn::Max(lowest, AsUnsigned(x[j]));
    });
    const VecI high = hn::Max(MaxOfBlock(highest), hn::Zero(I32()));
    lowest = MaxOfBlock(lowest);
    const VecU sign = AsUnsigned(hn::BroadcastSignBit(AsSigned(lowest)));
    const VecI low = AsSigned(hn::And(hn::And(lowest, SetU(kMagnitudeMask)), sign));
    const MaskU is_negative = hn::AndNot(ToMaskU(hn::RebindMask(F32(), hn::Gt(high, low))),
                                         hn::MaskFromVec(sign));
    return {AsUnsigned(hn::Max(high, low)), is_negative};
  } else {
    VecI top = AsSigned(Magnitude(x[0]));
    ForOctet([&](auto j) QRD_LAMBDA { top = hn::Max(top, AsSigned(Magnitude(x[j]))); });
    return {AsUnsigned(MaxOfBlock(top)), hn::MaskFromVec(hn::Zero(U32()))};
  }
}

struct Scale {
  VecU bits;      // as on the wire
  VecF inverse;   // finite
  MaskU has_data;
};

template <Codec kCodec>
HWY_INLINE Scale MakeScale(const Extreme& extreme, const DtypeSpec& dtype, uint32_t scale_max) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr float kReciprocal = kSpec.reciprocal < 0 ? -kSpec.reciprocal : kSpec.reciprocal;
  const VecU top = extreme.magnitude;
  const VecU exact = AsUnsigned(hn::Mul(AsFloat(top), SetF(kReciprocal)));
  VecU rounded;
  if (dtype.fp16_scale) {
    rounded = RoundMagnitudeToFp16(exact);
  } else {
    rounded = RoundToBf16(exact);
  }
  rounded = AsUnsigned(hn::Min(AsSigned(rounded), SetI(scale_max)));
  const MaskU in_range = Less(top, SetU(dtype.limit));
  const MaskU has_data = hn::And(hn::And(in_range, Less(SetU(kFloorBits - 1), top)),
                                 Less(hn::Zero(U32()), rounded));
  VecU sign = hn::Zero(U32());
  if constexpr (kSpec.kind == CodecKind::kInt) {
    // The scale has the opposite sign of the extreme.
    sign = hn::IfThenZeroElse(extreme.is_negative, SetU(0x80000000));
  }
  VecF scale;
  if (dtype.fp16_scale) {
    scale = WidenFp16Magnitude(rounded);
  } else {
    scale = AsFloat(hn::ShiftLeft<16>(rounded));
  }
  scale = hn::IfThenElse(hn::RebindMask(F32(), has_data), hn::Or(scale, AsFloat(sign)), SetF(1));
  const VecU no_data = hn::IfThenZeroElse(in_range, SetU(dtype.scale_nan));
  return {hn::IfThenElse(has_data, hn::Or(rounded, hn::ShiftRight<16>(sign)), no_data),
          hn::Div(SetF(1), scale), has_data};
}

// Codes of small floats: nearest even, saturating, sign bit kept.
template <uint32_t kMantissaBits, uint32_t kBias>
HWY_INLINE VecU EncodeSmallFloat(VecF v, float top) {
  constexpr uint32_t kDropped = 23 - kMantissaBits;
  const VecF a = hn::Min(hn::Abs(v), SetF(top));
  const VecU bits = AsUnsigned(a);
  const VecU odd = hn::And(hn::ShiftRight<kDropped>(bits), SetU(1));
  const VecU normal =
      hn::Sub(hn::ShiftRight<kDropped>(
                  hn::Add(hn::Add(bits, SetU((1u << (kDropped - 1)) - 1)), odd)),
              SetU((127 - kBias) << kMantissaBits));
  // The sum's last bit is worth the smallest subnormal, 2^(1 - bias - mantissa bits).
  const VecF shift = AsFloat(SetU((127 + 1 - kBias + kDropped) << 23));
  const VecU small = hn::And(AsUnsigned(hn::Add(a, shift)), SetU((2u << kMantissaBits) - 1));
  const MaskU is_small = Less(bits, SetU((127 + 1 - kBias) << 23));
  const VecU sign = hn::ShiftRight<31>(AsUnsigned(v));
  return hn::Or(hn::IfThenElse(is_small, small, normal),
                hn::ShiftLeft<kMantissaBits == 3 ? 7 : 3>(sign));
}

constexpr uint32_t kMagicBits = 0x4B400000;  // 0x1.8p23f: its last bit is worth 1

// The codes of one unit from x / scale, which `scaled(j)` gives.
template <Codec kCodec>
HWY_INLINE OctetCodes EncodeUnit(const VecF (&x)[kOctet], VecF inverse) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
  if constexpr (kSpec.kind == CodecKind::kInt) {
    // The sum rounds to an integer; L is even, so ties still go to even q. The clamped bits are the
    // code plus kMagicBits, which is taken off once, after packing.
    constexpr uint32_t kTop = static_cast<uint32_t>(kSpec.top);
    const VecF magic = SetF(0x1.8p23f + kSpec.top);
    ForOctet([&](auto j) QRD_LAMBDA {
      VecI bits = AsSigned(hn::Add(hn::Mul(x[j], inverse), magic));
      bits = hn::Min(hn::Max(bits, SetI(kMagicBits)), SetI(kMagicBits + 2 * kTop - 1));
      AddCode<j>(AsUnsigned(bits), codes);
    });
    const VecU extra = SetU(kMagicBits + (kMagicBits << 8) + (kMagicBits << 16) + (kMagicBits << 24));
    codes = {hn::Sub(codes.even, extra), hn::Sub(codes.odd, extra)};
  } else {
    ForOctet([&](auto j) QRD_LAMBDA {
      const VecF v = hn::Mul(x[j], inverse);
      if constexpr (kCodec == Codec::kFp8) {
        AddCode<j>(EncodeSmallFloat<3, 7>(v, kSpec.top), codes);
      } else {
        AddCode<j>(EncodeSmallFloat<1, 1>(v, kSpec.top), codes);
      }
    });
  }
  return codes;
}

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

// Codes and scales of the unit at x, masked where a block has no data.
template <Codec kCodec>
HWY_INLINE OctetCodes EncodeBlocks(const float* HWY_RESTRICT x, const DtypeSpec& dtype,
                                   uint32_t scale_max, VecU& scale_bits) {
  VecF v[kOctet];
  LoadOctets(x, v);
  const Scale scale = MakeScale<kCodec>(FindExtreme<SpecOf(kCodec).kind>(v), dtype, scale_max);
  scale_bits = scale.bits;
  if (HWY_UNLIKELY(!hn::AllTrue(U32(), scale.has_data))) {
    // +0 gives the code of zero.
    const auto mask = hn::RebindMask(F32(), scale.has_data);
    ForOctet([&](auto j) QRD_LAMBDA { v[j] = hn::IfThenElseZero(mask, v[j]); });
  }
  return EncodeUnit<kCodec>(v, scale.inverse);
}

// Elements at x are a multiple of kUnitElements; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void EncodePadded(Dtype dtype, const float* HWY_RESTRICT x, uint32_t elements,
                             uint8_t* HWY_RESTRICT tile) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr TileLayout kLayout = FullTile(kSpec);
  const DtypeSpec limits = SpecOf(dtype);
  const uint32_t scale_max = ScaleMax(kSpec, dtype);
  uint8_t* scales = tile + kLayout.meta_offset();
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    VecU scale_bits;
    const OctetCodes codes = EncodeBlocks<kCodec>(x + at, limits, scale_max, scale_bits);
    StorePlane<kSpec.plane_bits[0], 0>(codes, tile + at / 8 * kSpec.plane_bits[0]);
    if constexpr (kSpec.plane_bits[1] != 0) {
      StorePlane<kSpec.plane_bits[1], kSpec.plane_bits[0]>(
          codes, tile + kLayout.plane_bytes[0] + at / 8 * kSpec.plane_bits[1]);
    }
    HWY_ALIGN uint32_t lanes[kLanes];
    hn::Store(scale_bits, U32(), lanes);
    for (size_t block = 0; block < kBlocksPerUnit; ++block) {
      const uint16_t bits = static_cast<uint16_t>(lanes[4 * block]);
      std::memcpy(scales + (at / kBlockElements + block) * sizeof(bits), &bits, sizeof(bits));
    }
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

// A NaN can only come from a scale that is not finite: on some machines with another sign or payload.
HWY_NOINLINE void CanonicalizeNans(float* HWY_RESTRICT y, uint32_t elements) {
  for (uint32_t at = 0; at < elements; at += kLanes) {
    const VecF v = hn::LoadU(F32(), y + at);
    const VecF nan = AsFloat(SetU(kCanonicalNanBits));
    hn::StoreU(hn::IfThenElse(hn::IsNaN(v), nan, v), F32(), y + at);
  }
}

// Writes whole units; tile has full-tile offsets.
template <Codec kCodec>
HWY_INLINE void DecodePadded(Dtype dtype, const uint8_t* HWY_RESTRICT tile, uint32_t elements,
                             float* HWY_RESTRICT y) {
  constexpr const CodecSpec& kSpec = SpecOf(kCodec);
  constexpr TileLayout kLayout = FullTile(kSpec);
  HWY_ALIGN float scales[kTileElements / kBlockElements];
  const uint32_t blocks = elements / kBlockElements;
  // Rounding up to a vector of scales stays inside the tile: it has 64.
  const bool finite = WidenScales(SpecOf(dtype).fp16_scale, tile + kLayout.meta_offset(),
                                  static_cast<uint32_t>((blocks + kLanes - 1) / kLanes * kLanes),
                                  scales);
  for (uint32_t at = 0; at < elements; at += kUnitElements) {
    OctetCodes codes = {hn::Zero(U32()), hn::Zero(U32())};
    LoadPlane<kSpec.plane_bits[0], 0>(tile + at / 8 * kSpec.plane_bits[0], codes);
    if constexpr (kSpec.plane_bits[1] != 0) {
      LoadPlane<kSpec.plane_bits[1], kSpec.plane_bits[0]>(
          tile + kLayout.plane_bytes[0] + at / 8 * kSpec.plane_bits[1], codes);
    }
    const VecF scale = BroadcastToBlocks<kLanes>(scales + at / kBlockElements);
    VecF v[kOctet];
    ForOctet([&](auto j) QRD_LAMBDA {
      v[j] = hn::Mul(DecodeCode<kCodec>(CodeAt<j>(codes)), scale);
    });
    StoreOctets(v, y + at);
  }
  if (HWY_UNLIKELY(!finite)) CanonicalizeNans(y, elements);
}

template <Codec kCodec>
struct BlockCodec {
  static constexpr const CodecSpec& kSpec = SpecOf(kCodec);

  static uint32_t PaddedElements(uint32_t count) {
    return static_cast<uint32_t>((count + kUnitElements - 1) / kUnitElements * kUnitElements);
  }

  static void EncodeTile(Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
    uint8_t* bytes = reinterpret_cast<uint8_t*>(wire);
    if (count == kTileElements) return EncodePadded<kCodec>(dtype, x, count, bytes);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    const uint32_t elements = PaddedElements(count);
    std::memcpy(padded, x, count * sizeof(float));
    std::memset(padded + count, 0, (elements - count) * sizeof(float));
    EncodePadded<kCodec>(dtype, padded, elements, tile);
    CutTile(kSpec, GroupCount(kSpec, count), tile, bytes);
  }

  static void DecodeTile(Dtype dtype, const std::byte* wire, uint32_t count, float* y) {
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(wire);
    if (count == kTileElements) return DecodePadded<kCodec>(dtype, bytes, count, y);
    HWY_ALIGN float padded[kTileElements];
    HWY_ALIGN uint8_t tile[kTileWireBytesMax];
    SpreadTile(kSpec, GroupCount(kSpec, count), bytes, tile);
    DecodePadded<kCodec>(dtype, tile, PaddedElements(count), padded);
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
