// SPDX-License-Identifier: Apache-2.0
// One row of residual + RMSNorm (+ FP8), compiled once per instruction set (Highway's
// foreach_target): the steps of the contract of epilogues on scratch that holds a row. The fused
// operation and the separate steps are made of these functions, so they give the same bits.
//
// Rounding: each multiplication, addition, division and square root is one IEEE operation; the only
// order that matters is that of the sum of squares.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_RMS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_RMS_NORM_INL_H_
#undef QRD_KERNELS_RMS_NORM_INL_H_
#else
#define QRD_KERNELS_RMS_NORM_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/all_reduce_vector-inl.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of squares that are added before a partial sum goes to memory.
constexpr int kTreeLevels = 4;
constexpr size_t kTreeVectors = size_t{1} << kTreeLevels;
// Elements past a row that scratch has room for: whole vectors of the tree, of any instruction set.
constexpr size_t kRowSlack = kTreeVectors * HWY_MAX_BYTES / sizeof(float);
constexpr size_t kScalesMax = kHiddenMax / kScaleGroup;

// A row and what is derived from it. About 150 KiB, on the stack of the thread that runs.
struct RowScratch {
  alignas(64) float gain[kHiddenMax + kRowSlack];
  alignas(64) uint16_t h[kHiddenMax + kRowSlack];
  alignas(64) uint16_t y[kHiddenMax + kRowSlack];
  alignas(64) uint8_t codes[kHiddenMax + kRowSlack];
  alignas(64) float partial[(kHiddenMax + kRowSlack) / kTreeVectors + kRowSlack];
  float scales[kScalesMax];
};

// Step 5: the gains of a weight, with zeros in the slack that vectors reach.
template <Dtype kWeight>
HWY_NOINLINE void MakeGains(const StorageOf<kWeight>* HWY_RESTRICT weight, size_t hidden,
                            bool gemma, float* HWY_RESTRICT gain) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  const VF one = hn::Set(df, 1.0f);
  const auto store = [&](const StorageOf<kWeight>* from, size_t i) HWY_ATTR {
    const VF w = LoadWidened<kWeight>(from);
    hn::Store(gemma ? hn::Add(one, w) : w, df, gain + i);
  };
  size_t i = 0;
  for (; i + lanes <= hidden; i += lanes) store(weight + i, i);
  if (i == hidden) return;
  HWY_ALIGN StorageOf<kWeight> padded[HWY_MAX_BYTES / sizeof(float)] = {};
  std::memcpy(padded, weight + i, (hidden - i) * sizeof(padded[0]));
  store(padded, i);
}
inline void MakeGainsOf(Dtype weight_dtype, const void* weight, size_t hidden, bool gemma,
                        float* gain) {
  switch (weight_dtype) {
    case Dtype::kFp16:
      return MakeGains<Dtype::kFp16>(static_cast<const uint16_t*>(weight), hidden, gemma, gain);
    case Dtype::kBf16:
      return MakeGains<Dtype::kBf16>(static_cast<const uint16_t*>(weight), hidden, gemma, gain);
    case Dtype::kFp32:
      return MakeGains<Dtype::kFp32>(static_cast<const uint32_t*>(weight), hidden, gemma, gain);
  }
}

// Zeros from `count` to where the tree of squares ends.
HWY_INLINE void PadRow(size_t count, uint16_t* HWY_RESTRICT row) {
  const size_t block = kTreeVectors * hn::Lanes(DF());
  std::memset(row + count, 0, ((count + block - 1) / block * block - count) * sizeof(row[0]));
}

