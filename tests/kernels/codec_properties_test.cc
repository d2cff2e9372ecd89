// SPDX-License-Identifier: Apache-2.0
// What the wire format promises about the codecs' values: the worked examples, error bounds, NaN,
// range and scale. Run on the reference too, so that a mistake shared by reference and SIMD has a
// chance to be seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codec_inputs.h"
#include "kernels/codec.h"
#include "kernels/reference.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::FromBits;
using testing::kDtypes;
using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

Bytes EncodeWith(bool reference, Codec codec, Dtype dtype, const Floats& x) {
  Bytes wire(EncodedBytes(codec, dtype, x.size()));
  (reference ? ReferenceEncodeFp32 : EncodeFp32)(codec, dtype, x.data(), x.size(), wire.data());
  return wire;
}

Floats RoundTrip(bool reference, Codec codec, Dtype dtype, const Floats& x) {
  const Bytes wire = EncodeWith(reference, codec, dtype, x);
  Floats y(x.size());
  (reference ? ReferenceDecode : Decode)(codec, dtype, wire.data(), x.size(), y.data());
  return y;
}

float LargestMagnitude(const Floats& x, size_t first, size_t last) {
  float top = 0;
  for (size_t i = first; i < last; ++i) top = std::max(top, std::abs(x[i]));
  return top;
}

// Codec and "reference instead of SIMD".
class CodecPropertiesTest : public ::testing::TestWithParam<std::tuple<Codec, bool>> {
 protected:
  Codec codec() const { return std::get<0>(GetParam()); }
  bool reference() const { return std::get<1>(GetParam()); }
  size_t group() const { return SpecOf(codec()).group_elements; }
};

struct Example {
  size_t count;
  const char* wire;
  float decoded[8];
};

Example ExampleOf(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return {8,
              "80c0203f30c0f03fc0bf484180be68c0",
              {-4, 0.625f, -2.75f, 1.875f, -1.5f, 12.5f, -0.25f, -3.625f}};
    case Codec::kFp8:
      return {
          32,
          "f15bec68e57ed1f061eb6ae27049ef64e96cdd7159ed68e76dd5f060eb6ae36fe53c",
          {-4.02539f, 0.61499f, -2.68359f, 1.78906f, -1.45361f, 12.5234f, -0.251587f, -3.57812f}};
    case Codec::kInt8:
      return {32,
              "a97a9c6d8f0083a57698698c5c7fa172946588587b9d6e916184a6779a6a8d5dc8bd",
              {-4.00391f, 0.585938f, -2.73438f, 1.85547f, -1.46484f, 12.5f, -0.292969f, -3.61328f}};
    case Codec::kInt6:
      return {32,
              "eab704916d3a07c895627f4c18eab67366a2996966996966c8be",
              {-3.90625f, 0.78125f, -2.73438f, 1.95312f, -1.5625f, 12.5f, -0.390625f, -3.51562f}};
    case Codec::kInt4:
      return {32,
              "8b7a09a8a797867a6968a897867a7a69c8bf",
              {-4.6875f, -0.0f, -3.125f, 1.5625f, -1.5625f, 12.5f, -0.0f, -3.125f}};
    case Codec::kFp4:
      return {32,
              "1c2b79b8a192031b3a49b0a2831c2a390540",
              {-4.15625f, 1.03906f, -3.11719f, 2.07812f, -1.03906f, 12.4688f, -0.0f, -3.11719f}};
    case Codec::kInt3:
      return {32,
              "d1403413cd7413cdd7ebb55e48c0",
              {-3.125f, -0.0f, -3.125f, 3.125f, -0.0f, 12.5f, -0.0f, -3.125f}};
    case Codec::kLp4:
      return {64,
              "1e3c1bd8d3b5074f4b59c1b3962f5e7bf0d3a6173d4bd9c1c5873f5d7bf0d4a699a6c582",
              {-4.5f, 0.75f, -2.5f, 1.75f, -1.75f, 12.5f, -0.25f, -3.5f}};
    case Codec::kLp3:
      return {64,
              "63856962895822965822968825a68925d54aa5562ab55aa95555c582",
              {-5, 0.5f, -3, 1.5f, -1.5f, 13, -0.5f, -3}};
    case Codec::kLp3c:
      return {128,
              "a3c96973da6873da9c36a79c36a7cd29a3cd6973da6873da9c36a79c36a7cd29"
              "d54aa5562ab55aa9d54aa5562ab55aa955558582",
              {-3.75f, 0.375f, -2.25f, 2.25f, -1.125f, 12, -0.375f, -3.75f}};
    case Codec::kLp2:
      return {64, "33e29c31668c3967cc1963ce9973c69c4451c582", {-4, 1, -4, 1, -1, 12, -1, -4}};
  }
  return {};
}

