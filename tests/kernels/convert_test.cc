// SPDX-License-Identifier: Apache-2.0
// Widening and rounding, exhaustive for the 16-bit types, on every instruction set of this machine;
// against the reference, and the reference against arithmetic in double precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codec_inputs.h"
#include "kernels/codec.h"
#include "kernels/float_environment.h"
#include "kernels/reference.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::ForEachSimdTarget;
using testing::FromBits;
using testing::kDtypes;

// The 16-bit patterns of a dtype, all of them.
std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> patterns(65536);
  for (uint32_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  return patterns;
}

// Value of a 16-bit float from its definition.
double Value(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(ConvertTest, ReferenceWidensEveryFiniteFp16Exactly) {
  for (const uint16_t bits : AllPatterns()) {
    if ((bits & 0x7C00) == 0x7C00) continue;
    ASSERT_EQ(ReferenceWidenFp16(bits), Value(bits, 5, 10)) << std::hex << bits;
    ASSERT_EQ(std::signbit(ReferenceWidenFp16(bits)), (bits & 0x8000) != 0);
  }
  EXPECT_EQ(ReferenceWidenFp16(0x7C00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(ReferenceWidenFp16(0xFC00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(ReferenceWidenFp16(0x7C01)));
}

TEST(ConvertTest, ReferenceRoundsFp16NeighboursAndTiesToEven) {
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = ReferenceWidenFp16(bits);
    const float high = ReferenceWidenFp16(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact in fp32
    const uint16_t even = static_cast<uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(ReferenceRoundToFp16(low), bits);
    ASSERT_EQ(ReferenceRoundToFp16(middle), even) << std::hex << bits;
    ASSERT_EQ(ReferenceRoundToFp16(std::nextafter(middle, 0.0f)), bits) << std::hex << bits;
    ASSERT_EQ(ReferenceRoundToFp16(std::nextafter(middle, 1e9f)), bits + 1) << std::hex << bits;
    ASSERT_EQ(ReferenceRoundToFp16(-middle), even | 0x8000);
  }
}

TEST(ConvertTest, ReferenceRoundsTheEdgesOfFp16) {
  EXPECT_EQ(ReferenceRoundToFp16(65504), 0x7BFF);
  EXPECT_EQ(ReferenceRoundToFp16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(ReferenceRoundToFp16(65520), 0x7C00);
  EXPECT_EQ(ReferenceRoundToFp16(-1e30f), 0xFC00);
  EXPECT_EQ(ReferenceRoundToFp16(0x1p-25f), 0);  // a tie with the smallest subnormal
  EXPECT_EQ(ReferenceRoundToFp16(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(ReferenceRoundToFp16(-0x1p-140f), 0x8000);
  EXPECT_EQ(ReferenceRoundToFp16(-0.0f), 0x8000);
  EXPECT_EQ(ReferenceRoundToFp16(FromBits(0xFFFFFFFF)), 0x7E00);
  EXPECT_EQ(ReferenceRoundToFp16(FromBits(0x7F800001)), 0x7E00);
}

TEST(ConvertTest, ReferenceRoundsBf16NeighboursAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t low = bits << 16;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(ReferenceRoundToBf16(FromBits(low)), bits);
    ASSERT_EQ(ReferenceRoundToBf16(FromBits(low + 0x7FFF)), bits);
    ASSERT_EQ(ReferenceRoundToBf16(FromBits(low + 0x8000)), even);
    ASSERT_EQ(ReferenceRoundToBf16(FromBits(low + 0x8001)), bits + 1);
    ASSERT_EQ(ReferenceRoundToBf16(FromBits(low + 0x80008000)), even | 0x8000);
  }
  EXPECT_EQ(ReferenceRoundToBf16(FromBits(0x7F7F8000)), 0x7F80);  // overflow
  EXPECT_EQ(ReferenceRoundToBf16(FromBits(0x7F800001)), 0x7FC0);
  EXPECT_EQ(ReferenceRoundToBf16(FromBits(0xFFC12345)), 0x7FC0);
}

TEST(ConvertTest, EveryTargetWidensEveryPatternLikeTheReference) {
  const std::vector<uint16_t> patterns = AllPatterns();
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    std::vector<float> want(patterns.size()), got(patterns.size());
    ReferenceWidenToFp32(dtype, patterns.data(), patterns.size(), want.data());
    ForEachSimdTarget([&] {
      WidenToFp32(dtype, patterns.data(), patterns.size(), got.data());
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (std::isnan(want[i])) {
          ASSERT_TRUE(std::isnan(got[i])) << Name(dtype) << ' ' << std::hex << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
              << Name(dtype) << ' ' << std::hex << i;
        }
      }
    });
  }
}

// All neighbours and ties of both 16-bit types, all exponents with random mantissas, NaNs.
std::vector<float> RoundingInputs() {
  std::vector<float> inputs;
  for (const uint16_t bits : AllPatterns()) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u}) {
      inputs.push_back(FromBits(uint32_t{bits} << 16 | low));
    }
    const uint32_t half = std::bit_cast<uint32_t>(ReferenceWidenFp16(bits));
    for (const uint32_t low : {0u, 0xFFFu, 0x1000u, 0x1001u})
      inputs.push_back(FromBits(half + low));
    // Middle between two subnormals of fp16, and one fp32 step around it.
    const float middle = (static_cast<float>(bits & 0x3FF) + 0.5f) * 0x1p-24f;
    for (const uint32_t step : {0u, 1u, 0xFFFFFFFFu}) {
      inputs.push_back(FromBits((std::bit_cast<uint32_t>(middle) + step) | (bits & 0x8000u) << 16));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) inputs.push_back(FromBits(static_cast<uint32_t>(random())));
  return inputs;
}

TEST(ConvertTest, EveryTargetRoundsLikeTheReference) {
  const std::vector<float> inputs = RoundingInputs();
  for (const Dtype dtype : kDtypes) {
    const size_t bytes = inputs.size() * DtypeBytes(dtype);
    std::vector<std::byte> want(bytes), got(bytes);
    ReferenceRoundToDtype(dtype, inputs.data(), inputs.size(), want.data());
    ForEachSimdTarget([&] {
      RoundToDtype(dtype, inputs.data(), inputs.size(), got.data());
      for (size_t i = 0; i < inputs.size(); ++i) {
        const size_t at = i * DtypeBytes(dtype);
        ASSERT_EQ(std::memcmp(&got[at], &want[at], DtypeBytes(dtype)), 0)
            << Name(dtype) << ' ' << std::hex << std::bit_cast<uint32_t>(inputs[i]);
      }
    });
  }
}

TEST(ConvertTest, ConversionsStayInsideTheirBuffersAtEveryLength) {
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      for (uint64_t count = 0; count <= 300; ++count) {
        const std::vector<float> y(count, 1.5f);
        std::vector<std::byte> out((count + 40) * DtypeBytes(dtype), std::byte{0xA5});
        RoundToDtype(dtype, y.data(), count, out.data());
        for (size_t i = count * DtypeBytes(dtype); i < out.size(); ++i) {
          ASSERT_EQ(out[i], std::byte{0xA5}) << Name(dtype) << ", count " << count;
        }
        const std::vector<std::byte> exact(
            out.begin(), out.end() - 40 * static_cast<int64_t>(DtypeBytes(dtype)));
        std::vector<float> widened(count + 20, -2.0f);
        WidenToFp32(dtype, exact.data(), count, widened.data());
        for (size_t i = 0; i < widened.size(); ++i) {
          ASSERT_EQ(widened[i], i < count ? 1.5f : -2.0f) << Name(dtype) << ", count " << count;
        }
      }
    }
  });
}

#if defined(__x86_64__)
TEST(FloatEnvironmentTest, ScopeKeepsSubnormalsAndRestores) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040 | 0x6000);  // FTZ, DAZ, round toward zero
  const unsigned hostile = _mm_getcsr();
  volatile float tiny = 0x1p-130f, third = 1;
  {
    ScopedFloatEnvironment scope;
    EXPECT_EQ(_mm_getcsr() & 0xE040, 0u);
    EXPECT_EQ(tiny * 2, 0x1p-129f);
    EXPECT_EQ(third / 3, 0x1.555556p-2f);
  }
  EXPECT_EQ(_mm_getcsr() & 0xE040, hostile & 0xE040);
  _mm_setcsr(before);
}
#endif

}  // namespace
}  // namespace qrd
