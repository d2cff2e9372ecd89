// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm on every backend that runs units: golden files, the scalar reference over
// shapes, codecs, options and special values, and the separate steps, all byte for byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "epilogue_golden.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "rms_norm_case.h"
#include "rms_norm_run.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::ExpectSameResults;
using testing::RmsNormCase;
using testing::RmsNormResults;
using testing::RmsNormShape;
using testing::RmsNormTensors;

class RmsNormTest : public ::testing::Test {
 protected:
  // Runs the case whole and compares every rank with the results of the reference.
  void RunAndCompare(const RmsNormShape& shape, const RmsNormTensors& tensors,
                     const std::vector<RmsNormResults>& expected, const testing::Runner& runner) {
    RmsNormCase test(shape, tensors);
    const absl::Status status = backend_->Validate(test.params());
    ASSERT_TRUE(status.ok()) << status.ToString() << ": " << shape;
    runner(*backend_, test.params());
    test.ExpectNothingElseWritten();
    for (uint32_t r = 0; r < shape.world_size; ++r) {
      ExpectSameResults(shape, test.Results(r), expected[r], "rank " + std::to_string(r));
    }
  }
  void RunAndCompare(const RmsNormShape& shape, const RmsNormTensors& tensors) {
    RunAndCompare(shape, tensors, testing::ReferenceResults(shape, tensors), testing::RunAllUnits);
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
};

TEST_F(RmsNormTest, EveryGoldenCaseGivesTheGoldenBytes) {
  for (const std::string& folder : testing::EpilogueGoldenFolders()) {
    int checked = 0;
    for (const testing::EpilogueGolden& golden : testing::EpilogueGoldenFolder(folder).Load()) {
      SCOPED_TRACE(golden.name);
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        for (const bool in_place : {false, true}) {
          RmsNormShape shape = golden.shape;
          shape.algorithm = algorithm;
          shape.residual_in_place = in_place && shape.has_residual;
          shape.output_in_place = in_place;
          const std::vector<RmsNormResults> expected(shape.world_size, golden.expected);
          RunAndCompare(shape, golden.tensors, expected, testing::RunAllUnits);
          RunAndCompare(shape, golden.tensors, expected, testing::RunUnitsBackwards);
        }
      }
      ++checked;
    }
    EXPECT_GT(checked, 0) << folder;
  }
}

// Options of the cases below, so that each shape meets others of them.
RmsNormShape Varied(uint64_t variant, uint64_t tokens, uint32_t hidden) {
  RmsNormShape shape;
  shape.tokens = tokens;
  shape.hidden = hidden;
  shape.dtype = variant % 2 == 0 ? Dtype::kBf16 : Dtype::kFp16;
  shape.algorithm = variant / 2 % 2 == 0 ? Algorithm::kTwoShot : Algorithm::kOneShot;
  shape.gemma = variant / 4 % 2 != 0;
  shape.quant = static_cast<Quant>(variant % 3);
  shape.mirror = shape.quant != Quant::kNone && variant / 3 % 2 != 0;
  shape.scale_group = shape.quant != Quant::kNone && variant % 5 < 2 ? kScaleGroup : 0;
  shape.divisor = shape.quant != Quant::kNone && variant % 7 == 3 ? 224.0f : 0;
  shape.weight_dtype = variant % 4 == 1 ? Dtype::kFp32 : shape.dtype;
  shape.has_residual = variant % 11 != 0;
  shape.residual_in_place = shape.has_residual && variant % 5 % 2 == 0;
  shape.output_in_place = variant % 3 != 1;
  shape.offset_bytes = variant % 13 == 2 ? 16 : 0;
  return shape;
}