TEST_P(CodecPropertiesTest, GivesTheWorkedExample) {
  const Example example = ExampleOf(codec());
  Floats x(example.count);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(37 * i % 64) - 32) / 8;
  }
  x[5] = 12.5f;
  const Bytes wire = EncodeWith(reference(), codec(), Dtype::kBf16, x);
  std::string hex;
  for (const std::byte byte : wire) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(byte));
    hex += digits;
  }
  EXPECT_EQ(hex, example.wire);
  const Floats y = RoundTrip(reference(), codec(), Dtype::kBf16, x);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(y[i], example.decoded[i], 1e-5 * std::abs(example.decoded[i])) << i;
    EXPECT_EQ(std::signbit(y[i]), std::signbit(example.decoded[i])) << i;
  }
}

// Section 5.5, and for the others half the largest gap between codes (int: the clamped end).
double ErrorBound(Codec codec) {
  switch (codec) {
    case Codec::kNone:
      return 0;
    case Codec::kFp8:
      return 0.5 * 32 / 448 + 0x1p-8;
    case Codec::kInt8:
      return (1 + 0x1p-8) / 128 + 0x1p-8;
    case Codec::kInt6:
      return (1 + 0x1p-8) / 32 + 0x1p-8;
    case Codec::kInt4:
      return 0.13;
    case Codec::kFp4:
      return 1.0 / 6 + 0x1p-8;
    case Codec::kInt3:
      return 0.25 + 0x1p-8;
    case Codec::kLp4:
      return 0.13;
    case Codec::kLp3:
      return 0.23;
    case Codec::kLp3c:
      return 1.5 / 6.5 + 1e-6;  // 0.23 to two digits: 6.5 steps decode to 5
    case Codec::kLp2:
      return 0.40;
  }
  return 0;
}

TEST_P(CodecPropertiesTest, ErrorStaysWithinTheBoundOfTheGroup) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
    for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
      for (const auto& [name, values] : testing::CodecInputs(dtype, 8 * kTileElements, seed)) {
        if (name != "gauss" && name != "heavy tails" && name != "one spike" && name != "ties" &&
            name != "tied extremes" && name != "all equal" && name != "lane limits") {
          continue;
        }
        Floats x = values;
        if (codec() == Codec::kNone) {  // the rounding to the dtype is the caller's
          Bytes rounded(x.size() * DtypeBytes(dtype));
          ReferenceRoundToDtype(dtype, x.data(), x.size(), rounded.data());
          ReferenceWidenToFp32(dtype, rounded.data(), x.size(), x.data());
        }
        const Floats y = RoundTrip(reference(), codec(), dtype, x);
        for (size_t first = 0; first < x.size(); first += group()) {
          const double bound = ErrorBound(codec()) * LargestMagnitude(x, first, first + group());
          for (size_t i = first; i < first + group(); ++i) {
            if (std::abs(double{y[i]} - x[i]) <= bound) continue;
            FAIL() << name << ' ' << Name(dtype) << " element " << i << ": " << x[i] << " -> "
                   << y[i] << ", bound " << bound;
          }
        }
      }
    }
  }
}

class QuantisedCodecTest : public CodecPropertiesTest {};  // none keeps NaN and Inf element-wise

TEST_P(QuantisedCodecTest, AnOutOfRangeElementMarksItsGroupAndNoOther) {
  for (const Dtype dtype : kDtypes) {
    const uint32_t limit = SpecOf(dtype).limit;
    for (const uint32_t bits : {limit, limit | 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00000u,
                                0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
      for (size_t at = 0; at < 2 * group(); ++at) {
        Floats x(2 * group() + 5, 1.0f);
        x[at] = FromBits(bits);
        const Floats y = RoundTrip(reference(), codec(), dtype, x);
        for (size_t i = 0; i < x.size(); ++i) {
          if (i / group() == at / group()) {
            ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), kCanonicalNanBits) << i;
          } else {
            ASSERT_TRUE(std::isfinite(y[i])) << i;
          }
        }
      }
    }
  }
}

