// SPDX-License-Identifier: Apache-2.0
// Failures of fused epilogues that were seen elsewhere (F45 to F48 of the list of field failures),
// on the host backend.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "rms_norm_case.h"
#include "rms_norm_run.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::ExpectSameResults;
using testing::RmsNormCase;
using testing::RmsNormResults;
using testing::RmsNormShape;
using testing::RmsNormTensors;

class EpilogueFailuresTest : public ::testing::TestWithParam<Codec> {
 protected:
  RmsNormShape Shape(uint32_t world_size, uint64_t tokens, uint32_t hidden) const {
    RmsNormShape shape;
    shape.codec = GetParam();
    shape.world_size = world_size;
    shape.tokens = tokens;
    shape.hidden = hidden;
    shape.algorithm =
        backend_->AutoAlgorithm(shape.codec, shape.dtype, 2 * tokens * hidden, world_size);
    return shape;
  }
  std::vector<RmsNormResults> Run(RmsNormCase& test) const {
    const absl::Status status = backend_->Validate(test.params());
    EXPECT_TRUE(status.ok()) << status.ToString() << ": " << test.shape();
    if (status.ok()) testing::RunAllUnits(*backend_, test.params());
    test.ExpectNothingElseWritten();
    std::vector<RmsNormResults> results;
    for (uint32_t r = 0; r < test.shape().world_size; ++r) {
      results.push_back(test.Results(r));
      ExpectSameResults(test.shape(), results[r], results[0], "rank " + std::to_string(r));
    }
    return results;
  }
  std::vector<RmsNormResults> Run(const RmsNormShape& shape, const RmsNormTensors& tensors) const {
    RmsNormCase test(shape, tensors);
    return Run(test);
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
};

TEST_P(EpilogueFailuresTest, F45TheReducedValueIsRoundedBeforeTheResidual) {
  for (const uint64_t tokens : {1u, 4u, 128u}) {
    const RmsNormShape shape = Shape(4, tokens, 4096);
    const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, tokens);
    const Bytes got = Run(shape, tensors)[0].residual_out;

    RmsNormCase memory(shape, tensors);
    LaunchParams plain = memory.params();
    plain.epilogue = Epilogue::kNone;
    std::vector<Bytes> reduced(4, Bytes(shape.Count() * 2));
    for (uint32_t r = 0; r < 4; ++r) plain.outputs[r] = reduced[r].data();
    ASSERT_TRUE(backend_->Validate(plain).ok());
    backend_->Run(plain, {0, backend_->UnitCount(plain)});
    std::vector<float> sum = testing::ToFp32(Dtype::kBf16, reduced[0]);
    const std::vector<float> residual = testing::ToFp32(Dtype::kBf16, tensors.residuals[0]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += residual[i];
    testing::ExpectSameTensor("residual_out", got, testing::ToDtype(Dtype::kBf16, sum), 2, 4096,
                              "a bf16 add after the plain all-reduce");
  }
}

TEST_P(EpilogueFailuresTest, F46WeightsOfEitherDtype) {
  RmsNormShape shape = Shape(2, 3, 4096);
  RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, 46);
  const auto run = [&](Dtype weight_dtype, float weight) {
    shape.weight_dtype = weight_dtype;
    tensors.weights = {testing::ToDtype(weight_dtype, std::vector<float>(4096, weight))};
    const RmsNormResults got = Run(shape, tensors)[0];
    ExpectSameResults(shape, got, testing::ReferenceResults(shape, tensors)[0], "reference");
    return got;
  };
  const RmsNormResults ones = run(Dtype::kBf16, 1.0f);
  EXPECT_TRUE(run(Dtype::kFp32, 1.0f) == ones);
  EXPECT_FALSE(run(Dtype::kFp32, 1.001f) == ones);
  run(Dtype::kBf16, 1.0078125f);
  run(Dtype::kBf16, 3.140625f);
}

TEST_P(EpilogueFailuresTest, F47AMissingResidualIsZero) {
  RmsNormShape shape = Shape(2, 5, 2880);
  shape.quant = Quant::kE4m3fn;
  shape.mirror = true;
  RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, 47);
  tensors.residuals = {Bytes(shape.Count() * 2)};
  const RmsNormResults with_zero = Run(shape, tensors)[0];
  shape.has_residual = false;
  RmsNormCase without(shape, tensors);
  // What a call that reads its outputs would meet.
  for (uint32_t r = 0; r < 2; ++r) {
    const RmsNormParams& p = without.params().rms_norm;
    std::memset(p.residual_out[r], 0xFF, shape.Count() * 2);
    std::memset(p.mirror[r], 0xFF, shape.Count() * 2);
    std::memset(p.out8[r], 0xFF, shape.Count());
    std::memset(p.scales[r], 0xFF, shape.tokens * sizeof(float));
  }
  ExpectSameResults(shape, Run(without)[0], with_zero, "a residual of +0");
}

TEST_P(EpilogueFailuresTest, F48EveryWidthGivesAllOfEachRow) {
  uint64_t variant = 0;
  for (const uint32_t hidden : {1024u, 2880u, 3584u, 5120u, 6144u, 6160u, 6176u, 7168u, 8192u}) {
    for (const uint32_t n : {2u, 4u}) {
      RmsNormShape shape = Shape(n, 13, hidden);
      const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, hidden + n);
      shape.quant = static_cast<Quant>(variant++ % 3);
      shape.mirror = shape.quant != Quant::kNone;
      const RmsNormResults got = Run(shape, tensors)[0];
      ExpectSameResults(shape, got, testing::ReferenceResults(shape, tensors)[0], "reference");
      EXPECT_FALSE(got.residual_out == (shape.mirror ? got.mirror : got.out)) << shape;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, EpilogueFailuresTest,
                         ::testing::Values(Codec::kNone, Codec::kInt4),
                         [](const ::testing::TestParamInfo<Codec>& param) {
                           return std::string(Name(param.param));
                         });

}  // namespace
}  // namespace qrd
