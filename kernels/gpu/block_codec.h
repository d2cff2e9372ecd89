// SPDX-License-Identifier: Apache-2.0
// The int and fp codecs (wire format, section 4) on the device. A thread holds an octet, four
// neighbouring lanes a block of 32 elements; all lanes of the wave take part. The same bytes as
// kernels/reference.cc.
//
// Thread safety: wave functions on registers.
#pragma once

#include "kernels/codec_table.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

// What an octet has in the data planes: plane 0 in low (and high, of 8-bit codes), plane 1 in
// second.
struct Planes {
  uint32_t low, high, second;
};

// Codes of an octet as four words: element j in the low half of word j, element j + 4 in the high.
struct CodePairs {
  uint32_t w[4];
};

// Bits [kShift, kShift + kWidth) of every code, in element order; kWidth 1, 2 or 4.
template <uint32_t kWidth, uint32_t kShift>
QRD_DEVICE uint32_t PackPlane(const CodePairs& codes) {
  constexpr uint32_t kMask = (((1u << kWidth) - 1) << kShift) * 0x00010001u;
  uint32_t halves = codes.w[0] & kMask;  // elements 0 to 3 below, 4 to 7 above
#pragma unroll
  for (uint32_t j = 1; j < 4; ++j) halves |= (codes.w[j] & kMask) << kWidth * j;
  halves >>= kShift;
  if constexpr (kWidth == 4) {
    return halves;
  } else {
    return (halves | halves >> (16 - 4 * kWidth)) & ((1u << 8 * kWidth) - 1);
  }
}

// Spreads 8 fields of 2 bits to nibbles.
QRD_DEVICE uint32_t SpreadPairsToNibbles(uint32_t v) {
  v = (v | v << 8) & 0x00FF00FFu;
  v = (v | v << 4) & 0x0F0F0F0Fu;
  return (v | v << 2) & 0x33333333u;
}
// Spreads 8 bits to pairs.
QRD_DEVICE uint32_t SpreadBitsToPairs(uint32_t v) {
  v = (v | v << 4) & 0x0F0Fu;
  v = (v | v << 2) & 0x3333u;
  return (v | v << 1) & 0x5555u;
}
// Spreads 8 bits to nibbles.
QRD_DEVICE uint32_t SpreadBitsToNibbles(uint32_t v) {
  v = (v | v << 12) & 0x000F000Fu;
  v = (v | v << 6) & 0x03030303u;
  return (v | v << 3) & 0x11111111u;
}

template <Codec kCodec, Dtype kDtype>
struct BlockCodec {
  using D = DtypeOnDevice<kDtype>;
  static constexpr CodecKind kKind = SpecOf(kCodec).kind;
  static constexpr uint32_t kGroupLanes = 4;
  static constexpr uint32_t kWidth0 = SpecOf(kCodec).plane_bits[0];
  static constexpr uint32_t kWidth1 = SpecOf(kCodec).plane_bits[1];
  static constexpr uint32_t kMetaBytes = 2;
  static constexpr float kTop = SpecOf(kCodec).top;
  static constexpr uint32_t kLevels = static_cast<uint32_t>(kTop);  // L of the int codecs
  static constexpr float kReciprocal =
      SpecOf(kCodec).reciprocal < 0 ? -SpecOf(kCodec).reciprocal : SpecOf(kCodec).reciprocal;
  static constexpr uint32_t kScaleMax = ScaleMax(SpecOf(kCodec), kDtype);

  static constexpr uint32_t kScaleInf = D::kFp16Scale ? 0x7C00 : 0x7F80;

  // Magnitude bits (fp32) of the largest and of the smallest element of the block, 0 if there is
  // none of the sign. fp codecs: the largest magnitude in high.
  struct Extremes {
    uint32_t high, low;
  };