// Step 2: h = R(a + residual), padded. residual null: +0.
template <Dtype kDtype>
HWY_NOINLINE void AddRow(const uint16_t* HWY_RESTRICT a, const uint16_t* HWY_RESTRICT residual,
                         size_t count, uint16_t* HWY_RESTRICT h) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  if (residual == nullptr) {
    for (; i + lanes <= count; i += lanes) {
      StoreRounded<kDtype>(hn::Add(LoadWidened<kDtype>(a + i), hn::Zero(df)), h + i);
    }
  } else {
    for (; i + lanes <= count; i += lanes) {
      StoreRounded<kDtype>(hn::Add(LoadWidened<kDtype>(a + i), LoadWidened<kDtype>(residual + i)),
                           h + i);
    }
  }
  if (i != count) {
    HWY_ALIGN uint16_t padded[2][HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(padded[0], a + i, (count - i) * sizeof(a[0]));
    if (residual != nullptr) std::memcpy(padded[1], residual + i, (count - i) * sizeof(a[0]));
    StoreRounded<kDtype>(hn::Add(LoadWidened<kDtype>(padded[0]), LoadWidened<kDtype>(padded[1])),
                         h + i);
  }
  PadRow(count, h);
}

// One level of the tree: the sums of neighbours of two neighbouring vectors, in order.
HWY_INLINE VF SumNeighbours(VF low, VF high) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Add(low, high);
#else
  const DF df;
  return hn::Add(hn::ConcatEven(df, high, low), hn::ConcatOdd(df, high, low));
#endif
}

// Sums of 2^kLevels neighbours each: the squares of h[0 .. 2^kLevels vectors).
template <Dtype kDtype, int kLevels>
HWY_INLINE VF SquaresTree(const uint16_t* HWY_RESTRICT h) {
  if constexpr (kLevels == 0) {
    const VF v = LoadWidened<kDtype>(h);
    return hn::Mul(v, v);
  } else {
    const size_t half = hn::Lanes(DF()) << (kLevels - 1);
    return SumNeighbours(SquaresTree<kDtype, kLevels - 1>(h),
                         SquaresTree<kDtype, kLevels - 1>(h + half));
  }
}

// Step 3, of a row that AddRow made (or PadRow padded). +0 in the place of what is missing changes
// no sum of squares.
template <Dtype kDtype>
HWY_NOINLINE float SumOfSquares(const uint16_t* HWY_RESTRICT h, size_t count,
                                float* HWY_RESTRICT partial) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t sums = 0;
  for (size_t i = 0; i < count; i += kTreeVectors * lanes, sums += lanes) {
    hn::Store(SquaresTree<kDtype, kTreeLevels>(h + i), df, partial + sums);
  }
  while (sums > lanes) {
    if (sums % (2 * lanes) != 0) {
      hn::Store(hn::Zero(df), df, partial + sums);
      sums += lanes;
    }
    for (size_t i = 0; i < sums; i += 2 * lanes) {
      hn::Store(SumNeighbours(hn::Load(df, partial + i), hn::Load(df, partial + i + lanes)), df,
                partial + i / 2);
    }
    sums /= 2;
  }
  for (; sums > 1; sums /= 2) {
    for (size_t i = 0; i < sums / 2; ++i) partial[i] = partial[2 * i] + partial[2 * i + 1];
  }
  return partial[0];
}

// Step 4.
HWY_INLINE float Rstd(float sum_of_squares, size_t hidden, float eps) {
  const float mean = sum_of_squares / static_cast<float>(hidden);
  return 1.0f / std::sqrt(mean + eps);
}

// Step 6: y = R((h * rstd) * gain), zeros in the slack that maxima reach.
template <Dtype kDtype>
HWY_NOINLINE void NormalizeRow(const uint16_t* HWY_RESTRICT h, float rstd,
                               const float* HWY_RESTRICT gain, size_t count,
                               uint16_t* HWY_RESTRICT y) {
  const DF df;
  const VF r = hn::Set(df, rstd);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    StoreRounded<kDtype>(hn::Mul(hn::Mul(LoadWidened<kDtype>(h + i), r), hn::Load(df, gain + i)),
                         y + i);
  }
  std::memset(y + count, 0, HWY_MAX_BYTES);
}