TEST_P(CodecPropertiesTest, DecodedValuesNeverExceedTheDtype) {
  for (const Dtype dtype : kDtypes) {
    const float largest = dtype == Dtype::kFp16   ? 65504.0f
                          : dtype == Dtype::kBf16 ? FromBits(0x7F7F0000)
                                                  : std::numeric_limits<float>::max();
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
      Floats x(group() * 2);
      for (float& value : x) {
        value = FromBits((SpecOf(dtype).limit - 1 - random() % (1u << (round % 24))) |
                         static_cast<uint32_t>(random()) << 31);
      }
      // none: rounding brings the value back to the dtype.
      for (const float value : RoundTrip(reference(), codec(), dtype, x)) {
        ASSERT_LE(std::abs(value), largest) << Name(dtype);
      }
    }
  }
}

// Field failure F02: nothing changes with the magnitude of the data.
TEST_P(CodecPropertiesTest, PowersOfTwoPassThroughBitForBit) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats x(65536);
  for (float& value : x) value = ReferenceWidenBf16(ReferenceRoundToBf16(uniform(random)));
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
    const Floats y = RoundTrip(reference(), codec(), dtype, x);
    for (const int exponent : {-10, -13, -20, -60, 20, 60}) {
      Floats scaled = x;
      for (float& value : scaled) value = std::ldexp(value, exponent);
      const Floats z = RoundTrip(reference(), codec(), dtype, scaled);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(z[i]),
                  std::bit_cast<uint32_t>(std::ldexp(y[i], exponent)))
            << "2^" << exponent << ", element " << i;
      }
    }
  }
}

TEST_P(CodecPropertiesTest, ZeroGroupsAreExact) {
  for (const Dtype dtype : kDtypes) {
    Floats x(5 * group(), 0.0f);
    std::fill(x.begin() + static_cast<int64_t>(2 * group()),
              x.begin() + static_cast<int64_t>(3 * group()), 1.0f);
    const Floats y = RoundTrip(reference(), codec(), dtype, x);
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == 0) {
        // int codecs code a zero as 0 * scale: the sign may differ.
        ASSERT_EQ(y[i], 0.0f) << i;
      }
    }
  }
}

class IntCodecTest : public CodecPropertiesTest {};

TEST_P(IntCodecTest, WholeCodesSurviveExactly) {
  const CodecSpec& spec = SpecOf(codec());
  for (const Dtype dtype : kDtypes) {
    for (const float scale : {1.0f, -0.5f, 0.125f, -8.0f}) {
      Floats x(32 * 8);
      for (size_t i = 0; i < x.size(); ++i) {
        const auto range = static_cast<size_t>(2 * spec.top);
        x[i] = (static_cast<float>(i % 32 == 0 ? 0 : (i * 7) % range) - spec.top) * scale;
      }
      EXPECT_EQ(RoundTrip(reference(), codec(), dtype, x), x) << Name(dtype) << ' ' << scale;
    }
  }
}

std::string ParamName(const ::testing::TestParamInfo<std::tuple<Codec, bool>>& info) {
  return std::string(Name(std::get<0>(info.param))) +
         (std::get<1>(info.param) ? "_reference" : "_simd");
}

INSTANTIATE_TEST_SUITE_P(All, CodecPropertiesTest,
                         ::testing::Combine(::testing::ValuesIn(kAllCodecs), ::testing::Bool()),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(All, QuantisedCodecTest,
                         ::testing::Combine(::testing::ValuesIn(kAllCodecs.begin() + 1,
                                                                kAllCodecs.end()),
                                            ::testing::Bool()),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(All, IntCodecTest,
                         ::testing::Combine(::testing::Values(Codec::kInt8, Codec::kInt6,
                                                              Codec::kInt4, Codec::kInt3),
                                            ::testing::Bool()),
                         ParamName);

}  // namespace
}  // namespace qrd
