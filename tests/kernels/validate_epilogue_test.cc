// SPDX-License-Identifier: Apache-2.0
// What an operation with RMSNorm is refused for, and with which words. Nothing is written by an
// operation that is refused, since validation reads no tensor.
#include "kernels/validate_epilogue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/types.h"

namespace qrd {
namespace {

// Addresses only: validation reads no tensor, so none has to exist.
constexpr uint64_t kSlot = 1 << 20;
void* At(uint64_t slot, uint64_t offset = 0) {
  return reinterpret_cast<void*>((slot + 1) * kSlot + offset);
}

// A good operation of two ranks, [5, 200] with FP8 and mirror; tests break one thing each.
class ValidateEpilogueTest : public ::testing::Test {
 protected:
  ValidateEpilogueTest() {
    params_.dtype = Dtype::kBf16;
    params_.world_size = 2;
    params_.count = 1000;
    params_.epilogue = Epilogue::kRmsNorm;
    n_.tokens = 5;
    n_.hidden = 200;
    n_.eps = 1e-6f;
    n_.quant = Quant::kE4m3fn;
    for (uint32_t r = 0; r < 2; ++r) {
      params_.inputs[r] = At(10 * r);
      n_.residual[r] = At(10 * r + 1);
      n_.weight[r] = At(10 * r + 2);
      n_.residual_out[r] = At(10 * r + 3);
      n_.out8[r] = static_cast<uint8_t*>(At(10 * r + 4));
      n_.scales[r] = static_cast<float*>(At(10 * r + 5));
      n_.mirror[r] = At(10 * r + 6);
    }
  }
  // The same operation without FP8.
  void UseNoQuant() {
    n_.quant = Quant::kNone;
    for (uint32_t r = 0; r < 2; ++r) {
      n_.out8[r] = nullptr;
      n_.scales[r] = nullptr;
      n_.mirror[r] = nullptr;
      n_.out[r] = At(10 * r + 7);
    }
  }
  void ExpectOk() {
    EXPECT_TRUE(ValidateRmsNorm(params_).ok()) << ValidateRmsNorm(params_).ToString();
    EXPECT_TRUE(backend_->Validate(params_).ok()) << backend_->Validate(params_).ToString();
  }
  void ExpectError(const std::string& text) {
    const absl::Status status = ValidateRmsNorm(params_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_EQ(std::string(status.message()), text);
    EXPECT_EQ(backend_->Validate(params_), status);
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
  LaunchParams params_;
  RmsNormParams& n_ = params_.rms_norm;
};

TEST_F(ValidateEpilogueTest, AcceptsEveryKindOfOutput) {
  ExpectOk();
  n_.mirror[0] = n_.mirror[1] = nullptr;
  n_.scale_group = 128;
  n_.divisor = 224;
  n_.weight_dtype = Dtype::kFp32;
  ExpectOk();
  n_.residual[0] = n_.residual[1] = nullptr;
  n_.quant = Quant::kE4m3fnuz;
  ExpectOk();
  n_.scale_group = 0;
  n_.divisor = 0;
  UseNoQuant();
  ExpectOk();
}

TEST_F(ValidateEpilogueTest, AcceptsTheAllowedAliases) {
  for (uint32_t r = 0; r < 2; ++r) {
    n_.residual_out[r] = const_cast<void*>(n_.residual[r]);
    n_.mirror[r] = const_cast<void*>(params_.inputs[r]);
  }
  n_.weight[1] = n_.weight[0];  // inputs may overlap each other
  ExpectOk();
  UseNoQuant();
  n_.out[1] = const_cast<void*>(params_.inputs[1]);
  ExpectOk();
}

TEST_F(ValidateEpilogueTest, Shape) {
  params_.dtype = Dtype::kFp32;
  ExpectError("dtype = fp32: want fp16 or bf16 with epilogue rms_norm");
  params_.dtype = Dtype::kBf16;
  params_.op = ReduceOp::kAvg;
  ExpectError("op = avg: want sum with epilogue rms_norm");
  params_.op = ReduceOp::kSum;
  params_.world_size = 17;
  ExpectError("world_size = 17: want 1 to 16");
  params_.world_size = 2;
  n_.tokens = 0;
  ExpectError("tokens = 0: want at least 1");
  n_.tokens = uint64_t{1} << 56;
  ExpectError("tokens = 72057594037927936: want at most 23058430092136939 with hidden = 200");
  n_.tokens = 5;
  for (const uint32_t hidden : {0u, 4u, 204u, 16392u, 0xFFFFFFF8u}) {
    n_.hidden = hidden;
    ExpectError("hidden = " + std::to_string(hidden) + ": want a multiple of 8 from 8 to 16384");
  }
  n_.hidden = 208;
  ExpectError("count = 1000: want tokens * hidden = 1040");
}

TEST_F(ValidateEpilogueTest, Options) {
  for (const auto& [eps, text] : std::vector<std::pair<float, std::string>>{
           {NAN, "nan"}, {INFINITY, "inf"}, {0.0f, "0"}, {-1e-6f, "-1e-06"}, {1e-20f, "1e-20"}}) {
    n_.eps = eps;
    ExpectError("eps = " + text + ": want a finite number of at least 2^-64");
  }
  n_.eps = kEpsMin;
  ExpectOk();
  n_.weight_dtype = Dtype::kFp16;
  ExpectError("weight_dtype = fp16 (1): want bf16 or fp32");
  n_.weight_dtype = static_cast<Dtype>(77);
  ExpectError("weight_dtype = unknown (77): want bf16 or fp32");
  n_.weight_dtype = Dtype::kBf16;
  n_.quant = static_cast<Quant>(9);
  ExpectError("quant = 9: want none (0), e4m3fn (1) or e4m3fnuz (2)");
  n_.quant = Quant::kE4m3fn;
  n_.scale_group = 64;
  ExpectError("scale_group = 64: want 0 or 128");
  n_.scale_group = 0;
  for (const auto& [divisor, text] : std::vector<std::pair<float, std::string>>{
           {NAN, "nan"}, {INFINITY, "inf"}, {-0.0f, "-0"}, {-1.0f, "-1"}, {449.0f, "449"}}) {
    n_.divisor = divisor;
    ExpectError("divisor = " + text +
                ": want a number above 0 and at most 448 with quant = e4m3fn, or 0 for 448");
  }
  n_.divisor = 448;
  ExpectOk();
  n_.quant = Quant::kE4m3fnuz;
  ExpectError(
      "divisor = 448: want a number above 0 and at most 240 with quant = e4m3fnuz, or 0 for 240");
}

TEST_F(ValidateEpilogueTest, TensorsThatAreMissing) {
  params_.inputs[1] = nullptr;
  ExpectError("input[1] = null: want 2000 bytes");
  params_.inputs[1] = At(10);
  n_.weight[0] = nullptr;
  ExpectError("weight[0] = null: want 400 bytes");
  n_.weight[0] = At(2);
  n_.residual_out[1] = nullptr;
  ExpectError("residual_out[1] = null: want 2000 bytes");
  n_.residual_out[1] = At(13);
  n_.out8[0] = nullptr;
  ExpectError("out8[0] = null: want 1000 bytes");
  n_.out8[0] = static_cast<uint8_t*>(At(4));
  n_.scales[1] = nullptr;
  ExpectError("scales[1] = null: want 20 bytes");
  n_.scale_group = 128;
  ExpectError("scales[1] = null: want 40 bytes");
  n_.scales[1] = static_cast<float*>(At(15));
  n_.mirror[0] = nullptr;
  ExpectError("mirror[0] = null: want it on all ranks or on none, rank 1 has it");
  n_.mirror[0] = At(6);
  n_.residual[1] = nullptr;
  ExpectError("residual[1] = null: want it on all ranks or on none, rank 0 has it");
}

TEST_F(ValidateEpilogueTest, TensorsThatDoNotGoWithQuant) {
  n_.out[1] = At(17);
  ExpectError("out[1] is given: want null with quant = e4m3fn (the 16-bit copy is mirror)");
  n_.out[1] = nullptr;
  UseNoQuant();
  n_.out[0] = nullptr;
  ExpectError("out[0] = null: want 2000 bytes");
  n_.out[0] = At(7);
  n_.out8[0] = static_cast<uint8_t*>(At(4));
  ExpectError("out8[0] is given: want null with quant = none");
  n_.out8[0] = nullptr;
  n_.scales[1] = static_cast<float*>(At(5));
  ExpectError("scales[1] is given: want null with quant = none");
  n_.scales[1] = nullptr;
  n_.mirror[0] = At(6);
  ExpectError("mirror[0] is given: want null with quant = none");
  n_.mirror[0] = nullptr;
  n_.scale_group = 128;
  ExpectError("scale_group = 128: want 0 with quant = none");
  n_.scale_group = 0;
  n_.divisor = 448;
  ExpectError("divisor = 448: want 0 with quant = none");
}

TEST_F(ValidateEpilogueTest, TensorsAtBadAddresses) {
  params_.inputs[0] = At(0, 8);
  ExpectError("input[0] is misaligned: address % 16 = 8, want 0");
  params_.inputs[0] = At(0);
  n_.residual[1] = At(11, 2);
  ExpectError("residual[1] is misaligned: address % 16 = 2, want 0");
  n_.residual[1] = At(11);
  n_.weight[0] = At(2, 4);
  ExpectError("weight[0] is misaligned: address % 16 = 4, want 0");
  n_.weight[0] = At(2);
  n_.residual_out[0] = At(3, 1);
  ExpectError("residual_out[0] is misaligned: address % 16 = 1, want 0");
  n_.residual_out[0] = At(3);
  n_.out8[1] = static_cast<uint8_t*>(At(14, 12));
  ExpectError("out8[1] is misaligned: address % 8 = 4, want 0");
  n_.out8[1] = static_cast<uint8_t*>(At(14));
  n_.scales[0] = static_cast<float*>(At(5, 6));
  ExpectError("scales[0] is misaligned: address % 4 = 2, want 0");
  n_.scales[0] = static_cast<float*>(At(5));
  n_.mirror[0] = At(6, 8);
  ExpectError("mirror[0] is misaligned: address % 16 = 8, want 0");
  n_.mirror[0] = reinterpret_cast<void*>(std::numeric_limits<uint64_t>::max() - 1007);
  ExpectError("mirror[0]: 2000 bytes reach past the end of the address space");
}

TEST_F(ValidateEpilogueTest, OverlapOfResidualOut) {
  const auto overlap = [](const char* other) {
    return std::string("residual_out[0] (2000 bytes) overlaps ") + other +
           ": want it equal to residual of its rank or disjoint from every other tensor";
  };
  n_.residual_out[0] = At(1, 1984);  // partial
  ExpectError(overlap("residual[0] (2000 bytes)"));
  n_.residual_out[0] = At(11);  // residual of another rank
  ExpectError(overlap("residual[1] (2000 bytes)"));
  n_.residual_out[0] = At(0);
  ExpectError(overlap("input[0] (2000 bytes)"));
  n_.residual_out[0] = At(12, 384);  // the last 16 bytes of a weight
  ExpectError(overlap("weight[1] (400 bytes)"));
  n_.residual_out[0] = At(12, 400);
  ExpectOk();
  n_.residual_out[0] = At(13);
  ExpectError(overlap("residual_out[1] (2000 bytes)"));
  n_.residual_out[0] = At(5, 16);  // the last 4 bytes of scales
  ExpectError(overlap("scales[0] (20 bytes)"));
  // The rank's own residual, which is another rank's too.
  n_.residual[1] = n_.residual[0];
  n_.residual_out[0] = At(1);
  ExpectError(overlap("residual[1] (2000 bytes)"));
}

TEST_F(ValidateEpilogueTest, OverlapOfTheOtherOutputs) {
  n_.out8[0] = static_cast<uint8_t*>(At(0));
  ExpectError(
      "out8[0] (1000 bytes) overlaps input[0] (2000 bytes): want it disjoint from every other "
      "tensor");
  n_.out8[0] = static_cast<uint8_t*>(At(4));
  n_.scales[1] = static_cast<float*>(At(6));
  ExpectError(
      "mirror[0] (2000 bytes) overlaps scales[1] (20 bytes): want it equal to input of its rank or "
      "disjoint from every other tensor");
  n_.scales[1] = static_cast<float*>(At(15));
  const std::string want =
      ": want it equal to input of its rank or disjoint from every other tensor";
  n_.mirror[1] = At(0);
  ExpectError("mirror[1] (2000 bytes) overlaps input[0] (2000 bytes)" + want);
  n_.mirror[1] = At(11);
  ExpectError("mirror[1] (2000 bytes) overlaps residual[1] (2000 bytes)" + want);
  UseNoQuant();
  n_.out[0] = At(1);
  ExpectError("out[0] (2000 bytes) overlaps residual[0] (2000 bytes)" + want);
  n_.out[0] = At(0, 16);
  ExpectError("out[0] (2000 bytes) overlaps input[0] (2000 bytes)" + want);
  // The rank's own input, which is also its residual.
  n_.residual[0] = params_.inputs[0];
  n_.out[0] = At(0);
  ExpectError("out[0] (2000 bytes) overlaps residual[0] (2000 bytes)" + want);
  n_.out[0] = At(7);
  n_.residual_out[0] = At(0);
  ExpectError(
      "residual_out[0] (2000 bytes) overlaps input[0] (2000 bytes): want it equal to residual of "
      "its rank or disjoint from every other tensor");
}

TEST_F(ValidateEpilogueTest, ShardedResiduals) {
  params_.algorithm = Algorithm::kTwoShot;
  n_.residual_layout = static_cast<ResidualLayout>(2);
  ExpectError("residual_layout = 2: want full (0) or sharded (1)");
  n_.residual_layout = ResidualLayout::kSharded;
  ExpectOk();
  params_.algorithm = Algorithm::kOneShot;
  ExpectError("algorithm = one_shot: want two_shot with residual_layout = sharded");
  params_.algorithm = Algorithm::kTwoShot;
  n_.residual_out[0] = At(3, 8);
  ExpectError("residual_out[0] is misaligned: address % 16 = 8, want 0");
  n_.residual_out[0] = nullptr;
  ExpectError("residual_out[0] = null: want 1200 bytes");
}

TEST_F(ValidateEpilogueTest, ARankWithoutRowsNeedsNoResidual) {
  params_.algorithm = Algorithm::kTwoShot;
  n_.residual_layout = ResidualLayout::kSharded;
  n_.tokens = 1;
  params_.count = n_.hidden;
  n_.residual[1] = n_.residual_out[1] = nullptr;
  ExpectOk();
  n_.residual_out[0] = nullptr;
  ExpectError("residual_out[0] = null: want 400 bytes");
}

TEST_F(ValidateEpilogueTest, UnknownEpiloguesAndPlansAreUnimplemented) {
  params_.codec = static_cast<Codec>(99);
  EXPECT_EQ(backend_->Validate(params_).code(), absl::StatusCode::kUnimplemented);
  params_.codec = Codec::kNone;
  params_.epilogue = static_cast<Epilogue>(7);
  const absl::Status status = backend_->Validate(params_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(std::string(status.message()), "epilogue = 7: the host backend has none, rms_norm");
}

}  // namespace
}  // namespace qrd
