// SPDX-License-Identifier: Apache-2.0
// Elements and vectors of fp32, compiled once per instruction set (Highway's foreach_target):
// widening, rounding R(), non-finite counts. The base of all_reduce-inl.h.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_ALL_REDUCE_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_ALL_REDUCE_VECTOR_INL_H_
#undef QRD_KERNELS_ALL_REDUCE_VECTOR_INL_H_
#else
#define QRD_KERNELS_ALL_REDUCE_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
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

// kProbeScale: see SumFinite.
template <Dtype kDtype>
struct DtypeTraits;
template <>
struct DtypeTraits<Dtype::kFp16> {
  using Storage = uint16_t;
  // 2^15 becomes Inf; 65520 is the first to round to it.
  static constexpr float kProbeScale = 0x1p113f;
  static constexpr uint32_t kInfBits = 0x7C00, kMagnitudeMask = 0x7FFF;
};
template <>
struct DtypeTraits<Dtype::kBf16> {
  using Storage = uint16_t;
  static constexpr float kProbeScale = 2.0f;  // 2^127 becomes Inf
  static constexpr uint32_t kInfBits = 0x7F80, kMagnitudeMask = 0x7FFF;
};
template <>
struct DtypeTraits<Dtype::kFp32> {
  using Storage = uint32_t;
  static constexpr float kProbeScale = 0.0f;  // 0 * Inf is NaN
  static constexpr uint32_t kInfBits = 0x7F800000, kMagnitudeMask = 0x7FFFFFFF;
};
template <Dtype kDtype>
using StorageOf = typename DtypeTraits<kDtype>::Storage;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;

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
template <Dtype kDtype, bool kMayBeNaN = true>
HWY_INLINE void StoreRounded(VF v, StorageOf<kDtype>* HWY_RESTRICT p) {
  const DF df;
  const DU du;
  [[maybe_unused]] const DI di;
  // Canonical before rounding: then every conversion gives the canonical NaN of its dtype.
  if constexpr (kMayBeNaN) {
    v = hn::IfThenElse(hn::IsNaN(v), hn::BitCast(df, hn::Set(du, 0x7FC00000u)), v);
  }
  const auto bits = hn::BitCast(du, v);
  if constexpr (kDtype == Dtype::kFp32) {
    hn::StoreU(bits, du, p);
  } else if constexpr (kDtype == Dtype::kBf16) {
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, rounded)), DU16(), p);
  } else {
#if QRD_NATIVE_F16
    const hn::Rebind<hwy::float16_t, DF> df16;
    hn::StoreU(hn::BitCast(DU16(), hn::DemoteTo(df16, v)), DU16(), p);
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
    if constexpr (kMayBeNaN) {
      result = hn::IfThenElse(hn::RebindMask(du, hn::Gt(m, hn::Set(di, 0x7F800000))),
                              hn::Set(du, 0x7E00u), result);
    }
    result = hn::Or(result, sign);  // a canonical NaN is positive
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, result)), DU16(), p);
#endif
  }
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

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
