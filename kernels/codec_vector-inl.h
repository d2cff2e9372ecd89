// SPDX-License-Identifier: Apache-2.0
// Vector pieces that the SIMD codecs share, compiled once per instruction set (Highway's
// foreach_target).
//
// The data layout that makes the codecs fast: an octet is 8 consecutive elements, the unit of every
// plane and of every lp lane. LoadOctets() turns kLanes octets around, so that vector j holds
// element j of each. Maxima, codes and bit packing are then plain vertical operations, and a packed
// octet is one integer lane: 1, 2, 4 or 8 bytes of a plane.
//
// Only operations with one rounding each are used; no MulAdd, no approximations.
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_VECTOR_INL_H_
#undef QRD_KERNELS_CODEC_VECTOR_INL_H_
#else
#define QRD_KERNELS_CODEC_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/codec_table.h"

// Lambdas do not inherit the target of the function around them.
#define QRD_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of 4, 8 or 16 lanes; 128-bit blocks are the unit of the shuffles.
inline constexpr size_t kLanes = HWY_MIN(16, HWY_LANES(float));
inline constexpr size_t kOctet = 8;
inline constexpr size_t kUnitElements = kLanes * kOctet;  // what LoadOctets() loads
static_assert(kTileElements % kUnitElements == 0);

using F32 = hn::FixedTag<float, kLanes>;
using U32 = hn::FixedTag<uint32_t, kLanes>;
using I32 = hn::FixedTag<int32_t, kLanes>;
using U16 = hn::FixedTag<uint16_t, kLanes>;
using U8x4 = hn::FixedTag<uint8_t, kLanes * 4>;  // the bytes of a vector
using VecF = hn::Vec<F32>;
using VecU = hn::Vec<U32>;
using VecI = hn::Vec<I32>;
using MaskU = hn::Mask<U32>;

template <size_t kIndex>
using Index = std::integral_constant<size_t, kIndex>;

// Calls f(Index<0>()) ... f(Index<7>()): loops over the elements of an octet with constant indices.
template <typename F>
HWY_INLINE void ForOctet(F&& f) {
  f(Index<0>());
  f(Index<1>());
  f(Index<2>());
  f(Index<3>());
  f(Index<4>());
  f(Index<5>());
  f(Index<6>());
  f(Index<7>());
}

HWY_INLINE VecF AsFloat(VecU v) { return hn::BitCast(F32(), v); }
HWY_INLINE VecF AsFloat(VecI v) { return hn::BitCast(F32(), v); }
HWY_INLINE VecU AsUnsigned(VecF v) { return hn::BitCast(U32(), v); }
HWY_INLINE VecU AsUnsigned(VecI v) { return hn::BitCast(U32(), v); }
HWY_INLINE VecI AsSigned(VecF v) { return hn::BitCast(I32(), v); }
HWY_INLINE VecI AsSigned(VecU v) { return hn::BitCast(I32(), v); }
HWY_INLINE VecU SetU(uint32_t value) { return hn::Set(U32(), value); }
HWY_INLINE VecI SetI(uint32_t value) { return hn::Set(I32(), static_cast<int32_t>(value)); }
HWY_INLINE VecF SetF(float value) { return hn::Set(F32(), value); }
HWY_INLINE VecU Magnitude(VecF v) { return hn::And(AsUnsigned(v), SetU(kMagnitudeMask)); }
// Both below 2^31: signed comparison is what instruction sets have.
HWY_INLINE MaskU Less(VecU a, VecU b) {
  return hn::RebindMask(U32(), hn::Lt(AsSigned(a), AsSigned(b)));
}
HWY_INLINE MaskU ToMaskU(hn::Mask<F32> mask) { return hn::RebindMask(U32(), mask); }

// ---- 128-bit blocks and transposition

