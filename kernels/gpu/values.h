// SPDX-License-Identifier: Apache-2.0
// Octets: 8 neighbouring elements of a tensor in the registers of one thread, 16 bytes of a 16-bit
// dtype or 32 of fp32. Loading, storing, widening and the final rounding R() of the wire format.
//
// Thread safety: device functions; a thread touches only its own octet.
#pragma once

#include "kernels/codec_table.h"
#include "kernels/gpu/device.h"
#include "kernels/types.h"

namespace qrd::gpu {

inline constexpr uint32_t kOctet = 8;

template <Dtype kDtype>
struct DtypeOnDevice {
  static constexpr bool kIs16 = kDtype != Dtype::kFp32;
  static constexpr uint32_t kBytes = kIs16 ? 2 : 4;
  static constexpr uint32_t kWords = kOctet * kBytes / 4;
  static constexpr uint32_t kLimit = SpecOf(kDtype).limit;
  static constexpr uint32_t kMaxExponent = SpecOf(kDtype).max_exponent;
  static constexpr bool kFp16Scale = SpecOf(kDtype).fp16_scale;
  static constexpr uint32_t kScaleNan = SpecOf(kDtype).scale_nan;
  static constexpr uint32_t kInf16 = kDtype == Dtype::kFp16 ? 0x7C00 : 0x7F80;
  static constexpr uint32_t kNan16 = kDtype == Dtype::kFp16 ? 0x7E00 : 0x7FC0;
};

// Elements as they lie in memory.
template <Dtype kDtype>
struct Octet {
  uint32_t w[DtypeOnDevice<kDtype>::kWords];
};

// Elements as fp32.
struct Floats {
  float v[kOctet];
};

// 16 bytes at a time; `element` is a multiple of 8 and `base` aligned to 16.
template <Dtype kDtype>
QRD_DEVICE Octet<kDtype> LoadOctet(const void* base, uint64_t element) {
  const auto* p = static_cast<const uint8_t*>(base) + element * DtypeOnDevice<kDtype>::kBytes;
  Octet<kDtype> octet;
#pragma unroll
  for (uint32_t i = 0; i < DtypeOnDevice<kDtype>::kWords / 4; ++i) {
    const Vec16 v = LoadOnce16(p + 16 * i);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) octet.w[4 * i + j] = v.w[j];
  }
  return octet;
}
template <Dtype kDtype>
QRD_DEVICE void StoreOctet(void* base, uint64_t element, const Octet<kDtype>& octet) {
  auto* p = static_cast<uint8_t*>(base) + element * DtypeOnDevice<kDtype>::kBytes;
#pragma unroll
  for (uint32_t i = 0; i < DtypeOnDevice<kDtype>::kWords / 4; ++i) {
    StoreOnce16(p + 16 * i,
                {{octet.w[4 * i], octet.w[4 * i + 1], octet.w[4 * i + 2], octet.w[4 * i + 3]}});
  }
}

// Of a 16-bit dtype, to be read again soon.
template <Dtype kDtype>
QRD_DEVICE void StoreOctetKept(void* base, uint64_t element, const Octet<kDtype>& octet) {
  static_assert(DtypeOnDevice<kDtype>::kIs16);
  Store16(static_cast<uint8_t*>(base) + element * 2,
          {{octet.w[0], octet.w[1], octet.w[2], octet.w[3]}});
}

// The same by a whole wave whose lanes hold neighbouring octets: of fp32, pairs of lanes trade
// halves, so that every store of the wave is one run of bytes. A wave function.
template <Dtype kDtype>
QRD_DEVICE void StoreOctetOfWave(void* base, uint64_t element, const Octet<kDtype>& octet) {
  if constexpr (DtypeOnDevice<kDtype>::kIs16) {
    StoreOctet<kDtype>(base, element, octet);
  } else {
    const bool is_odd = LaneIndex() % 2 != 0;
    Vec16 even, odd;  // this lane's part of the two lanes' octets
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t received = LaneXor<1>(is_odd ? octet.w[j] : octet.w[4 + j]);
      even.w[j] = is_odd ? received : octet.w[j];
      odd.w[j] = is_odd ? octet.w[4 + j] : received;
    }
    auto* p = static_cast<uint8_t*>(base) + (element - (is_odd ? kOctet : 0)) * 4 + is_odd * 16;
    StoreOnce16(p, even);
    StoreOnce16(p + 32, odd);
  }
}

// Element by element, for the ends of tensors and odd addresses: what lies at `end` or after it is
// +0 and is not touched. kUnit: integers that `base` is aligned to, the element's or bytes.
template <Dtype kDtype, typename kUnit>
QRD_DEVICE uint32_t LoadElement(const void* base, uint64_t element) {
  constexpr uint32_t kUnits = DtypeOnDevice<kDtype>::kBytes / sizeof(kUnit);
  const auto* p = static_cast<const kUnit*>(base) + element * kUnits;
  uint32_t bits = 0;
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) bits |= uint32_t{p[i]} << 8 * sizeof(kUnit) * i % 32;
  return bits;
}
template <Dtype kDtype, typename kUnit>
QRD_DEVICE void StoreElement(void* base, uint64_t element, uint32_t bits) {
  constexpr uint32_t kUnits = DtypeOnDevice<kDtype>::kBytes / sizeof(kUnit);
  auto* p = static_cast<kUnit*>(base) + element * kUnits;
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i)
    p[i] = static_cast<kUnit>(bits >> 8 * sizeof(kUnit) * i % 32);
}
template <Dtype kDtype>
struct ElementBits {
  using Type = uint16_t;
};
template <>
struct ElementBits<Dtype::kFp32> {
  using Type = uint32_t;
};