TEST_F(RmsNormTest, EveryCodecOptionAndRankCountGivesTheReferenceBytes) {
  uint64_t variant = 0;
  for (const Codec codec : kAllCodecs) {
    for (uint32_t n = 1; n <= kWorldSizeMax; ++n) {
      for (const auto& [tokens, hidden] : std::vector<std::pair<uint64_t, uint32_t>>{
               {1, 8}, {7, 8}, {n - 1, 136}, {5, 1000}, {3, 2048}, {40, 24}}) {
        if (tokens == 0) continue;
        RmsNormShape shape = Varied(variant, tokens, hidden);
        shape.codec = codec;
        shape.world_size = n;
        RunAndCompare(shape, testing::MakeRmsNormTensors(shape, variant));
        ++variant;
      }
    }
  }
}

// (codec, world size)
using Plan = std::tuple<Codec, uint32_t>;
class RmsNormShapesTest : public RmsNormTest, public ::testing::WithParamInterface<Plan> {};

// Widths of models and those around a wave, rows that end anywhere in a tile.
TEST_P(RmsNormShapesTest, GivesTheReferenceBytes) {
  const auto [codec, n] = GetParam();
  uint64_t variant = n;
  for (const auto& [tokens, hidden] : std::vector<std::pair<uint64_t, uint32_t>>{{1, 2880},
                                                                                 {2, 2880},
                                                                                 {n - 1, 2880},
                                                                                 {12, 6144},
                                                                                 {5, 6160},
                                                                                 {5, 6176},
                                                                                 {3, 7168},
                                                                                 {2, 8192},
                                                                                 {2, 16376},
                                                                                 {3, 16384}}) {
    // Both dtypes and norm kinds, and all three kinds of output, for every shape.
    for (int i = 0; i < 4; ++i) {
      RmsNormShape shape = Varied(variant, tokens, hidden);
      shape.codec = codec;
      shape.world_size = n;
      RunAndCompare(shape, testing::MakeRmsNormTensors(shape, variant));
      variant += 5;
    }
  }
}

// Threads take units in any order while outputs take the memory of the inputs.
TEST_P(RmsNormShapesTest, ThreadsOnDisjointUnitsInPlace) {
  const auto [codec, n] = GetParam();
  for (const uint32_t hidden : {8u, 136u, 6160u, 6176u}) {
    RmsNormShape shape = Varied(n, 60'000 / hidden + 3, hidden);
    shape.codec = codec;
    shape.world_size = n;
    shape.quant = Quant::kE4m3fn;
    shape.mirror = shape.output_in_place = shape.has_residual = shape.residual_in_place = true;
    const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, hidden);
    const std::vector<RmsNormResults> expected = testing::ReferenceResults(shape, tensors);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      RunAndCompare(shape, tensors, expected, [&](Backend& backend, const LaunchParams& params) {
        return testing::RunOnThreads(backend, params, 4, seed);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, RmsNormShapesTest,
                         ::testing::Combine(::testing::Values(Codec::kNone, Codec::kInt4,
                                                              Codec::kLp3, Codec::kInt3,
                                                              Codec::kLp3c),
                                            ::testing::Values(2u, 3u, 4u, 8u)),
                         [](const ::testing::TestParamInfo<Plan>& param) {
                           return std::string(Name(std::get<0>(param.param))) + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// The shapes of the issue, whole operations: against the separate steps, since the reference would
// take minutes.
TEST_F(RmsNormTest, FusedEqualsTheSeparateSteps) {
  uint64_t variant = 0;
  for (const auto& [tokens, hidden] : std::vector<std::pair<uint64_t, uint32_t>>{
           {12, 6144}, {511, 6144}, {512, 6144}, {513, 6144}, {513, 6176}, {513, 6160}}) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3, Codec::kInt3}) {
      RmsNormShape shape = Varied(variant, tokens, hidden);
      shape.codec = codec;
      shape.world_size = variant % 3 == 2 ? 4 : 2;
      const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, variant);
      RmsNormCase separate(shape, tensors);
      testing::RunSeparateSteps(*backend_, separate.params());
      std::vector<RmsNormResults> expected;
      for (uint32_t r = 0; r < shape.world_size; ++r) expected.push_back(separate.Results(r));
      RunAndCompare(shape, tensors, expected, testing::RunAllUnits);
      ++variant;
    }
  }
}

TEST_F(RmsNormTest, TheSeparateStepsGiveTheReferenceBytes) {
  for (uint64_t variant = 0; variant < 24; ++variant) {
    for (const uint32_t hidden : {8u, 200u, 6176u}) {
      const RmsNormShape shape = Varied(variant, 3, hidden);
      const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, variant);
      const std::vector<RmsNormResults> expected = testing::ReferenceResults(shape, tensors);
      RmsNormCase test(shape, tensors);
      testing::RunSeparateSteps(*backend_, test.params(), /*add_and_norm_apart=*/variant % 2 != 0);
      for (uint32_t r = 0; r < shape.world_size; ++r) {
        ExpectSameResults(shape, test.Results(r), expected[r], "rank " + std::to_string(r));
      }
    }
  }
}

