// SPDX-License-Identifier: Apache-2.0
// Vector pieces of the host all-reduce, compiled once per instruction set (Highway's
// foreach_target): sums in rank order.
//
// A result is made once, in a small buffer that stays in the L1 cache, and then handed to a sink
// (all_reduce_store-inl.h), which copies it to every rank's output or makes rows of it: each stream
// is read and written in runs, whatever the world size, and in place needs no care.
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

#include "hwy/highway.h"
#include "kernels/all_reduce_store-inl.h"
#include "kernels/all_reduce_vector-inl.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

// result[0..count) = R(sum in rank order), count a multiple of the vector. Any values.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
HWY_NOINLINE void SumAny(const StorageOf<kDtype>* const* HWY_RESTRICT inputs, uint32_t world_size,
                         size_t first, size_t count, StorageOf<kDtype>* HWY_RESTRICT result) {
  const DF df;
  const VF divisor = hn::Set(df, static_cast<float>(world_size));
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    StoreRounded<kDtype>(
        SumVector<kDtype, kWorldSize, kAvg>(inputs, world_size, first + i, divisor), result + i);
  }
}

#if HWY_TARGET != HWY_SCALAR  // there a vector has no halves
// Two vectors of bf16 sums at once, of the even and the odd elements: halves of 32-bit lanes need
// no shuffles to widen and to narrow.
template <uint32_t kWorldSize, bool kAvg>
HWY_INLINE void SumBf16Pair(const uint16_t* const* HWY_RESTRICT inputs, uint32_t world_size,
                            size_t i, VF divisor, VF& even, VF& odd) {
  const DF df;
  const DU du;
  const hn::Repartition<uint16_t, DU> du16;
  const auto high = hn::Set(du, 0xFFFF0000u);
  const uint32_t n = kWorldSize != 0 ? kWorldSize : world_size;
  for (uint32_t r = 0; r < n; ++r) {
    const auto both = hn::BitCast(du, hn::LoadU(du16, inputs[r] + i));
    const VF rank_even = hn::BitCast(df, hn::ShiftLeft<16>(both));
    const VF rank_odd = hn::BitCast(df, hn::And(both, high));
    even = r == 0 ? rank_even : hn::Add(even, rank_even);
    odd = r == 0 ? rank_odd : hn::Add(odd, rank_odd);
  }
  if constexpr (kAvg) {
    even = hn::Div(even, divisor);
    odd = hn::Div(odd, divisor);
  }
}

HWY_INLINE void StoreFiniteBf16Pair(VF even, VF odd, uint16_t* HWY_RESTRICT p) {
  const DU du;
  const hn::Repartition<uint16_t, DU> du16;
  const auto rounded = [&](VF v) HWY_ATTR {
    const auto bits = hn::BitCast(du, v);
    const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), last);
  };
  const auto low = hn::ShiftRight<16>(rounded(even));
  const auto high = hn::And(rounded(odd), hn::Set(du, 0xFFFF0000u));
  hn::StoreU(hn::BitCast(du16, hn::Or(low, high)), du16, p);
}

#endif

// The same for values that round to finite ones, which takes fewer operations. Returns false if
// some might not; then `result` is not valid. The probe is a running sum of scaled values: Inf and
// NaN stay in it, and the scale turns whatever rounds to Inf (and some large values before it) into
// Inf.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
HWY_INLINE bool SumFinite(const StorageOf<kDtype>* const* HWY_RESTRICT inputs, uint32_t world_size,
                          size_t first, size_t count, StorageOf<kDtype>* HWY_RESTRICT result) {
  const DF df;
  const VF divisor = hn::Set(df, static_cast<float>(world_size));
  const VF scale = hn::Set(df, DtypeTraits<kDtype>::kProbeScale);
  VF probe = hn::Zero(df);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kDtype == Dtype::kBf16) {
    VF odd_probe = hn::Zero(df);
    for (size_t i = 0; i < count; i += 2 * hn::Lanes(df)) {
      VF even = hn::Zero(df), odd = hn::Zero(df);
      SumBf16Pair<kWorldSize, kAvg>(inputs, world_size, first + i, divisor, even, odd);
      probe = hn::MulAdd(even, scale, probe);
      odd_probe = hn::MulAdd(odd, scale, odd_probe);
      StoreFiniteBf16Pair(even, odd, result + i);
    }
    return hn::AllTrue(df, hn::And(hn::IsFinite(probe), hn::IsFinite(odd_probe)));
  }
#endif
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    const VF v = SumVector<kDtype, kWorldSize, kAvg>(inputs, world_size, first + i, divisor);
    probe = hn::MulAdd(v, scale, probe);
    StoreRounded<kDtype, /*kMayBeNaN=*/false>(v, result + i);
  }
  return hn::AllTrue(df, hn::IsFinite(probe));
}

// Elements [first, first + count) of R(sum in rank order) into the sink. Returns how many are NaN
// or Inf. inputs[r] is rank r's whole tensor.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg, typename Sink>
HWY_NOINLINE uint64_t SumBlock(const StorageOf<kDtype>* const* HWY_RESTRICT inputs,
                               uint32_t world_size, uint64_t first, size_t count, Sink& sink) {
  using T = StorageOf<kDtype>;
  constexpr size_t kRun = kRunBytes / sizeof(T);
  const uint32_t n = kWorldSize != 0 ? kWorldSize : world_size;
  alignas(kLineBytes) T result[kRun];
  uint64_t nonfinite = 0;
  const uint64_t last = first + count;
  uint64_t i = first;
  for (; i + kRun <= last; i += kRun) {
    if (!SumFinite<kDtype, kWorldSize, kAvg>(inputs, n, i, kRun, result)) {
      SumAny<kDtype, kWorldSize, kAvg>(inputs, n, i, kRun, result);
      nonfinite += CountNonFinite<kDtype>(result, kRun);
    }
    sink.template TakeRun<kWorldSize>(i, result, i + 2 * kRun <= last);
  }
  if (i == last) return nonfinite;
  // The rest through padded copies: nothing past an input is read.
  const size_t rest = last - i;
  alignas(kLineBytes) T padded[kWorldSizeMax][kRun] = {};
  const T* rows[kWorldSizeMax] = {};
  for (uint32_t r = 0; r < n; ++r) {
    std::memcpy(padded[r], inputs[r] + i, rest * sizeof(T));
    rows[r] = padded[r];
  }
  SumAny<kDtype, kWorldSize, kAvg>(rows, n, 0, kRun, result);
  sink.TakeFrom(i, rest, result);
  return nonfinite + CountNonFinite<kDtype>(result, rest);
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