// Block b of the result is the 4 floats at p + b * stride.
template <size_t kCount>
HWY_INLINE hn::Vec<hn::FixedTag<float, kCount>> LoadBlocks(const float* HWY_RESTRICT p,
                                                           size_t stride) {
  const hn::FixedTag<float, kCount> d;
  if constexpr (kCount == 4) {
    return hn::LoadU(d, p);
  } else {
    return hn::Combine(d, LoadBlocks<kCount / 2>(p + kCount / 8 * stride, stride),
                       LoadBlocks<kCount / 2>(p, stride));
  }
}

template <size_t kCount>
HWY_INLINE void StoreBlocks(hn::Vec<hn::FixedTag<float, kCount>> v, float* HWY_RESTRICT p,
                            size_t stride) {
  const hn::FixedTag<float, kCount> d;
  if constexpr (kCount == 4) {
    hn::StoreU(v, d, p);
  } else {
    const hn::FixedTag<float, kCount / 2> half;
    StoreBlocks<kCount / 2>(hn::LowerHalf(half, v), p, stride);
    StoreBlocks<kCount / 2>(hn::UpperHalf(half, v), p + kCount / 8 * stride, stride);
  }
}

// Block b of the result has 4 times p[b].
template <size_t kCount>
HWY_INLINE hn::Vec<hn::FixedTag<float, kCount>> BroadcastToBlocks(const float* HWY_RESTRICT p) {
  const hn::FixedTag<float, kCount> d;
  if constexpr (kCount == 4) {
    return hn::Set(d, *p);
  } else {
    return hn::Combine(d, BroadcastToBlocks<kCount / 2>(p + kCount / 8),
                       BroadcastToBlocks<kCount / 2>(p));
  }
}

// Transposes the 4x4 matrix that each 128-bit block of the four vectors makes.
HWY_INLINE void TransposeBlocks(VecF& a, VecF& b, VecF& c, VecF& d) {
  const hn::RepartitionToWide<U32> d64;
  const auto low_ab = hn::BitCast(d64, hn::InterleaveLower(F32(), a, b));
  const auto low_cd = hn::BitCast(d64, hn::InterleaveLower(F32(), c, d));
  const auto high_ab = hn::BitCast(d64, hn::InterleaveUpper(F32(), a, b));
  const auto high_cd = hn::BitCast(d64, hn::InterleaveUpper(F32(), c, d));
  a = hn::BitCast(F32(), hn::InterleaveLower(d64, low_ab, low_cd));
  b = hn::BitCast(F32(), hn::InterleaveUpper(d64, low_ab, low_cd));
  c = hn::BitCast(F32(), hn::InterleaveLower(d64, high_ab, high_cd));
  d = hn::BitCast(F32(), hn::InterleaveUpper(d64, high_ab, high_cd));
}

// v[j] = element j of the kLanes octets at p; row i of a block is octet 4 * block + i.
HWY_INLINE void LoadOctets(const float* HWY_RESTRICT p, VecF (&v)[kOctet]) {
  ForOctet([&](auto j) QRD_LAMBDA {
    v[j] = LoadBlocks<kLanes>(p + kOctet * (j % 4) + 4 * (j / 4), 4 * kOctet);
  });
  TransposeBlocks(v[0], v[1], v[2], v[3]);
  TransposeBlocks(v[4], v[5], v[6], v[7]);
}

// The inverse. v is lost.
HWY_INLINE void StoreOctets(VecF (&v)[kOctet], float* HWY_RESTRICT p) {
  TransposeBlocks(v[0], v[1], v[2], v[3]);
  TransposeBlocks(v[4], v[5], v[6], v[7]);
  ForOctet([&](auto j) QRD_LAMBDA {
    StoreBlocks<kLanes>(v[j], p + kOctet * (j % 4) + 4 * (j / 4), 4 * kOctet);
  });
}

