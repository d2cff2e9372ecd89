// SPDX-License-Identifier: Apache-2.0
// Vector pieces of the host all-reduce, compiled once per instruction set (Highway's
// foreach_target): widening, rounding R(), rank-order sums of a block, non-finite counts, and
// stores past the caches.
//
// A result is made once, in a small buffer that stays in the L1 cache, and then copied to every
// rank's output: each stream is read and written in runs, whatever the world size, and in place
// needs no care.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_ALL_REDUCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_ALL_REDUCE_INL_H_
#undef QRD_KERNELS_ALL_REDUCE_INL_H_
#else
#define QRD_KERNELS_ALL_REDUCE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/backend.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The x86 conversions of AVX2 (F16C) and up round to nearest even and keep subnormals; Highway's
// emulation for older instruction sets does not handle Inf and subnormals, so those use integers.
#undef QRD_NATIVE_F16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define QRD_NATIVE_F16 1
#else
#define QRD_NATIVE_F16 0
#endif

template <Dtype kDtype>
struct DtypeTraits;
template <>
struct DtypeTraits<Dtype::kFp16> {
  using Storage = uint16_t;
  static constexpr uint32_t kLimit =
      0x477FF000;  // rounds to Inf from here (wire format, section 3)
  static constexpr uint32_t kInfBits = 0x7C00, kMagnitudeMask = 0x7FFF;
};
template <>
struct DtypeTraits<Dtype::kBf16> {
  using Storage = uint16_t;
  static constexpr uint32_t kLimit = 0x7F7F8000;
  static constexpr uint32_t kInfBits = 0x7F80, kMagnitudeMask = 0x7FFF;
};
template <>
struct DtypeTraits<Dtype::kFp32> {
  using Storage = uint32_t;
  static constexpr uint32_t kLimit = 0x7F800000;
  static constexpr uint32_t kInfBits = 0x7F800000, kMagnitudeMask = 0x7FFFFFFF;
};
template <Dtype kDtype>
using StorageOf = typename DtypeTraits<kDtype>::Storage;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

template <Dtype kDtype>
HWY_INLINE VF LoadWidened(const StorageOf<kDtype>* HWY_RESTRICT p) {
  const DF df;
  const DU du;
  if constexpr (kDtype == Dtype::kFp32) {
    return hn::BitCast(df, hn::LoadU(du, p));
  } else if constexpr (kDtype == Dtype::kBf16) {
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(DU16(), p))));
  } else {
    const auto half = hn::LoadU(DU16(), p);
#if QRD_NATIVE_F16
    const hn::Rebind<hwy::float16_t, DF> df16;
    return hn::PromoteTo(df, hn::BitCast(df16, half));
#else
    const auto bits = hn::PromoteTo(du, half);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const auto moved = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
    // The exponents differ by 112; the product is exact, also for subnormals.
    const auto finite =
        hn::BitCast(du, hn::Mul(hn::BitCast(df, moved), hn::BitCast(df, hn::Set(du, 0x77800000u))));
    const auto special = hn::Or(moved, hn::Set(du, 0x7F800000u));
    const auto is_special = hn::Gt(hn::BitCast(DI(), moved), hn::Set(DI(), (0x7C00 << 13) - 1));
    return hn::BitCast(
        df, hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, is_special), special, finite)));
#endif
  }
}

// R(): one vector rounded to the dtype.
template <Dtype kDtype>
HWY_INLINE void StoreRounded(VF v, StorageOf<kDtype>* HWY_RESTRICT p) {
  const DF df;
  const DU du;
  const DI di;
  const auto is_nan = hn::IsNaN(v);
  const auto bits = hn::BitCast(du, v);
  if constexpr (kDtype == Dtype::kFp32) {
    hn::StoreU(hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, 0x7FC00000u), bits), du, p);
  } else if constexpr (kDtype == Dtype::kBf16) {
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
    const auto result = hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, 0x7FC0u), rounded);
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, result)), DU16(), p);
  } else {
#if QRD_NATIVE_F16
    const hn::Rebind<hwy::float16_t, DF> df16;
    const auto canonical = hn::BitCast(df, hn::Set(du, 0x7FC00000u));
    const auto half = hn::DemoteTo(df16, hn::IfThenElse(is_nan, canonical, v));
    hn::StoreU(hn::BitCast(DU16(), half), DU16(), p);
#else
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000u));
    const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
    const auto normal =
        hn::Sub(hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu)), odd)),
                hn::Set(du, 112u << 10));
    // Adding 0.5 leaves a multiple of 2^-24, the unit of fp16's subnormals, in the low bits.
    const auto half = hn::Set(df, 0.5f);
    const auto small =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
    const auto m = hn::BitCast(di, magnitude);
    auto result =
        hn::IfThenElse(hn::RebindMask(du, hn::Gt(hn::Set(di, 0x38800000), m)), small, normal);
    result = hn::IfThenElse(hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x477FEFFF))),
                            hn::Set(du, 0x7C00u), result);
    result = hn::Or(result, sign);
    result = hn::IfThenElse(hn::RebindMask(du, is_nan), hn::Set(du, 0x7E00u), result);
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, result)), DU16(), p);
#endif
  }
}

