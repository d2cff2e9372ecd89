// SPDX-License-Identifier: Apache-2.0
// Values of all-reduce with RMSNorm on the host, against the contract's own words and fp64: zero
// rows, NaN, Inf, overflow, large bf16 values, tolerances, and FP8 codes of every 16-bit value.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference.h"
#include "kernels/reference_rms_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/types.h"
#include "rms_norm_case.h"
#include "rms_norm_run.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::RmsNormCase;
using testing::RmsNormResults;
using testing::RmsNormShape;
using testing::RmsNormTensors;

constexpr uint32_t kHidden = 200;
constexpr uint64_t kTokens = 4;
constexpr uint64_t kRow = 2;  // the special one
constexpr uint32_t kCanonicalNan = 0x7FC00000;

class RmsNormValuesTest : public ::testing::TestWithParam<Dtype> {
 protected:
  RmsNormValuesTest() {
    shape_.dtype = shape_.weight_dtype = GetParam();
    shape_.tokens = kTokens;
    shape_.hidden = kHidden;
    shape_.quant = Quant::kE4m3fn;
    shape_.mirror = true;
    tensors_ = testing::MakeRmsNormTensors(shape_, 1);
    ordinary_ = Run();
  }

  void Set(Bytes& tensor, uint32_t column, float value) const {
    testing::SetElement(shape_.dtype, tensor, kRow * kHidden + column, value);
  }
  void FillRow(Bytes& tensor, float value) const {
    for (uint32_t i = 0; i < kHidden; ++i) Set(tensor, i, value);
  }
  RmsNormResults Run() const {
    RmsNormCase test(shape_, tensors_);
    EXPECT_TRUE(backend_->Validate(test.params()).ok());
    testing::RunAllUnits(*backend_, test.params());
    return test.Results(1);
  }
  float Element(const Bytes& tensor, uint32_t column) const {
    return testing::ElementToFp32(shape_.dtype, tensor.data(), kRow * kHidden + column);
  }
  static uint32_t ScaleBits(const RmsNormResults& results, uint64_t at) {
    uint32_t bits = 0;
    std::memcpy(&bits, results.scales.data() + at * sizeof(bits), sizeof(bits));
    return bits;
  }
  static uint8_t Code(const RmsNormResults& results, uint32_t column) {
    return static_cast<uint8_t>(results.out8[kRow * kHidden + column]);
  }
  // Every row but the special one is as before.
  void ExpectOtherRowsUnchanged(const RmsNormResults& results) const {
    const auto same = [](const Bytes& a, const Bytes& b, uint64_t row_bytes) {
      for (uint64_t row = 0; row < kTokens; ++row) {
        if (row == kRow) continue;
        EXPECT_EQ(std::memcmp(&a[row * row_bytes], &b[row * row_bytes], row_bytes), 0) << row;
      }
    };
    same(results.residual_out, ordinary_.residual_out, kHidden * 2);
    same(results.mirror, ordinary_.mirror, kHidden * 2);
    same(results.out8, ordinary_.out8, kHidden);
    same(results.scales, ordinary_.scales, sizeof(float));
  }

  RmsNormShape shape_;
  RmsNormTensors tensors_;
  RmsNormResults ordinary_;
  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
};

TEST_P(RmsNormValuesTest, AZeroRowHasScaleOneAndKeepsItsSigns) {
  for (const float zero : {0.0f, -0.0f}) {
    for (Bytes& input : tensors_.inputs) FillRow(input, zero);
    FillRow(tensors_.residuals[0], zero);
    const RmsNormResults results = Run();
    for (uint32_t i = 0; i < kHidden; ++i) {
      EXPECT_EQ(Element(results.mirror, i), 0.0f);
      EXPECT_EQ(std::signbit(Element(results.residual_out, i)), std::signbit(zero));
      EXPECT_EQ(Code(results, i) & 0x7F, 0);
    }
    EXPECT_EQ(ScaleBits(results, kRow), std::bit_cast<uint32_t>(1.0f));
    ExpectOtherRowsUnchanged(results);
  }
}

TEST_P(RmsNormValuesTest, ANanMakesItsWholeRowNan) {
  Set(tensors_.inputs[1], 199, NAN);
  const RmsNormResults results = Run();
  for (uint32_t i = 0; i < kHidden; ++i) {
    EXPECT_TRUE(std::isnan(Element(results.mirror, i))) << i;
    EXPECT_EQ(Code(results, i), 0x7F) << i;
    EXPECT_EQ(std::isnan(Element(results.residual_out, i)), i == 199) << i;
  }
  EXPECT_EQ(ScaleBits(results, kRow), kCanonicalNan);
  ExpectOtherRowsUnchanged(results);
}

