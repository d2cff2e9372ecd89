// SPDX-License-Identifier: Apache-2.0
// Messages out of tiles, conversions of whole arrays, and the choice of the instruction set. The
// codecs are in codec_block.cc and codec_lp.cc.
#include "kernels/codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec.cc"
// simd_targets.h has to come before Highway.
// clang-format off
#include "kernels/simd_targets.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format on

#include <algorithm>
#include <array>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/codec_families.h"
#include "kernels/codec_kernels.h"
#include "kernels/codec_table.h"
#include "kernels/reference.h"

#if HWY_TARGET == HWY_SCALAR
namespace qrd::HWY_NAMESPACE {
const char* Target() { return hwy::TargetName(HWY_TARGET); }
void Round(Dtype dtype, const float* y, uint64_t count, uint8_t* out) {
  for (uint64_t i = 0; i < count; ++i) {  // one by one: out may be unaligned
    float element;
    ReferenceRoundToDtype(dtype, y + i, 1, &element);
    std::memcpy(out + i * DtypeBytes(dtype), &element, DtypeBytes(dtype));
  }
}
void Widen(Dtype dtype, const uint8_t* x, uint64_t count, bool canonical, float* y) {
  for (uint64_t i = 0; i < count; ++i) {
    float element;
    std::memcpy(&element, x + i * DtypeBytes(dtype), DtypeBytes(dtype));
    ReferenceWidenToFp32(dtype, &element, 1, y + i);
    if (canonical) ReferenceRoundToDtype(Dtype::kFp32, y + i, 1, y + i);
  }
}
}  // namespace qrd::HWY_NAMESPACE
#else

#include "kernels/codec_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// The F16C conversions of AVX2 and AVX3 round to nearest even and keep subnormals. Highway's own
// emulation for other targets does not handle Inf and NaN, so those use integers.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
inline constexpr bool kNativeFp16 = true;
#else
inline constexpr bool kNativeFp16 = false;
#endif

using U16Bytes = hn::Repartition<uint8_t, U16>;

template <Dtype kDtype>
HWY_INLINE VecF LoadWidened(const uint8_t* HWY_RESTRICT p) {
  if constexpr (kDtype == Dtype::kFp32) {
    return AsFloat(LoadBytes(p));
  } else {
    const auto bits16 = hn::BitCast(U16(), hn::LoadU(U16Bytes(), p));
    if constexpr (kDtype == Dtype::kFp16 && kNativeFp16) {
      return hn::PromoteTo(F32(), hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), bits16));
    }
    const VecU bits = hn::PromoteTo(U32(), bits16);
    if constexpr (kDtype == Dtype::kBf16) return AsFloat(hn::ShiftLeft<16>(bits));
    const VecU sign = hn::ShiftLeft<16>(hn::And(bits, SetU(0x8000)));
    return hn::Or(WidenFp16Magnitude(hn::And(bits, SetU(0x7FFF))), AsFloat(sign));
  }
}

template <Dtype kDtype>
HWY_INLINE void StoreRounded(VecF v, uint8_t* HWY_RESTRICT p) {
  const VecF canonical = hn::IfThenElse(hn::IsNaN(v), AsFloat(SetU(kCanonicalNanBits)), v);
  if constexpr (kDtype == Dtype::kFp32) {
    StoreBytes(AsUnsigned(canonical), p);
  } else if constexpr (kDtype == Dtype::kFp16 && kNativeFp16) {
    const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, F32>(), canonical);
    hn::StoreU(hn::BitCast(U16Bytes(), half), U16Bytes(), p);
  } else {
    VecU bits;
    if constexpr (kDtype == Dtype::kBf16) {
      bits = RoundToBf16(AsUnsigned(canonical));  // 0x7FC00000 to 0x7FC0
    } else {
      const VecU sign = hn::And(hn::ShiftRight<16>(AsUnsigned(canonical)), SetU(0x8000));
      bits = hn::Or(RoundMagnitudeToFp16(Magnitude(canonical)), sign);
    }
    const auto narrow = hn::DemoteTo(U16(), AsSigned(bits));
    hn::StoreU(hn::BitCast(U16Bytes(), narrow), U16Bytes(), p);
  }
}