// Largest magnitude seen, as integers: order and comparison with kLimit are those of the floats.
HWY_INLINE VI MaxMagnitude(VI seen, VF v) {
  const DI di;
  return hn::Max(seen, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF)));
}

// One vector of the sum (or average) at element i. kWorldSize 0: world_size at run time.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
HWY_INLINE VF SumVector(const StorageOf<kDtype>* const* HWY_RESTRICT inputs, uint32_t world_size,
                        size_t i, VF divisor) {
  const uint32_t n = kWorldSize != 0 ? kWorldSize : world_size;
  VF acc = LoadWidened<kDtype>(inputs[0] + i);
  for (uint32_t r = 1; r < n; ++r) acc = hn::Add(acc, LoadWidened<kDtype>(inputs[r] + i));
  if constexpr (kAvg) acc = hn::Div(acc, divisor);
  return acc;
}

// Elements of x[0..count) that are NaN or Inf. One pass if there is none, which is what it is made
// for.
template <Dtype kDtype>
HWY_NOINLINE uint64_t CountNonFinite(const StorageOf<kDtype>* HWY_RESTRICT x, size_t count) {
  using Traits = DtypeTraits<kDtype>;
  using T = StorageOf<kDtype>;
  using S = hwy::MakeSigned<T>;
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> ds;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(ds, static_cast<S>(Traits::kMagnitudeMask));
  auto seen = hn::Zero(ds);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    seen = hn::Max(seen, hn::And(hn::BitCast(ds, hn::LoadU(d, x + i)), mask));
  }
  const bool in_bulk =
      !hn::AllFalse(ds, hn::Gt(seen, hn::Set(ds, static_cast<S>(Traits::kInfBits - 1))));
  uint64_t nonfinite = 0;
  for (size_t j = in_bulk ? 0 : i; j < count; ++j) {
    nonfinite += (x[j] & Traits::kMagnitudeMask) >= Traits::kInfBits;
  }
  return nonfinite;
}

// result[0..count) = R(sum in rank order), count a multiple of the vector. True if an element of it
// is NaN or Inf.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
HWY_INLINE bool SumVectors(const StorageOf<kDtype>* const* HWY_RESTRICT inputs, uint32_t world_size,
                           size_t first, size_t count, StorageOf<kDtype>* HWY_RESTRICT result) {
  const DF df;
  const DI di;
  const VF divisor = hn::Set(df, static_cast<float>(world_size));
  VI seen = hn::Zero(di);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    const VF v = SumVector<kDtype, kWorldSize, kAvg>(inputs, world_size, first + i, divisor);
    seen = MaxMagnitude(seen, v);
    StoreRounded<kDtype>(v, result + i);
  }
  const auto limit = hn::Set(di, static_cast<int32_t>(DtypeTraits<kDtype>::kLimit - 1));
  return !hn::AllFalse(di, hn::Gt(seen, limit));
}

// How the results of a tile are written: bit r of stream_mask is set if rank r's output bypasses
// the caches; with prefetch, what is read next is fetched while results are written, so that both
// overlap.
struct StoreMode {
  uint32_t stream_mask = 0;
  bool prefetch = false;
};

// Results are made and written in runs of this many bytes: long enough for few switches between
// many streams, short enough for reads and writes to overlap (kernels/README.md has the
// measurement).
constexpr size_t kRunBytes = 256;
constexpr size_t kLineBytes = 64;

// kRunBytes from an aligned buffer to an output; `next` is an input of the same rank.
HWY_INLINE void StoreRun(std::byte* HWY_RESTRICT to, const std::byte* HWY_RESTRICT from,
                         bool stream, bool prefetch, const std::byte* HWY_RESTRICT next) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  if (prefetch) {
    for (size_t at = 0; at < kRunBytes; at += kLineBytes) hwy::Prefetch(next + at);
  }
  const auto* source = reinterpret_cast<const uint8_t*>(from);
  auto* target = reinterpret_cast<uint8_t*>(to);
  if (stream) {
    for (size_t at = 0; at < kRunBytes; at += lanes) {
      hn::Stream(hn::LoadU(d, source + at), d, target + at);
    }
  } else {
    for (size_t at = 0; at < kRunBytes; at += lanes) {
      hn::StoreU(hn::LoadU(d, source + at), d, target + at);
    }
  }
}