  static QRD_DEVICE Extremes FindExtremes(const Octet<kDtype>& x) requires(D::kIs16) {
    uint32_t pair;
    if constexpr (kKind == CodecKind::kInt) {
      // As signed integers, positive floats are in order and above all negative ones; with the sign
      // bit turned over, negative ones are in order of magnitude and above all positive ones.
      constexpr uint32_t kSigns = 0x80008000u;
      const uint32_t high = MaxS16x2(MaxS16x2(x.w[0], x.w[1]), MaxS16x2(x.w[2], x.w[3]));
      const uint32_t low = MaxU16x2(MaxU16x2(x.w[0], x.w[1]), MaxU16x2(x.w[2], x.w[3])) ^ kSigns;
      pair = MaxS16x2(MaxS16x2(PackLow16(high, low), PackHigh16(high, low)), 0);
      pair = GroupMaxS16x2<kGroupLanes>(pair);
    } else {
      constexpr uint32_t kMagnitudes = 0x7FFF7FFFu;
      pair = MaxS16x2(MaxS16x2(x.w[0] & kMagnitudes, x.w[1] & kMagnitudes),
                      MaxS16x2(x.w[2] & kMagnitudes, x.w[3] & kMagnitudes));
      pair = GroupMaxS16x2<kGroupLanes>(pair);
      pair = MaxU32(pair & 0xFFFF, pair >> 16);
    }
    if constexpr (kDtype == Dtype::kFp16) return {Bits(Fp16Low(pair)), Bits(Fp16High(pair))};
    return {pair << 16, pair & 0xFFFF0000u};
  }

  static QRD_DEVICE Extremes FindExtremes(const Floats& x) {
    if constexpr (kKind == CodecKind::kInt) {
      int32_t high = 0;
      uint32_t low = 0x80000000u;
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) {
        const uint32_t bits = Bits(x.v[j]);
        const auto value = static_cast<int32_t>(bits);
        high = value > high ? value : high;
        low = MaxU32(low, bits);
      }
      return {GroupMaxU32<kGroupLanes>(static_cast<uint32_t>(high)),
              GroupMaxU32<kGroupLanes>(low) ^ 0x80000000u};
    } else {
      uint32_t top = 0;
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) top = MaxU32(top, Bits(x.v[j]) & kMagnitudeMask);
      return {GroupMaxU32<kGroupLanes>(top), 0};
    }
  }

  static QRD_DEVICE float WidenScale(uint32_t bits) {
    return D::kFp16Scale ? Fp16Low(bits) : Float(bits << 16);
  }

  // Section 4.1.
  struct Scale {
    uint32_t bits;
    float inverse;
    bool has_data;
  };
  static QRD_DEVICE Scale MakeScale(const Extremes& extremes) {
    const uint32_t top = MaxU32(extremes.high, extremes.low);
    const bool in_range = top < D::kLimit;
    const float exact = Float(top) * kReciprocal;
    uint32_t bits = (D::kFp16Scale ? RoundPairFp16(exact, 0) : RoundPairBf16(exact, 0)) & 0xFFFF;
    bits = MinU32(bits, kScaleMax);
    Scale scale;
    scale.has_data = in_range && top >= kFloorBits && bits != 0;
    // The scale of an int codec has the sign opposite to the extreme's; the negative wins a tie.
    if (kKind == CodecKind::kInt && extremes.low < extremes.high) bits |= 0x8000;
    scale.inverse = Reciprocal(WidenScale(scale.has_data ? bits : D::kFp16Scale ? 0x3C00 : 0x3F80));
    scale.bits = scale.has_data ? bits : in_range ? 0 : D::kScaleNan;
    return scale;
  }

  static QRD_DEVICE uint32_t SignOf(float v) { return Bits(v) >> 31; }

  // Code of v = x / scale, in the low 16 bits as a signed number before clamping.
  static QRD_DEVICE uint32_t CodeOf(float v) {
    if constexpr (kKind == CodecKind::kInt) {
      // The sum rounds to an integer; L is even, so ties still go to even q.
      return Bits(v + (0x1.8p23f + kTop));
    } else {
      // E2M1: three straight pieces, the least of which counts; each sum rounds to an integer.
      const float a = Abs(v);
      const uint32_t fine = Bits(Fma(a, 2.0f, 0x1p23f));
      const uint32_t middle = Bits(a + (0x1p23f + 2));
      const uint32_t coarse = Bits(Fma(a, 0.5f, 0x1p23f + 4));
      return MinU32(MinU32(fine, middle), MinU32(coarse, 0x4B000007u));
    }
  }

  static QRD_DEVICE uint32_t CodeE4m3(float v) {
    const float a = Abs(v) > kTop ? kTop : Abs(v);
    const uint32_t b = Bits(a);
    const uint32_t code =
        a >= 0x1p-6f ? ((b + 0x7FFFF + (b >> 20 & 1)) >> 20) - 960 : Bits(a + 16384.0f) & 15;
    return code | SignOf(v) << 7;
  }

  static QRD_DEVICE Planes EncodeFp8(const Floats& v) {
#if defined(QRD_HAS_E4M3_CONVERT)
    return {EncodeE4m3Pair(v.v[0], v.v[1]) | EncodeE4m3Pair(v.v[2], v.v[3]) << 16,
            EncodeE4m3Pair(v.v[4], v.v[5]) | EncodeE4m3Pair(v.v[6], v.v[7]) << 16, 0};
#else
    Planes planes = {0, 0, 0};
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      planes.low |= CodeE4m3(v.v[j]) << 8 * j;
      planes.high |= CodeE4m3(v.v[j + 4]) << 8 * j;
    }
    return planes;