template <Dtype kDtype>
void RoundAll(const float* HWY_RESTRICT y, uint64_t count, uint8_t* HWY_RESTRICT out) {
  constexpr uint64_t kBytes = DtypeBytes(kDtype);
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    StoreRounded<kDtype>(hn::LoadU(F32(), y + i), out + i * kBytes);
  }
  if (i == count) return;
  HWY_ALIGN float rest[kLanes] = {};
  HWY_ALIGN uint8_t rounded[kLanes * kBytes];
  std::memcpy(rest, y + i, (count - i) * sizeof(float));
  StoreRounded<kDtype>(hn::Load(F32(), rest), rounded);
  std::memcpy(out + i * kBytes, rounded, (count - i) * kBytes);
}

template <Dtype kDtype, bool kCanonical>
void WidenAll(const uint8_t* HWY_RESTRICT x, uint64_t count, float* HWY_RESTRICT y) {
  constexpr uint64_t kBytes = DtypeBytes(kDtype);
  const auto widen = [](const uint8_t* p) QRD_LAMBDA {
    const VecF v = LoadWidened<kDtype>(p);
    if constexpr (!kCanonical) return v;
    return hn::IfThenElse(hn::IsNaN(v), AsFloat(SetU(kCanonicalNanBits)), v);
  };
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(widen(x + i * kBytes), F32(), y + i);
  if (i == count) return;
  HWY_ALIGN uint8_t rest[kLanes * kBytes] = {};
  HWY_ALIGN float widened[kLanes];
  std::memcpy(rest, x + i * kBytes, (count - i) * kBytes);
  hn::Store(widen(rest), F32(), widened);
  std::memcpy(y + i, widened, (count - i) * sizeof(float));
}

void Round(Dtype dtype, const float* y, uint64_t count, uint8_t* out) {
  switch (dtype) {
    case Dtype::kFp16:
      return RoundAll<Dtype::kFp16>(y, count, out);
    case Dtype::kBf16:
      return RoundAll<Dtype::kBf16>(y, count, out);
    case Dtype::kFp32:
      return RoundAll<Dtype::kFp32>(y, count, out);
  }
}

void Widen(Dtype dtype, const uint8_t* x, uint64_t count, bool canonical, float* y) {
  switch (dtype) {
    case Dtype::kFp16:
      return canonical ? WidenAll<Dtype::kFp16, true>(x, count, y)
                       : WidenAll<Dtype::kFp16, false>(x, count, y);
    case Dtype::kBf16:
      return canonical ? WidenAll<Dtype::kBf16, true>(x, count, y)
                       : WidenAll<Dtype::kBf16, false>(x, count, y);
    case Dtype::kFp32:
      return canonical ? WidenAll<Dtype::kFp32, true>(x, count, y)
                       : WidenAll<Dtype::kFp32, false>(x, count, y);
  }
}

const char* Target() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_SCALAR