TEST_P(RmsNormValuesTest, AnInfiniteResidualIsNanInItsPlaceAndPoisonsItsGroup) {
  shape_.scale_group = kScaleGroup;
  shape_.quant = Quant::kE4m3fnuz;
  Set(tensors_.residuals[0], 130, -INFINITY);
  const RmsNormResults results = Run();
  for (uint32_t i = 0; i < kHidden; ++i) {
    if (i == 130) {
      EXPECT_TRUE(std::isnan(Element(results.mirror, i)));
      EXPECT_EQ(Element(results.residual_out, i), -INFINITY);
    } else {
      EXPECT_EQ(Element(results.mirror, i), 0.0f) << i;
    }
    EXPECT_EQ(Code(results, i), i < 128 ? 0 : 0x80) << i;
  }
  EXPECT_EQ(ScaleBits(results, 2 * kRow), std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(ScaleBits(results, 2 * kRow + 1), kCanonicalNan);
}

TEST_P(RmsNormValuesTest, ASumThatOverflowsIsInfInResidualOut) {
  const float large = GetParam() == Dtype::kFp16 ? 60000.0f : 3e38f;
  for (Bytes& input : tensors_.inputs) Set(input, 7, large);
  const RmsNormResults results = Run();
  EXPECT_EQ(Element(results.residual_out, 7), INFINITY);
  EXPECT_TRUE(std::isnan(Element(results.mirror, 7)));
  EXPECT_EQ(ScaleBits(results, kRow), kCanonicalNan);
  ExpectOtherRowsUnchanged(results);
}

TEST_P(RmsNormValuesTest, TheReducedTensorsNonFiniteElementsAreCounted) {
  Set(tensors_.inputs[0], 3, NAN);
  Set(tensors_.inputs[1], 199, INFINITY);
  Set(tensors_.residuals[0], 5, NAN);  // not the transport's
  RmsNormCase test(shape_, tensors_);
  EXPECT_EQ(testing::RunAllUnits(*backend_, test.params()), 2u);
  RmsNormCase units(shape_, tensors_);
  EXPECT_EQ(testing::RunUnitsBackwards(*backend_, units.params()), 2u);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RmsNormValuesTest, ::testing::Values(Dtype::kFp16, Dtype::kBf16),
                         [](const ::testing::TestParamInfo<Dtype>& param) {
                           return std::string(Name(param.param));
                         });

class RmsNormBf16Test : public RmsNormValuesTest {};

TEST_P(RmsNormBf16Test, SquaresThatOverflowGiveZeros) {
  Set(tensors_.inputs[0], 11, 1e20f);
  const RmsNormResults results = Run();
  for (uint32_t i = 0; i < kHidden; ++i) EXPECT_EQ(Element(results.mirror, i), 0.0f) << i;
  EXPECT_EQ(ScaleBits(results, kRow), std::bit_cast<uint32_t>(1.0f));
  ExpectOtherRowsUnchanged(results);
}

TEST_P(RmsNormBf16Test, ValuesAboveTheRangeOfFp16AreOrdinary) {
  for (Bytes& input : tensors_.inputs) Set(input, 11, 333824.0f);
  const RmsNormResults results = Run();
  // One value carries the row: its norm is sqrt(hidden) times its weight.
  const float weight = testing::ElementToFp32(shape_.dtype, tensors_.weights[0].data(), 11);
  EXPECT_NEAR(Element(results.mirror, 11), std::sqrt(200.0f) * weight, 0.05f);
  EXPECT_NEAR(Element(results.residual_out, 11), 667648.0f, 4096.0f);
  ExpectOtherRowsUnchanged(results);
}

INSTANTIATE_TEST_SUITE_P(Bf16, RmsNormBf16Test, ::testing::Values(Dtype::kBf16));

// Distance of two 16-bit values in representable steps.
int64_t StepsApart(uint16_t a, uint16_t b) {
  const auto order = [](uint16_t bits) {
    const int64_t magnitude = bits & 0x7FFF;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  };
  return std::llabs(order(a) - order(b));
}

// Section 4 of the contract: fp64 arithmetic on the same residual_out, one rounding.
TEST(RmsNormToleranceTest, IsWithinOneStepOfFp64) {
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    for (const uint32_t hidden : {2880u, 6160u, 16384u}) {
      RmsNormShape shape;
      shape.dtype = shape.weight_dtype = dtype;
      shape.tokens = 16;
      shape.hidden = hidden;
      const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, hidden);
      RmsNormCase test(shape, tensors);
      ASSERT_TRUE(backend->Validate(test.params()).ok());
      testing::RunAllUnits(*backend, test.params());
      const RmsNormResults results = test.Results(0);
      const std::vector<float> h = testing::ToFp32(dtype, results.residual_out);
      const std::vector<float> weight = testing::ToFp32(dtype, tensors.weights[0]);
      uint64_t different = 0;
      for (uint64_t row = 0; row < shape.tokens; ++row) {
        double squares = 0;
        for (uint32_t i = 0; i < hidden; ++i) {
          squares += double{h[row * hidden + i]} * h[row * hidden + i];
        }
        const double rstd = 1 / std::sqrt(squares / hidden + double{shape.eps});
        for (uint32_t i = 0; i < hidden; ++i) {
          // fp64 to fp32 first: a second rounding, which moves a tie of D at most by that step.
          const auto exact = static_cast<float>(h[row * hidden + i] * rstd * weight[i]);
          const uint16_t want =
              dtype == Dtype::kFp16 ? ReferenceRoundToFp16(exact) : ReferenceRoundToBf16(exact);
          uint16_t got = 0;
          std::memcpy(&got, &results.out[2 * (row * hidden + i)], 2);
          ASSERT_LE(StepsApart(got, want), 1) << shape << " row " << row << " column " << i;
          different += got != want;
        }
      }
      EXPECT_LE(static_cast<double>(different), 0.005 * static_cast<double>(shape.Count()))
          << shape;
    }
  }
}