// table[index & 7], for 8 entries at an aligned address.
HWY_INLINE VecF Lookup8(const float* HWY_RESTRICT table, VecU index) {
  if constexpr (kLanes >= 8) {
    // A table of 16 entries is the same 8 twice.
    const auto lanes = hn::And(index, SetU(7));
    return hn::TableLookupLanes(hn::Load(F32(), table), hn::IndicesFromVec(F32(), lanes));
  } else {
    const auto lanes = hn::IndicesFromVec(F32(), hn::And(index, SetU(kLanes - 1)));
    const auto low = hn::TableLookupLanes(hn::Load(F32(), table), lanes);
    const auto high = hn::TableLookupLanes(hn::Load(F32(), table + 4), lanes);
    const auto is_high = hn::TestBit(index, SetU(4));
    return hn::IfThenElse(hn::RebindMask(F32(), is_high), high, low);
  }
}

// ---- bit planes
// The codes of kLanes octets are two vectors of bytes: `even` has elements 0, 2, 4, 6 of an octet
// in bytes 0 to 3 of a lane, `odd` has 1, 3, 5, 7.
struct OctetCodes {
  VecU even;
  VecU odd;
};

template <size_t kElement>
HWY_INLINE VecU CodeAt(const OctetCodes& codes) {
  const VecU bytes = kElement % 2 == 0 ? codes.even : codes.odd;
  return hn::And(hn::ShiftRight<8 * (kElement / 2)>(bytes), SetU(0xFF));
}

// Adds a code to the bytes of its element. Bits above the byte carry into the next elements' bytes.
template <size_t kElement>
HWY_INLINE void AddCode(VecU code, OctetCodes& codes) {
  VecU& bytes = kElement % 2 == 0 ? codes.even : codes.odd;
  bytes = hn::Add(bytes, hn::ShiftLeft<8 * (kElement / 2)>(code));
}

HWY_INLINE VecU LoadBytes(const uint8_t* HWY_RESTRICT p) {
  return hn::BitCast(U32(), hn::LoadU(U8x4(), p));
}
HWY_INLINE void StoreBytes(VecU v, uint8_t* HWY_RESTRICT p) {
  hn::StoreU(hn::BitCast(U8x4(), v), U8x4(), p);
}

// Writes bits [kShift, kShift + kWidth) of the codes: kWidth bytes an octet.
template <uint32_t kWidth, uint32_t kShift>
HWY_INLINE void StorePlane(const OctetCodes& codes, uint8_t* HWY_RESTRICT plane) {
  const VecU mask = SetU(((1u << kWidth) - 1) * 0x01010101u);
  const VecU even = hn::And(hn::ShiftRight<kShift>(codes.even), mask);
  const VecU odd = hn::And(hn::ShiftRight<kShift>(codes.odd), mask);
  if constexpr (kWidth == 8) {
    hn::StoreInterleaved2(hn::BitCast(U8x4(), even), hn::BitCast(U8x4(), odd), U8x4(), plane);
    return;
  }
  VecU bits = hn::Or(even, hn::ShiftLeft<kWidth % 8>(odd));
  if constexpr (kWidth == 4) {
    StoreBytes(bits, plane);
  } else if constexpr (kWidth == 2) {
    bits = hn::And(hn::Or(bits, hn::ShiftRight<4>(bits)), SetU(0x00FF00FF));
    bits = hn::And(hn::Or(bits, hn::ShiftRight<8>(bits)), SetU(0x0000FFFF));
    const hn::Repartition<uint8_t, U16> bytes;
    hn::StoreU(hn::BitCast(bytes, hn::DemoteTo(U16(), AsSigned(bits))), bytes, plane);
  } else if constexpr (kWidth == 1) {
    bits = hn::And(hn::Or(bits, hn::ShiftRight<6>(bits)), SetU(0x000F000F));
    bits = hn::And(hn::Or(bits, hn::ShiftRight<12>(bits)), SetU(0x000000FF));
    const hn::Rebind<uint8_t, U32> bytes;
    hn::StoreU(hn::DemoteTo(bytes, AsSigned(bits)), bytes, plane);
  }
}