#if HWY_ONCE
namespace qrd {
namespace {

HWY_EXPORT(Round);
HWY_EXPORT(Widen);
HWY_EXPORT(Target);

constexpr CodecKernels kNoneKernels = {
    [](Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
      HWY_DYNAMIC_DISPATCH(Round)(dtype, x, count, reinterpret_cast<uint8_t*>(wire));
    },
    [](Dtype dtype, const std::byte* wire, uint32_t count, float* y) {
      HWY_DYNAMIC_DISPATCH(Widen)(dtype, reinterpret_cast<const uint8_t*>(wire), count, true, y);
    },
    [](Dtype dtype, const float* x, uint32_t count, float* y) {
      uint8_t wire[kTileElements * sizeof(float)];
      HWY_DYNAMIC_DISPATCH(Round)(dtype, x, count, wire);
      HWY_DYNAMIC_DISPATCH(Widen)(dtype, wire, count, true, y);
    }};

// For a machine without any vector unit that we know.
template <Codec kCodec>
constexpr CodecKernels kScalarKernels = {
    [](Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
      ReferenceEncodeFp32(kCodec, dtype, x, count, wire);
    },
    [](Dtype dtype, const std::byte* wire, uint32_t count, float* y) {
      ReferenceDecode(kCodec, dtype, wire, count, y);
    },
    [](Dtype dtype, const float* x, uint32_t count, float* y) {
      std::byte wire[kTileElements * sizeof(float)];
      ReferenceEncodeFp32(kCodec, dtype, x, count, wire);
      ReferenceDecode(kCodec, dtype, wire, count, y);
    }};

constexpr std::array<const CodecKernels*, kCodecCount> kScalarTable = {
    &kNoneKernels,
    &kScalarKernels<Codec::kFp8>,
    &kScalarKernels<Codec::kInt8>,
    &kScalarKernels<Codec::kInt6>,
    &kScalarKernels<Codec::kInt4>,
    &kScalarKernels<Codec::kFp4>,
    &kScalarKernels<Codec::kInt3>,
    &kScalarKernels<Codec::kLp4>,
    &kScalarKernels<Codec::kLp3>,
    &kScalarKernels<Codec::kLp3c>,
    &kScalarKernels<Codec::kLp2>};

uint32_t TileElements(uint64_t count, uint64_t first) {
  return static_cast<uint32_t>(std::min(kTileElements, count - first));
}

}  // namespace

const CodecKernels& KernelsFor(Codec codec) {
  const CodecKernels* kernels = codec == Codec::kNone ? &kNoneKernels : BlockCodecKernels(codec);
  if (kernels == nullptr) kernels = LpCodecKernels(codec);
  return kernels != nullptr ? *kernels : *kScalarTable[static_cast<size_t>(codec)];
}

void Encode(Codec codec, Dtype dtype, const void* x, uint64_t count, std::byte* wire) {
  if (count == 0) return;
  if (codec == Codec::kNone) {
    std::memcpy(wire, x, count * DtypeBytes(dtype));
    return;
  }
  if (dtype == Dtype::kFp32) {
    EncodeFp32(codec, dtype, static_cast<const float*>(x), count, wire);
    return;
  }
  const CodecKernels& kernels = KernelsFor(codec);
  const uint64_t tile_bytes = EncodedBytes(codec, dtype, kTileElements);
  const uint8_t* in = static_cast<const uint8_t*>(x);
  HWY_ALIGN float tile[kTileElements];
  for (uint64_t first = 0; first < count; first += kTileElements, wire += tile_bytes) {
    const uint32_t elements = TileElements(count, first);
    HWY_DYNAMIC_DISPATCH(Widen)(dtype, in + first * DtypeBytes(dtype), elements, false, tile);
    kernels.encode_tile(dtype, tile, elements, wire);
  }
}

void EncodeFp32(Codec codec, Dtype dtype, const float* x, uint64_t count, std::byte* wire) {
  const CodecKernels& kernels = KernelsFor(codec);
  const uint64_t tile_bytes = EncodedBytes(codec, dtype, kTileElements);
  for (uint64_t first = 0; first < count; first += kTileElements, wire += tile_bytes) {
    kernels.encode_tile(dtype, x + first, TileElements(count, first), wire);
  }
}

void Decode(Codec codec, Dtype dtype, const std::byte* wire, uint64_t count, float* y) {
  const CodecKernels& kernels = KernelsFor(codec);
  const uint64_t tile_bytes = EncodedBytes(codec, dtype, kTileElements);
  for (uint64_t first = 0; first < count; first += kTileElements, wire += tile_bytes) {
    kernels.decode_tile(dtype, wire, TileElements(count, first), y + first);
  }
}

void RoundToDtype(Dtype dtype, const float* y, uint64_t count, void* out) {
  HWY_DYNAMIC_DISPATCH(Round)(dtype, y, count, static_cast<uint8_t*>(out));
}

void WidenToFp32(Dtype dtype, const void* x, uint64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(Widen)(dtype, static_cast<const uint8_t*>(x), count, false, y);
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(Target)(); }

}  // namespace qrd
#endif  // HWY_ONCE