#endif
  }

#if defined(QRD_HAS_E2M1_CONVERT)
  static QRD_DEVICE Planes EncodeFp4(const Floats& v) {
    uint32_t codes = PutE2m1Pair<0>(0, v.v[0], v.v[1]);
    codes = PutE2m1Pair<1>(codes, v.v[2], v.v[3]);
    codes = PutE2m1Pair<2>(codes, v.v[4], v.v[5]);
    return {PutE2m1Pair<3>(codes, v.v[6], v.v[7]), 0, 0};
  }
  static QRD_DEVICE void DecodeFp4(uint32_t codes, float scale, Floats& y) {
    GetE2m1Pair<0>(codes, y.v);
    GetE2m1Pair<1>(codes, y.v + 2);
    GetE2m1Pair<2>(codes, y.v + 4);
    GetE2m1Pair<3>(codes, y.v + 6);
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) y.v[j] *= scale;
  }
#else
  static QRD_DEVICE Planes EncodeFp4(const Floats& v) { return EncodeCodes(v); }
  static QRD_DEVICE void DecodeFp4(uint32_t codes, float scale, Floats& y) {
    const Lookup8 levels(0x03020100, 0x0C080604, codes);  // twice the value
    LookUpFp4<0>(levels, codes, scale, y);
  }