// All finite 16-bit values of at most `amax` in rows that end with amax, so that it decides the
// scale.
std::vector<uint16_t> RowsUpTo(Dtype dtype, float amax, uint32_t hidden) {
  std::vector<uint16_t> rows;
  uint16_t amax_bits = 0;
  ReferenceRoundToDtype(dtype, &amax, 1, &amax_bits);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    ReferenceWidenToFp32(dtype, &half, 1, &value);
    if (!(std::fabs(value) <= amax)) continue;
    rows.push_back(half);
    if (rows.size() % hidden == hidden - 1) rows.push_back(amax_bits);
  }
  while (rows.size() % hidden != 0) rows.push_back(amax_bits);
  return rows;
}

TEST(QuantizeFp8Test, EveryFiniteValueUnderManyScalesGivesTheReferenceBytes) {
  constexpr uint32_t kWidth = 1000;
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    for (const Quant quant : {Quant::kE4m3fn, Quant::kE4m3fnuz}) {
      for (const float amax : {1e-6f, 0.9f, 3.14f, 448.0f, 65504.0f, 3e38f}) {
        if (dtype == Dtype::kFp16 && amax > 65504.0f) continue;
        for (const float divisor : {0.0f, 224.0f, 1.0f, 3e-39f}) {
          const std::vector<uint16_t> y = RowsUpTo(dtype, amax, kWidth);
          const uint64_t tokens = y.size() / kWidth;
          std::vector<uint8_t> want(y.size());
          std::vector<float> want_scales(tokens);
          ReferenceQuantizeFp8(dtype, tokens, kWidth, quant, 0, divisor, y.data(), want.data(),
                               want_scales.data());
          testing::ForEachSimdTarget([&] {
            std::vector<uint8_t> got(y.size());
            std::vector<float> scales(tokens);
            QuantizeFp8({dtype, tokens, kWidth, quant, 0, divisor}, y.data(), got.data(),
                        scales.data());
            EXPECT_EQ(std::memcmp(scales.data(), want_scales.data(), tokens * sizeof(float)), 0);
            for (size_t i = 0; i < y.size(); ++i) {
              ASSERT_EQ(got[i], want[i]) << Name(dtype) << ' ' << Name(quant) << " amax " << amax
                                         << " divisor " << divisor << " bits " << y[i];
            }
          });
        }
      }
    }
  }
}

TEST(QuantizeFp8Test, EveryNonFiniteValuePoisonsItsGroupOnly) {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      float value = 0;
      ReferenceWidenToFp32(dtype, &half, 1, &value);
      if (std::isfinite(value)) continue;
      std::vector<uint16_t> y(136, 0);
      y[128 + bits % 8] = half;
      std::vector<uint8_t> codes(136);
      std::vector<float> scales(2);
      QuantizeFp8({dtype, 1, 136, Quant::kE4m3fn, kScaleGroup, 0}, y.data(), codes.data(),
                  scales.data());
      ASSERT_EQ(scales[0], 1.0f);
      ASSERT_EQ(std::bit_cast<uint32_t>(scales[1]), kCanonicalNan) << bits;
      for (uint32_t i = 0; i < 136; ++i) ASSERT_EQ(codes[i], i < 128 ? 0 : 0x7F) << bits;
    }
  }
}

}  // namespace
}  // namespace qrd