// Adds a plane's bits to the codes, from bit kShift up.
template <uint32_t kWidth, uint32_t kShift>
HWY_INLINE void LoadPlane(const uint8_t* HWY_RESTRICT plane, OctetCodes& codes) {
  if constexpr (kWidth == 8) {
    hn::Vec<U8x4> even, odd;
    hn::LoadInterleaved2(U8x4(), plane, even, odd);
    codes = {hn::BitCast(U32(), even), hn::BitCast(U32(), odd)};
    return;
  }
  VecU bits = hn::Zero(U32());
  if constexpr (kWidth == 4) {
    bits = LoadBytes(plane);
  } else if constexpr (kWidth == 2) {
    const hn::Repartition<uint8_t, U16> bytes;
    bits = hn::PromoteTo(U32(), hn::BitCast(U16(), hn::LoadU(bytes, plane)));
    bits = hn::And(hn::Or(bits, hn::ShiftLeft<8>(bits)), SetU(0x00FF00FF));
    bits = hn::Or(bits, hn::ShiftLeft<4>(bits));
  } else if constexpr (kWidth == 1) {
    const hn::Rebind<uint8_t, U32> bytes;
    bits = hn::PromoteTo(U32(), hn::LoadU(bytes, plane));
    bits = hn::And(hn::Or(bits, hn::ShiftLeft<12>(bits)), SetU(0x000F000F));
    bits = hn::Or(bits, hn::ShiftLeft<6>(bits));
  }
  const VecU mask = SetU(((1u << kWidth) - 1) * 0x01010101u);
  const VecU even = hn::And(bits, mask), odd = hn::And(hn::ShiftRight<kWidth % 8>(bits), mask);
  codes.even = hn::Or(codes.even, hn::ShiftLeft<kShift>(even));
  codes.odd = hn::Or(codes.odd, hn::ShiftLeft<kShift>(odd));
}

// ---- 16-bit formats in 32-bit lanes, in integers: the same bits on every instruction set

// Magnitude bits of fp16 to fp32, exact; NaN and Inf keep their mantissa.
HWY_INLINE VecF WidenFp16Magnitude(VecU half) {
  const VecU moved = hn::ShiftLeft<13>(half);
  const VecU normal = hn::Add(moved, SetU(112u << 23));
  // Subnormal: the mantissa counts 2^-24.
  const VecF small = hn::Mul(hn::ConvertTo(F32(), AsSigned(half)), SetF(0x1p-24f));
  const VecU special = hn::Or(moved, SetU(0x7F800000));
  const VecU finite = hn::IfThenElse(Less(half, SetU(0x0400)), AsUnsigned(small), normal);
  return AsFloat(hn::IfThenElse(Less(half, SetU(0x7C00)), finite, special));
}

// Magnitude bits of fp32 to those of fp16: nearest even, overflow to Inf, NaN to 0x7E00.
HWY_INLINE VecU RoundMagnitudeToFp16(VecU magnitude) {
  const VecU odd = hn::And(hn::ShiftRight<13>(magnitude), SetU(1));
  const VecU normal =
      hn::Sub(hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, SetU(0xFFF)), odd)), SetU(112u << 10));
  // Adding 0.5 leaves a multiple of 2^-24, the unit of fp16's subnormals, in the low bits.
  const VecF half = SetF(0.5f);
  const VecU small = hn::Sub(AsUnsigned(hn::Add(AsFloat(magnitude), half)), AsUnsigned(half));
  VecU result = hn::IfThenElse(Less(magnitude, SetU(0x38800000)), small, normal);
  result = hn::IfThenElse(Less(magnitude, SetU(SpecOf(Dtype::kFp16).limit)), result, SetU(0x7C00));
  return hn::IfThenElse(Less(SetU(0x7F800000), magnitude), SetU(0x7E00), result);
}

// The same for bf16, or for fp32 bits with a sign. NaN is the caller's.
HWY_INLINE VecU RoundToBf16(VecU bits) {
  const VecU odd = hn::And(hn::ShiftRight<16>(bits), SetU(1));
  return hn::ShiftRight<16>(hn::Add(hn::Add(bits, SetU(0x7FFF)), odd));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
