// SPDX-License-Identifier: Apache-2.0
// Failures of other systems that must not come back, at the level of kernels: numerics and shapes.
// The numbers are those of the list of field failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "collective_case.h"
#include "kernels/backend.h"
#include "kernels/types.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::CaseShape;
using testing::CollectiveCase;
using testing::MakeInputs;

constexpr Algorithm kAlgorithms[] = {Algorithm::kOneShot, Algorithm::kTwoShot};

class FieldFailuresTest : public ::testing::TestWithParam<Codec> {
 protected:
  CaseShape Shape(Algorithm algorithm, Dtype dtype, uint32_t world_size, uint64_t count) const {
    CaseShape shape;
    shape.codec = GetParam();
    shape.algorithm = algorithm;
    shape.dtype = dtype;
    shape.world_size = world_size;
    shape.count = count;
    return shape;
  }
  // Elements [first, last) of the group of element i.
  uint64_t GroupFirst(uint64_t i) const { return i / GroupElements() * GroupElements(); }
  uint64_t GroupElements() const { return ShapeOf(GetParam(), Dtype::kBf16).group_elements; }

  // What one encode may do to the largest value of a group.
  double Tolerance(double largest) const {
    switch (GetParam()) {
      case Codec::kNone:
        return 0;
      case Codec::kInt8:
        return largest / 128;
      case Codec::kInt6:
        return largest / 32;
      case Codec::kInt4:
        return largest / 8;
      case Codec::kInt3:
        return largest / 4;
      default:
        return largest / 8;
    }
  }

  // Fails if an element outside the group of element i differs.
  void ExpectSameOutsideGroup(Dtype dtype, const Bytes& a, const Bytes& b, uint64_t i) const {
    const uint64_t first = GroupFirst(i) * DtypeBytes(dtype);
    const uint64_t last =
        std::min<uint64_t>(a.size(), (GroupFirst(i) + GroupElements()) * DtypeBytes(dtype));
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + first, b.begin()));
    EXPECT_TRUE(std::equal(a.begin() + last, a.end(), b.begin() + last));
  }
  // Fails unless exactly the elements of element i's group (codec none: the element) are NaN.
  void ExpectOnlyGroupIsNaN(Dtype dtype, const Bytes& result, uint64_t i) const {
    const std::vector<float> values = testing::ToFp32(dtype, result);
    for (uint64_t k = 0; k < values.size(); ++k) {
      EXPECT_EQ(std::isnan(values[k]), GroupFirst(k) == GroupFirst(i)) << "element " << k;
    }
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
};

TEST_P(FieldFailuresTest, F01LargeBf16ValuesStayFinite) {
  constexpr uint64_t kSpike = 1234;
  for (const Algorithm algorithm : kAlgorithms) {
    const CaseShape shape = Shape(algorithm, Dtype::kBf16, 2, 5000);
    std::vector<Bytes> inputs = MakeInputs(shape, testing::GaussValues, 1);
    CollectiveCase without(shape, inputs);
    without.RunAndCompare(*backend_);

    testing::SetElement(shape.dtype, inputs[0], kSpike, 333824.0f);
    testing::SetElement(shape.dtype, inputs[1], kSpike, 0.0f);
    CollectiveCase with(shape, inputs);
    EXPECT_EQ(with.Run(*backend_), 0u);
    with.ExpectEqual(with.Expected());
    const float value = testing::ToFp32(shape.dtype, with.Result())[kSpike];
    EXPECT_NEAR(value, 333824.0, Tolerance(333824.0)) << shape;
    ExpectSameOutsideGroup(shape.dtype, with.Result(), without.Result(), kSpike);
  }
}

double Sqnr(const std::vector<double>& exact, const std::vector<float>& values) {
  double signal = 0;
  double noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    signal += exact[i] * exact[i];
    noise += (values[i] - exact[i]) * (values[i] - exact[i]);
  }
  return noise == 0 ? INFINITY : 10 * std::log10(signal / noise);
}