#endif

  static QRD_DEVICE Planes EncodeScaled(const Floats& v) {
    if constexpr (kCodec == Codec::kFp8) {
      return EncodeFp8(v);
    } else if constexpr (kCodec == Codec::kFp4) {
      return EncodeFp4(v);
    } else {
      return EncodeCodes(v);
    }
  }

  static QRD_DEVICE Planes EncodeCodes(const Floats& v) {
    CodePairs codes;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      codes.w[j] = PackLow16(CodeOf(v.v[j]), CodeOf(v.v[j + 4]));
      if constexpr (kKind == CodecKind::kInt) {
        codes.w[j] = MinS16x2(MaxS16x2(codes.w[j], 0), (2 * kLevels - 1) * 0x00010001u);
      } else {
        codes.w[j] = (codes.w[j] & 0x00070007u) |
                     (PackHigh16(Bits(v.v[j]), Bits(v.v[j + 4])) >> 12 & 0x00080008u);
      }
    }
    return PackCodes(codes);
  }

  static QRD_DEVICE Planes PackCodes(const CodePairs& codes) {
    if constexpr (kWidth0 == 8) {
      const uint32_t a = codes.w[0] | codes.w[1] << 8;  // elements 0, 1, 4, 5
      const uint32_t b = codes.w[2] | codes.w[3] << 8;  // elements 2, 3, 6, 7
      return {PackLow16(a, b), PackHigh16(a, b), 0};
    } else if constexpr (kWidth1 == 0) {
      return {PackPlane<kWidth0, 0>(codes), 0, 0};
    } else {
      return {PackPlane<kWidth0, 0>(codes), 0, PackPlane<kWidth1, kWidth0>(codes)};
    }
  }

  // Encodes the wave's octets; the block's scale is returned on all of its lanes.
  template <typename Source>
  static QRD_DEVICE uint32_t EncodeWith(const Source& extremes_of, const Floats& x,
                                        Planes* planes) {
    const Scale scale = MakeScale(FindExtremes(extremes_of));
    Floats v;
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) v.v[j] = x.v[j] * scale.inverse;
    if (!scale.has_data) {
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) v.v[j] = 0;
    }
    *planes = EncodeScaled(v);
    return scale.bits;
  }
  static QRD_DEVICE uint32_t Encode(const Octet<kDtype>& x, Planes* planes) {
    const Floats widened = Widen<kDtype>(x);
    if constexpr (D::kIs16) {
      return EncodeWith(x, widened, planes);
    } else {
      return EncodeWith(widened, widened, planes);
    }
  }
  static QRD_DEVICE uint32_t EncodeFloats(const Floats& x, Planes* planes) {
    return EncodeWith(x, x, planes);
  }

  // Two E4M3 codes, in the high bytes of both halves, as fp16 numbers of 1/256 of their values.
  static QRD_DEVICE uint32_t E4m3AsFp16(uint32_t codes) {
    return (codes & 0x80008000u) | (codes & 0x7F007F00u) >> 1;
  }

  // Can this block decode to NaN? (Inf times zero too; no encoder writes it.)
  static QRD_DEVICE bool MayBeNan(uint32_t meta) { return (meta & 0x7FFF) >= kScaleInf; }

  // NaNs come out with any payload.
  static QRD_DEVICE Floats Decode(const Planes& planes, uint32_t meta, uint32_t /*lane*/) {
    const float scale = WidenScale(meta & 0xFFFF);
    Floats y;
    if constexpr (kCodec == Codec::kFp8) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t codes = half == 0 ? planes.low : planes.high;
        const uint32_t even = E4m3AsFp16(codes << 8), odd = E4m3AsFp16(codes);
        y.v[4 * half] = Fp16Low(even) * 256.0f * scale;
        y.v[4 * half + 1] = Fp16Low(odd) * 256.0f * scale;
        y.v[4 * half + 2] = Fp16High(even) * 256.0f * scale;
        y.v[4 * half + 3] = Fp16High(odd) * 256.0f * scale;
      }
    } else if constexpr (kCodec == Codec::kFp4) {
      DecodeFp4(planes.low, scale, y);
    } else if constexpr (kWidth0 == 8) {
      DecodeBytes(planes.low, scale, y.v);
      DecodeBytes(planes.high, scale, y.v + 4);
    } else {
      uint32_t nibbles = planes.low, upper = 0;
      if constexpr (kCodec == Codec::kInt3) {
        nibbles = SpreadPairsToNibbles(planes.low) | SpreadBitsToNibbles(planes.second) << 2;
      } else if constexpr (kCodec == Codec::kInt6) {
        upper = SpreadPairsToNibbles(planes.second);
      }
      uint32_t even = nibbles & 0x0F0F0F0Fu, odd = nibbles >> 4 & 0x0F0F0F0Fu;
      if constexpr (kCodec == Codec::kInt6) {
        even |= (upper & 0x0F0F0F0Fu) << 4;
        odd |= upper & 0xF0F0F0F0u;
      }
      float e[4], o[4];
      DecodeBytes(even, scale, e);
      DecodeBytes(odd, scale, o);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        y.v[2 * j] = e[j];
        y.v[2 * j + 1] = o[j];
      }
    }
    return y;
  }

  static QRD_DEVICE void DecodeBytes(uint32_t codes, float scale, float* y) {
    y[0] = ByteToFloat<0>(codes, kTop) * scale;
    y[1] = ByteToFloat<1>(codes, kTop) * scale;
    y[2] = ByteToFloat<2>(codes, kTop) * scale;
    y[3] = ByteToFloat<3>(codes, kTop) * scale;
  }

  template <uint32_t kIndex>
  static QRD_DEVICE void LookUpFp4(const Lookup8& levels, uint32_t codes, float scale, Floats& y) {
    const uint32_t sign = codes << (28 - 4 * kIndex) & 0x80000000u;
    y.v[kIndex] = Float(Bits(levels.Half<kIndex>()) | sign) * scale;
    if constexpr (kIndex + 1 < kOctet) LookUpFp4<kIndex + 1>(levels, codes, scale, y);
  }
};

}  // namespace qrd::gpu