// outputs[r][0..count) = R(sum in rank order), for one tile. Returns how many elements are NaN or
// Inf.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
HWY_NOINLINE uint64_t SumTile(const StorageOf<kDtype>* const* HWY_RESTRICT inputs,
                              StorageOf<kDtype>* const* HWY_RESTRICT outputs, uint32_t world_size,
                              size_t count, StoreMode mode) {
  using T = StorageOf<kDtype>;
  constexpr size_t kRun = kRunBytes / sizeof(T);
  const uint32_t n = kWorldSize != 0 ? kWorldSize : world_size;
  alignas(kLineBytes) T result[kRun];
  uint64_t nonfinite = 0;
  size_t i = 0;
  for (; i + kRun <= count; i += kRun) {
    if (SumVectors<kDtype, kWorldSize, kAvg>(inputs, world_size, i, kRun, result)) {
      nonfinite += CountNonFinite<kDtype>(result, kRun);
    }
    const bool prefetch = mode.prefetch && i + 2 * kRun <= count;
    for (uint32_t r = 0; r < n; ++r) {
      StoreRun(reinterpret_cast<std::byte*>(outputs[r] + i),
               reinterpret_cast<const std::byte*>(result), (mode.stream_mask >> r & 1) != 0,
               prefetch, reinterpret_cast<const std::byte*>(inputs[r] + i + kRun));
    }
  }
  if (i == count) return nonfinite;
  // The rest through padded copies: nothing past an input is read.
  const size_t rest = count - i;
  alignas(kLineBytes) T padded[kWorldSizeMax][kRun] = {};
  const T* rows[kWorldSizeMax] = {};
  for (uint32_t r = 0; r < n; ++r) {
    std::memcpy(padded[r], inputs[r] + i, rest * sizeof(T));
    rows[r] = padded[r];
  }
  SumVectors<kDtype, kWorldSize, kAvg>(rows, world_size, 0, kRun, result);
  for (uint32_t r = 0; r < n; ++r) std::memcpy(outputs[r] + i, result, rest * sizeof(T));
  return nonfinite + CountNonFinite<kDtype>(result, rest);
}

// Copies a result of any size to an output.
HWY_NOINLINE void StoreBlock(std::byte* HWY_RESTRICT to, const std::byte* HWY_RESTRICT from,
                             size_t bytes, bool stream) {
  size_t at = 0;
  if (stream) {
    for (; at + kRunBytes <= bytes; at += kRunBytes) {
      StoreRun(to + at, from + at, true, false, nullptr);
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
}

// fp32 scratch of a tile: room for kTileElements, aligned, so that the functions below work on
// whole vectors, also past `count`; what is there then is never used.

template <Dtype kDtype>
HWY_NOINLINE void WidenBlock(const StorageOf<kDtype>* HWY_RESTRICT x, size_t count,
                             float* HWY_RESTRICT y) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::Store(LoadWidened<kDtype>(x + i), df, y + i);
  if (i == count) return;
  HWY_ALIGN StorageOf<kDtype> padded[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(padded, x + i, (count - i) * sizeof(padded[0]));
  hn::Store(LoadWidened<kDtype>(padded), df, y + i);
}

// result = R(y); returns how many elements of it are NaN or Inf.
template <Dtype kDtype>
HWY_NOINLINE uint64_t RoundBlock(const float* HWY_RESTRICT y, size_t count,
                                 StorageOf<kDtype>* HWY_RESTRICT result) {
  const DF df;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    StoreRounded<kDtype>(hn::Load(df, y + i), result + i);
  }
  return CountNonFinite<kDtype>(result, count);
}

HWY_NOINLINE void AddTo(float* HWY_RESTRICT acc, const float* HWY_RESTRICT part, size_t count) {
  const DF df;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    hn::Store(hn::Add(hn::Load(df, acc + i), hn::Load(df, part + i)), df, acc + i);
  }
}

HWY_NOINLINE void DivideBy(float divisor, float* HWY_RESTRICT acc, size_t count) {
  const DF df;
  const VF v = hn::Set(df, divisor);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    hn::Store(hn::Div(hn::Load(df, acc + i), v), df, acc + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