std::vector<float> UniformValues(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

TEST_P(FieldFailuresTest, F02SmallValuesScaleExactly) {
  for (const Algorithm algorithm : kAlgorithms) {
    const CaseShape shape = Shape(algorithm, Dtype::kBf16, 4, 65536);
    const std::vector<Bytes> inputs = MakeInputs(shape, UniformValues, 2);
    CollectiveCase base(shape, inputs);
    base.Run(*backend_);
    const std::vector<float> base_values = testing::ToFp32(shape.dtype, base.Result());
    for (const int exponent : {-10, -13, -20}) {
      std::vector<Bytes> scaled;
      std::vector<double> exact(shape.count);
      for (const Bytes& input : inputs) {
        std::vector<float> values = testing::ToFp32(shape.dtype, input);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = std::ldexp(values[i], exponent);
          exact[i] += values[i];
        }
        scaled.push_back(testing::ToDtype(shape.dtype, values));
      }
      CollectiveCase test(shape, scaled);
      test.Run(*backend_);
      std::vector<float> expected = base_values;
      for (float& value : expected) value = std::ldexp(value, exponent);
      test.ExpectEqual(testing::ToDtype(shape.dtype, expected));
      if (GetParam() == Codec::kInt8) {
        EXPECT_GE(Sqnr(exact, testing::ToFp32(shape.dtype, test.Result())), 40.0) << shape;
      }
    }
  }
}

TEST_P(FieldFailuresTest, F03LargestFp16ValueIsNotMarkedAndInfIs) {
  constexpr uint64_t kSpike = 5;
  for (const Algorithm algorithm : kAlgorithms) {
    const CaseShape shape = Shape(algorithm, Dtype::kFp16, 2, 1000);
    const std::vector<float> ones(shape.count, 1.0f);
    std::vector<Bytes> inputs(2, testing::ToDtype(shape.dtype, ones));
    CollectiveCase plain(shape, inputs);
    plain.Run(*backend_);

    testing::SetElement(shape.dtype, inputs[0], kSpike, 65504.0f);
    CollectiveCase largest(shape, inputs);
    EXPECT_EQ(largest.Run(*backend_), 0u) << shape;
    largest.ExpectEqual(largest.Expected());

    testing::SetElement(shape.dtype, inputs[0], kSpike, INFINITY);
    CollectiveCase infinite(shape, inputs);
    EXPECT_EQ(infinite.Run(*backend_), GroupElements());
    infinite.ExpectEqual(infinite.Expected());
    ExpectSameOutsideGroup(shape.dtype, infinite.Result(), plain.Result(), kSpike);
    if (GetParam() == Codec::kNone) {
      EXPECT_EQ(testing::ToFp32(shape.dtype, infinite.Result())[kSpike], INFINITY);
    } else {
      ExpectOnlyGroupIsNaN(shape.dtype, infinite.Result(), kSpike);
    }
  }
}

TEST_P(FieldFailuresTest, F04NaNIsNeverHidden) {
  constexpr uint64_t kNaN = 777;
  for (const Algorithm algorithm : kAlgorithms) {
    const CaseShape shape = Shape(algorithm, Dtype::kBf16, 2, 3000);
    std::vector<Bytes> inputs = MakeInputs(shape, testing::GaussValues, 4);
    CollectiveCase without(shape, inputs);
    without.Run(*backend_);
    testing::SetElement(shape.dtype, inputs[1], kNaN, NAN);
    CollectiveCase with(shape, inputs);
    EXPECT_EQ(with.Run(*backend_), GroupElements());
    with.ExpectEqual(with.Expected());
    ExpectOnlyGroupIsNaN(shape.dtype, with.Result(), kNaN);
    ExpectSameOutsideGroup(shape.dtype, with.Result(), without.Result(), kNaN);
  }
}