template <Dtype kDtype, typename kUnit = typename ElementBits<kDtype>::Type>
QRD_DEVICE Octet<kDtype> LoadOctetSlow(const void* base, uint64_t element, uint64_t end) {
  Octet<kDtype> octet;
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) {
    const uint32_t bits = element + j < end ? LoadElement<kDtype, kUnit>(base, element + j) : 0;
    if constexpr (DtypeOnDevice<kDtype>::kIs16) {
      octet.w[j / 2] = j % 2 == 0 ? bits : octet.w[j / 2] | bits << 16;
    } else {
      octet.w[j] = bits;
    }
  }
  return octet;
}
template <Dtype kDtype, typename kUnit = typename ElementBits<kDtype>::Type>
QRD_DEVICE void StoreOctetSlow(void* base, uint64_t element, uint64_t end,
                               const Octet<kDtype>& octet) {
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) {
    if (element + j >= end) continue;
    uint32_t bits;
    if constexpr (DtypeOnDevice<kDtype>::kIs16) {
      bits = octet.w[j / 2] >> 16 * (j % 2);
    } else {
      bits = octet.w[j];
    }
    StoreElement<kDtype, kUnit>(base, element + j, bits);
  }
}

template <Dtype kDtype>
QRD_DEVICE Floats Widen(const Octet<kDtype>& octet) {
  Floats x;
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) {
    if constexpr (kDtype == Dtype::kFp32) {
      x.v[j] = Float(octet.w[j]);
    } else if constexpr (kDtype == Dtype::kBf16) {
      x.v[j] = Float(j % 2 == 0 ? octet.w[j / 2] << 16 : octet.w[j / 2] & 0xFFFF0000u);
    } else {
      x.v[j] = j % 2 == 0 ? Fp16Low(octet.w[j / 2]) : Fp16High(octet.w[j / 2]);
    }
  }
  return x;
}

// Makes every NaN canonical; returns how many elements are NaN or Inf. Rare.
template <Dtype kDtype>
QRD_DEVICE uint32_t CanonicalizeOctet(Octet<kDtype>& octet) {
  using D = DtypeOnDevice<kDtype>;
  uint32_t non_finite = 0;
#pragma unroll
  for (uint32_t i = 0; i < D::kWords; ++i) {
    if constexpr (D::kIs16) {
      const uint32_t low = octet.w[i] & 0xFFFF, high = octet.w[i] >> 16;
      non_finite += ((low & 0x7FFF) >= D::kInf16) + ((high & 0x7FFF) >= D::kInf16);
      octet.w[i] = ((low & 0x7FFF) > D::kInf16 ? D::kNan16 : low) |
                   ((high & 0x7FFF) > D::kInf16 ? D::kNan16 : high) << 16;
    } else {
      const uint32_t magnitude = octet.w[i] & kMagnitudeMask;
      non_finite += magnitude >= 0x7F800000;
      if (magnitude > 0x7F800000) octet.w[i] = kCanonicalNanBits;
    }
  }
  return non_finite;
}

// fp32 to the dtype: nearest even, overflow to Inf; a NaN stays a NaN of any payload.
template <Dtype kDtype>
QRD_DEVICE Octet<kDtype> RoundPlain(const Floats& y) {
  Octet<kDtype> octet;
#pragma unroll
  for (uint32_t i = 0; i < DtypeOnDevice<kDtype>::kWords; ++i) {
    if constexpr (kDtype == Dtype::kFp16) {
      octet.w[i] = RoundPairFp16(y.v[2 * i], y.v[2 * i + 1]);
    } else if constexpr (kDtype == Dtype::kBf16) {
      octet.w[i] = RoundPairBf16(y.v[2 * i], y.v[2 * i + 1]);
    } else {
      octet.w[i] = Bits(y.v[i]);
    }
  }
  return octet;
}

// R() of values that can only be NaN if `may_be_nan`. Adds those of them that are NaN or Inf in the
// dtype to *non_finite.
template <Dtype kDtype>
QRD_DEVICE Octet<kDtype> RoundDecoded(const Floats& y, bool may_be_nan, uint32_t* non_finite) {
  Octet<kDtype> octet = RoundPlain<kDtype>(y);
  if (may_be_nan) *non_finite += CanonicalizeOctet<kDtype>(octet);
  return octet;
}

// R(): nearest even, overflow to Inf, NaN canonical. Adds the elements that are NaN or Inf in the
// dtype to *non_finite.
template <Dtype kDtype>
QRD_DEVICE Octet<kDtype> RoundOctet(const Floats& y, uint32_t* non_finite) {
  using D = DtypeOnDevice<kDtype>;
  Octet<kDtype> octet = RoundPlain<kDtype>(y);
  uint32_t top = 0;
#pragma unroll
  for (uint32_t i = 0; i < D::kWords; ++i) {
    top = D::kIs16 ? MaxS16x2(top, octet.w[i] & 0x7FFF7FFFu)
                   : MaxU32(top, octet.w[i] & kMagnitudeMask);
  }
  const bool rare = D::kIs16 ? MaxU32(top & 0xFFFF, top >> 16) >= D::kInf16 : top >= 0x7F800000;
  if (rare) *non_finite += CanonicalizeOctet<kDtype>(octet);
  return octet;
}

// R(a + b).
template <Dtype kDtype>
QRD_DEVICE Octet<kDtype> AddOctets(const Octet<kDtype>& a, const Octet<kDtype>& b) {
  Floats sum = Widen<kDtype>(a);
  const Floats y = Widen<kDtype>(b);
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) sum.v[j] = sum.v[j] + y.v[j];
  uint32_t ignored = 0;
  return RoundOctet<kDtype>(sum, &ignored);
}

}  // namespace qrd::gpu