// Step 7 as integers: the largest magnitude's bits; Inf and NaN are above every number.
HWY_INLINE uint16_t LargestMagnitude(const uint16_t* HWY_RESTRICT y, size_t count) {
  const hn::ScalableTag<int16_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, int16_t{0x7FFF});
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const auto bits = hn::LoadU(d, reinterpret_cast<const int16_t*>(y + i));
    largest = hn::Max(largest, hn::And(bits, mask));
  }
  HWY_ALIGN int16_t seen[HWY_MAX_BYTES / sizeof(int16_t)];
  hn::Store(largest, d, seen);
  return static_cast<uint16_t>(*std::max_element(seen, seen + lanes));
}

// Step 9's conversion: codes of finite values, nearest even, saturating.
template <Quant kQuant>
HWY_INLINE void StoreFp8(VF v, uint8_t* HWY_RESTRICT codes) {
  constexpr int kBias = kQuant == Quant::kE4m3fn ? 7 : 8;
  const DF df;
  const DU du;
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80u));
  const VF magnitude = hn::Min(hn::Abs(v), hn::Set(df, QuantMax(kQuant)));
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto normal =
      hn::Sub(hn::ShiftRight<20>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFFu)), odd)),
              hn::Set(du, static_cast<uint32_t>(127 - kBias) << 3));
  // The last bit of this number is worth the format's smallest step: the sum counts steps.
  const VF steps = hn::Set(df, kQuant == Quant::kE4m3fn ? 0x1p14f : 0x1p13f);
  const auto small = hn::Sub(hn::BitCast(du, hn::Add(magnitude, steps)), hn::BitCast(du, steps));
  const VF lowest = hn::Set(df, kQuant == Quant::kE4m3fn ? 0x1p-6f : 0x1p-7f);
  auto code = hn::IfThenElse(hn::RebindMask(du, hn::Lt(magnitude, lowest)), small, normal);
  if constexpr (kQuant == Quant::kE4m3fn) {
    code = hn::Or(code, sign);
  } else {  // without a negative zero
    code = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(du)), hn::Or(code, sign));
  }
  const hn::Rebind<uint8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(DI(), code)), d8, codes);
}

// Steps 7 to 9 of the values that share a scale. y has NormalizeRow's slack; so must codes.
template <Dtype kDtype, Quant kQuant>
HWY_NOINLINE float QuantizeGroup(const uint16_t* HWY_RESTRICT y, size_t count, float divisor,
                                 uint8_t* HWY_RESTRICT codes) {
  const uint16_t amax_bits = LargestMagnitude(y, count);
  if (amax_bits >= DtypeTraits<kDtype>::kInfBits) {
    std::memset(codes, kQuant == Quant::kE4m3fn ? 0x7F : 0x80, count);
    return std::bit_cast<float>(0x7FC00000u);
  }
  const DF df;
  HWY_ALIGN uint16_t amax_only[HWY_MAX_BYTES / sizeof(float)] = {amax_bits};
  const float amax = hn::GetLane(LoadWidened<kDtype>(amax_only));
  const float scale = amax == 0 ? 1.0f : std::max(amax / divisor, 0x1p-126f);
  const VF by = hn::Set(df, scale);
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    StoreFp8<kQuant>(hn::Div(LoadWidened<kDtype>(y + i), by), codes + i);
  }
  return scale;
}

// Steps 7 to 9 of a row in scratch: s.y to s.codes and s.scales. scale_group 0: one scale.
template <Dtype kDtype>
HWY_NOINLINE void QuantizeRow(Quant quant, size_t hidden, size_t scale_group, float divisor,
                              RowScratch& s) {
  const size_t step = scale_group == 0 ? hidden : scale_group;
  float* scale = s.scales;
  for (size_t i = 0; i < hidden; i += step) {
    const size_t count = std::min(step, hidden - i);
    *scale++ = quant == Quant::kE4m3fn
                   ? QuantizeGroup<kDtype, Quant::kE4m3fn>(s.y + i, count, divisor, s.codes + i)
                   : QuantizeGroup<kDtype, Quant::kE4m3fnuz>(s.y + i, count, divisor, s.codes + i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