TEST_P(FieldFailuresTest, F05SumsThatLeaveTheDtypeAreSeen) {
  constexpr uint64_t kSpike = 70;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
      const CaseShape shape = Shape(algorithm, dtype, 2, 3000);
      Bytes input = testing::ToDtype(dtype, std::vector<float>(shape.count, 1.0f));
      testing::SetElement(dtype, input, kSpike, 40960.0f);
      CollectiveCase test(shape, {input, input});
      const uint64_t nonfinite = test.Run(*backend_);
      test.ExpectEqual(test.Expected());
      const float value = testing::ToFp32(dtype, test.Result())[kSpike];
      if (dtype == Dtype::kBf16) {
        EXPECT_EQ(nonfinite, 0u);
        EXPECT_NEAR(value, 81920.0, Tolerance(81920.0)) << shape;
      } else if (GetParam() == Codec::kNone || algorithm == Algorithm::kOneShot) {
        EXPECT_EQ(nonfinite, 1u);
        EXPECT_EQ(value, INFINITY) << shape;
      } else {
        EXPECT_EQ(nonfinite, GroupElements());
        ExpectOnlyGroupIsNaN(dtype, test.Result(), kSpike);
      }
    }
  }
}

// 4 KiB a hundred times, 1 MiB, and 64 MiB in place (rows that repeat, to make it quickly).
TEST_P(FieldFailuresTest, F06AllRanksHoldTheSameBytes) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (uint64_t run = 0; run < 100; ++run) {
      const CaseShape shape = Shape(algorithm, Dtype::kBf16, 4, 2048);
      CollectiveCase(shape, MakeInputs(shape, testing::GaussValues, run)).Run(*backend_);
    }
    CaseShape shape = Shape(algorithm, Dtype::kBf16, 4, uint64_t{1} << 19);
    const std::vector<Bytes> inputs = MakeInputs(shape, testing::GaussValues, 6);
    CollectiveCase(shape, inputs).Run(*backend_);
  }
  CaseShape shape = Shape(Algorithm::kTwoShot, Dtype::kBf16, 4, uint64_t{1} << 25);
  shape.in_place_mask = testing::kAllInPlace;
  const CaseShape row = Shape(Algorithm::kTwoShot, Dtype::kBf16, 4, (uint64_t{1} << 19) + 1);
  std::vector<Bytes> inputs = MakeInputs(row, testing::GaussValues, 7);
  for (Bytes& input : inputs) {
    const uint64_t row_bytes = input.size();
    input.resize(shape.TensorBytes());
    for (uint64_t at = row_bytes; at < input.size(); ++at) input[at] = input[at - row_bytes];
  }
  CollectiveCase(shape, std::move(inputs)).Run(*backend_);
}

TEST_P(FieldFailuresTest, F10CountsThatNothingDivides) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const uint32_t n : {2u, 3u, 4u, 8u}) {
      for (const uint64_t count : {1u, 7u, 31u, 33u, 4095u, 4097u, 1'000'003u}) {
        const CaseShape shape = Shape(algorithm, Dtype::kBf16, n, count);
        CollectiveCase test(shape, MakeInputs(shape, testing::MixedValues, count));
        test.RunAndCompare(*backend_);
      }
    }
  }
}

TEST_P(FieldFailuresTest, F12NoValueIsAMark) {
  constexpr uint64_t kCount = 2500;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
      const auto filled = [](uint16_t bits) {
        Bytes tensor(kCount * 2);
        for (uint64_t i = 0; i < kCount; ++i) std::memcpy(&tensor[2 * i], &bits, 2);
        return tensor;
      };
      Bytes mix = filled(0);
      for (uint64_t i = 0; i < kCount; ++i) {
        const uint16_t bits[] = {0x0000, 0x8000, 0x8001, 0xFFFF, 0x8001};
        std::memcpy(&mix[2 * i], &bits[i / 32 % 7 == 3 ? 3 : i % 3], 2);
      }
      for (const Bytes& tensor :
           {filled(0x0000), filled(0x8000), filled(0x8001), filled(0xFFFF), mix}) {
        const CaseShape shape = Shape(algorithm, dtype, 2, kCount);
        CollectiveCase test(shape, {tensor, tensor});
        test.RunAndCompare(*backend_);
        if (GetParam() == Codec::kNone && tensor == filled(0x8000)) {
          EXPECT_TRUE(test.Result() == filled(0x8000)) << shape;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllCodecs, FieldFailuresTest, ::testing::ValuesIn(kAllCodecs),
                         [](const ::testing::TestParamInfo<Codec>& param) {
                           return std::string(Name(param.param));
                         });

}  // namespace
}  // namespace qrd
