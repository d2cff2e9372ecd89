// SPDX-License-Identifier: Apache-2.0
// The scalar reference of all-reduce with RMSNorm against what is independent of it: golden files,
// the definition of the FP8 formats, and arithmetic in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "epilogue_golden.h"
#include "kernels/reference.h"
#include "kernels/reference_rms_norm.h"
#include "rms_norm_case.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::RmsNormCase;
using testing::RmsNormResults;

TEST(RmsNormReferenceTest, EveryGoldenCaseGivesTheGoldenBytes) {
  for (const std::string& folder : testing::EpilogueGoldenFolders()) {
    int checked = 0;
    for (const testing::EpilogueGolden& golden : testing::EpilogueGoldenFolder(folder).Load()) {
      for (const bool in_place : {false, true}) {
        testing::RmsNormShape shape = golden.shape;
        shape.residual_in_place = in_place && shape.has_residual;
        shape.output_in_place = in_place;
        const std::vector<RmsNormResults> results =
            testing::ReferenceResults(shape, golden.tensors);
        for (const RmsNormResults& result : results) {
          testing::ExpectSameResults(shape, result, golden.expected, golden.name);
        }
      }
      ++checked;
    }
    EXPECT_GT(checked, 0) << folder;
  }
}

// The codes of a format by its definition: sign, 4 bits of exponent, 3 of mantissa.
double ValueOf(Quant quant, uint32_t code) {
  const int bias = quant == Quant::kE4m3fn ? 7 : 8;
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  const double magnitude = exponent != 0 ? std::ldexp(8 + mantissa, exponent - bias - 3)
                                         : std::ldexp(mantissa, 1 - bias - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
bool IsNanCode(Quant quant, uint32_t code) {
  return quant == Quant::kE4m3fn ? (code & 0x7F) == 0x7F : code == 0x80;
}

class Fp8Test : public ::testing::TestWithParam<Quant> {
 protected:
  // The nearest code of a magnitude, ties to the even code, found by search.
  uint32_t Nearest(double magnitude) const {
    uint32_t best = 0;
    for (uint32_t code = 0; code < 128 && !IsNanCode(quant_, code); ++code) {
      const double distance = std::fabs(ValueOf(quant_, code) - magnitude);
      const double shortest = std::fabs(ValueOf(quant_, best) - magnitude);
      if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
    }
    return best;
  }
  uint32_t Expected(float value) const {
    if (std::isnan(value)) return quant_ == Quant::kE4m3fn ? 0x7F : 0x80;
    const uint32_t code =
        Nearest(std::min(std::fabs(static_cast<double>(value)), double{QuantMax(quant_)}));
    if (quant_ == Quant::kE4m3fnuz && code == 0) return 0;
    return code | (std::signbit(value) ? 0x80 : 0);
  }
  const Quant quant_ = GetParam();
};

TEST_P(Fp8Test, DecodesEveryCodeByTheDefinition) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = ReferenceDecodeFp8(quant_, static_cast<uint8_t>(code));
    if (IsNanCode(quant_, code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(value, ValueOf(quant_, code)) << code;
    EXPECT_EQ(ReferenceEncodeFp8(quant_, value), code);
  }
  EXPECT_EQ(ReferenceDecodeFp8(quant_, quant_ == Quant::kE4m3fn ? 0x7E : 0x7F), QuantMax(quant_));
}

TEST_P(Fp8Test, EncodesEvery16BitValueToTheNearestCode) {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float value =
          dtype == Dtype::kFp16 ? ReferenceWidenFp16(half) : ReferenceWidenBf16(half);
      ASSERT_EQ(ReferenceEncodeFp8(quant_, value), Expected(value)) << value;
    }
  }
}

// The encoder is monotonic in the bits of the magnitude, so the ends of every interval decide.
TEST_P(Fp8Test, EveryIntervalEndsWhereTheDefinitionSays) {
  std::vector<float> probes = {
      0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
      std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (uint32_t code = 0; code + 1 < 128 && !IsNanCode(quant_, code + 1); ++code) {
    const auto middle = static_cast<float>((ValueOf(quant_, code) + ValueOf(quant_, code + 1)) / 2);
    probes.push_back(middle);
    probes.push_back(std::nextafter(middle, 0.0f));
    probes.push_back(std::nextafter(middle, 1e9f));
  }
  for (const float probe : probes) {
    EXPECT_EQ(ReferenceEncodeFp8(quant_, probe), Expected(probe)) << probe;
    EXPECT_EQ(ReferenceEncodeFp8(quant_, -probe), Expected(-probe)) << -probe;
  }
}

INSTANTIATE_TEST_SUITE_P(BothFormats, Fp8Test, ::testing::Values(Quant::kE4m3fn, Quant::kE4m3fnuz),
                         [](const ::testing::TestParamInfo<Quant>& param) {
                           return std::string(Name(param.param));
                         });

// 1 + 2^-23 and its like keep their last bit only in one order of the sum.
TEST(RmsNormReferenceTest, SquaresAreSummedAsATreeOfNeighbours) {
  const std::vector<float> h = {0x1p12f, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f};
  // ((2^24 + 1) + (1 + 0)) + ((1 + 0) + 0): each 1 is lost but for the pairs that meet first.
  EXPECT_EQ(ReferenceSumOfSquares(h.data(), 8), 0x1p24f);
  const std::vector<float> apart = {0x1p12f, 0.0f, 1.0f, 1.0f};
  EXPECT_EQ(ReferenceSumOfSquares(apart.data(), 4), 0x1p24f + 2.0f);
  EXPECT_EQ(ReferenceSumOfSquares(h.data(), 3), 0x1p24f);
}

}  // namespace
}  // namespace qrd