TEST_F(RmsNormTest, EveryInstructionSetGivesTheReferenceBytes) {
  for (uint64_t variant = 0; variant < 12; ++variant) {
    for (const uint32_t hidden : {8u, 16u, 24u, 200u, 1032u, 6176u}) {
      RmsNormShape shape = Varied(variant, 2, hidden);
      shape.codec = variant % 3 == 0 ? Codec::kInt6 : Codec::kNone;
      RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, variant);
      if (variant % 2 == 0) {
        for (Bytes& input : tensors.inputs) {
          input = testing::RandomBits(shape.dtype, shape.Count(), variant + hidden);
        }
      }
      const std::vector<RmsNormResults> expected = testing::ReferenceResults(shape, tensors);
      testing::ForEachSimdTarget([&] {
        RunAndCompare(shape, tensors, expected, testing::RunAllUnits);
        RmsNormCase separate(shape, tensors);
        testing::RunSeparateSteps(*backend_, separate.params());
        ExpectSameResults(shape, separate.Results(1), expected[1], "separate steps");
      });
    }
  }
}

// What is "not checked": ranks with residuals or weights of their own get results of their own.
TEST_F(RmsNormTest, RanksWithOtherOperandsGetTheirOwnResults) {
  for (const bool in_place : {false, true}) {
    RmsNormShape shape = Varied(5, 5, 1000);
    shape.world_size = 5;
    shape.has_residual = true;
    shape.residual_in_place = shape.output_in_place = in_place;
    RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, 1);
    tensors.residuals.assign(5, tensors.residuals[0]);
    tensors.weights.assign(5, tensors.weights[0]);
    testing::SetElement(shape.dtype, tensors.residuals[1], 1500, 7.5f);  // rank 1: row 1 only
    testing::SetElement(shape.weight_dtype, tensors.weights[3], 999, 3.5f);
    testing::SetElement(shape.weight_dtype, tensors.weights[4], 999, 3.5f);
    RunAndCompare(shape, tensors);
  }
}

TEST_F(RmsNormTest, UnitsAreWholeRowsThatEndWithAGroup) {
  for (const Codec codec : kAllCodecs) {
    for (uint32_t hidden = kHiddenMin; hidden <= kHiddenMax; hidden += 8 * (1 + hidden % 7)) {
      LaunchParams params;
      params.codec = codec;
      params.dtype = Dtype::kBf16;
      params.world_size = 2;
      params.epilogue = Epilogue::kRmsNorm;
      params.rms_norm.hidden = hidden;
      params.rms_norm.tokens = 100'000;
      params.count = params.rms_norm.tokens * hidden;
      const uint64_t units = backend_->UnitCount(params);
      ASSERT_GE(units, 1u);
      ASSERT_LE(units, TileCount(params.count));
      // At most 16 rows of 16384 elements; 100,000 rows are many units.
      ASSERT_GE(units, params.count / (16 * kHiddenMax) / 2) << hidden;
    }
  }
}

}  // namespace
}  // namespace qrd
