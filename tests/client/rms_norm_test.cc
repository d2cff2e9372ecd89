// SPDX-License-Identifier: Apache-2.0
// qrd_all_reduce_rms_norm against a fake daemon: bad arguments, the descriptor, staged operands.
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/client/client_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kTokens = 3;
constexpr uint32_t kHidden = 264;  // 2.06 groups of scales
constexpr size_t kCount = kTokens * kHidden;

class RmsNormTest : public ClientTest {
 protected:
  void SetUp() override { Attach(); }

  // An operation with all operands in memory of the daemon.
  qrd_rms_norm Norm(bool quant) {
    auto* memory = static_cast<std::byte*>(Allocate(64 * kCount));
    qrd_rms_norm norm = QRD_RMS_NORM_INIT;
    norm.tokens = kTokens;
    norm.hidden = kHidden;
    norm.weight = memory;
    norm.residual = memory + 4096;
    norm.residual_out = memory + 8192;
    if (!quant) norm.out = memory + 12288;
    if (quant) {
      norm.quant = QRD_E4M3FN;
      norm.out8 = reinterpret_cast<uint8_t*>(memory + 16384);
      norm.scales = reinterpret_cast<float*>(memory + 20480);
      norm.mirror = memory + 24576;
    }
    input_ = memory + 28672;
    return norm;
  }
  std::string Try(const qrd_rms_norm& norm, qrd_dtype dtype = QRD_BF16) {
    qrd_operation operation = 0;
    return Outcome(qrd_all_reduce_rms_norm(comm_, input_, dtype, &norm, &operation));
  }

  const void* input_ = nullptr;
};

TEST_F(RmsNormTest, EachBadArgumentIsNamedAndNothingIsPosted) {
  struct Case {
    std::function<void(qrd_rms_norm*)> edit;
    bool quant;
    std::string want;
  };
  auto address = [](const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); };
  const std::vector<Case> cases = {
      {[](auto* n) { n->struct_bytes = 8; }, false, "norm.struct_bytes: 8, want sizeof"},
      {[](auto* n) { n->tokens = 0; }, false, "norm.tokens: 0, want at least 1"},
      {[](auto* n) { n->tokens = UINT64_MAX; }, false,
       "norm.tokens: 18446744073709551615, want at most"},
      {[](auto* n) { n->hidden = 0; }, false,
       "norm.hidden: 0, want a multiple of 8 from 8 to 16384"},
      {[](auto* n) { n->hidden = 12; }, false,
       "norm.hidden: 12, want a multiple of 8 from 8 to 16384"},
      {[](auto* n) { n->hidden = 16392; }, false,
       "norm.hidden: 16392, want a multiple of 8 from 8 to 16384"},
      {[](auto* n) { n->eps = 0; }, false, "norm.eps: 0, want a finite number of at least 2^-64"},
      {[](auto* n) { n->eps = -1; }, false, "norm.eps: -1, want"},
      {[](auto* n) { n->eps = NAN; }, false, "norm.eps: nan, want"},
      {[](auto* n) { n->eps = INFINITY; }, false, "norm.eps: inf, want"},
      {[](auto* n) { n->weight_dtype = QRD_FP16; }, false,
       "norm.weight_dtype: 1, want 2 (dtype) or QRD_FP32 (3)"},
      {[](auto* n) { n->quant = static_cast<qrd_quant>(3); }, true,
       "norm.quant: 3, want QRD_QUANT_NONE (0), QRD_E4M3FN (1) or QRD_E4M3FNUZ (2)"},
      {[](auto* n) { n->residual_layout = static_cast<qrd_residual_layout>(2); }, true,
       "norm.residual_layout: 2, want QRD_RESIDUAL_FULL (0) or QRD_RESIDUAL_SHARDED (1)"},
      {[](auto* n) { n->scale_group = 64; }, true, "norm.scale_group: 64, want 0 or 128"},
      {[](auto* n) { n->scale_group = 128; }, false, "norm.scale_group: 128, want 0 without quant"},
      {[](auto* n) { n->divisor = 449; }, true,
       "norm.divisor: 449, want 0 to 448, 0 for the largest"},
      {[](auto* n) { n->divisor = NAN; }, true, "norm.divisor: nan, want 0 to 448"},
      {[](auto* n) { n->divisor = -1; }, true, "norm.divisor: -1, want 0 to 448"},
      {[](auto* n) { n->divisor = -0.0f; }, true, "norm.divisor: -0, want 0 to 448"},
      {[](auto* n) { n->divisor = -0.0f; }, false, "norm.divisor: -0, want 0 without quant"},
      {[](auto* n) { n->divisor = 1; }, false, "norm.divisor: 1, want 0 without quant"},
      {[](auto* n) { n->weight = nullptr; }, false, "norm.weight: NULL, want a tensor"},
      {[](auto* n) { n->residual_out = nullptr; }, false, "norm.residual_out: NULL, want a tensor"},
      {[](auto* n) { n->out = nullptr; }, false, "norm.out: NULL, want a tensor without quant"},
      {[](auto* n) { n->out = n->mirror; }, true,
       "norm.out: not NULL, want NULL with quant (the 16-bit copy is mirror)"},
      {[](auto* n) { n->out8 = nullptr; }, true, "norm.out8: NULL, want a tensor with quant"},
      {[](auto* n) { n->scales = nullptr; }, true, "norm.scales: NULL, want a tensor with quant"},
      {[](auto* n) { n->scales = reinterpret_cast<float*>(64); }, false,
       "norm.scales: not NULL, want NULL without quant"},
      {[](auto* n) { n->mirror = n->residual_out; }, false,
       "norm.mirror: not NULL, want NULL without quant"},
      {[&](auto* n) { n->weight = address(n->weight) + 8; }, false, "is not aligned to 16 bytes"},
      {[&](auto* n) { n->out8 += 4; }, true, "is not aligned to 8 bytes"},
      {[&](auto* n) { n->out = address(n->residual_out) + 16; }, false,
       "overlaps norm.residual_out"},
      {[](auto* n) { n->out = const_cast<void*>(n->residual); }, false, "overlaps norm.residual"},
      {[](auto* n) { n->residual_out = const_cast<void*>(n->weight); }, false,
       "overlaps norm.weight"},
  };
  for (const Case& test : cases) {
    qrd_rms_norm norm = Norm(test.quant);
    test.edit(&norm);
    const std::string outcome = Try(norm);
    EXPECT_THAT(outcome, StartsWith("INVALID_ARGUMENT: ")) << test.want;
    EXPECT_THAT(outcome, HasSubstr(test.want));
  }
  EXPECT_THAT(Try(Norm(false), QRD_FP32), HasSubstr("dtype: 3, want QRD_FP16 (1) or QRD_BF16 (2)"));
  qrd_operation operation = 0;
  EXPECT_THAT(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, nullptr, &operation)),
              HasSubstr("norm: NULL"));
  // The next operation is the first one of the session.
  ASSERT_EQ(Try(Norm(false)), "");
  EXPECT_EQ(daemon_.NextPosted()->descriptor.sequence, 1u);
}

TEST_F(RmsNormTest, DescriptorHasEveryOperandAndOption) {
  qrd_rms_norm norm = Norm(true);
  norm.eps = 0.5f;
  norm.gemma = 7;
  norm.scale_group = 128;
  norm.divisor = 224;
  qrd_operation operation = 0;
  ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, &norm, &operation)), "");
  const auto posted = daemon_.NextPosted();
  const shm::Descriptor& d = posted->descriptor;
  EXPECT_EQ(d.kind, shm::Kind::kAllReduce);
  EXPECT_EQ(d.dtype, shm::Dtype::kBf16);
  EXPECT_EQ(d.op, shm::ReduceOp::kSum);
  EXPECT_EQ(d.count, kCount);
  EXPECT_EQ(d.epilogue, 1u);
  EXPECT_EQ(d.input.offset_bytes, 28672u);
  EXPECT_EQ(d.output.arena_id, 0u);
  EXPECT_EQ(d.rms_norm.weight.offset_bytes, 0u);
  EXPECT_EQ(d.rms_norm.residual.offset_bytes, 4096u);
  EXPECT_EQ(d.rms_norm.residual_out.offset_bytes, 8192u);
  EXPECT_EQ(d.rms_norm.out8.offset_bytes, 16384u);
  EXPECT_EQ(d.rms_norm.scales.offset_bytes, 20480u);
  EXPECT_EQ(d.rms_norm.mirror.offset_bytes, 24576u);
  EXPECT_EQ(d.rms_norm.tokens, kTokens);
  EXPECT_EQ(d.rms_norm.hidden, kHidden);
  EXPECT_EQ(d.rms_norm.eps_bits, 0x3F000000u);
  EXPECT_EQ(d.rms_norm.divisor_bits, 0x43600000u);
  EXPECT_EQ(d.rms_norm.scale_group, 128u);
  EXPECT_EQ(d.rms_norm.quant, 1);
  EXPECT_EQ(d.rms_norm.gemma, 1);
  EXPECT_EQ(d.rms_norm.weight_dtype, 2);
  EXPECT_EQ(d.rms_norm.operands, 3);
  EXPECT_EQ(d.rms_norm.residual_layout, 0);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

// A program that was built with a header of before the layout: what follows its struct is not read.
TEST_F(RmsNormTest, AnOlderStructHasTheFullResidual) {
  qrd_rms_norm norm = Norm(false);
  norm.struct_bytes = offsetof(qrd_rms_norm, mirror) + sizeof(void*);
  norm.residual_layout = QRD_RESIDUAL_SHARDED;
  qrd_operation operation = 0;
  ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, &norm, &operation)), "");
  const auto posted = daemon_.NextPosted();
  EXPECT_EQ(posted->descriptor.rms_norm.residual_layout, 0);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

class TwoRanksRmsNormTest : public RmsNormTest {
 protected:
  void SetUp() override {
    qrd_comm_config config = Config();
    config.world_size = 2;
    ASSERT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  }
};

TEST_F(TwoRanksRmsNormTest, AShardedResidualHasTheOwnRowsOnly) {
  uint64_t first = 99, count = 99;
  ASSERT_EQ(Outcome(qrd_owned_rows(comm_, kTokens, &first, &count)), "");
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(count, 2u);  // rank 0 of two
  EXPECT_EQ(Outcome(qrd_owned_rows(comm_, 0, &first, &count)),
            "INVALID_ARGUMENT: tokens: 0, want at least 1");
  EXPECT_EQ(Outcome(qrd_owned_rows(comm_, 1, nullptr, &count)), "INVALID_ARGUMENT: first: NULL");
  qrd_rms_norm norm = Norm(false);
  norm.residual_layout = QRD_RESIDUAL_SHARDED;
  // Behind two of three rows begins another tensor.
  norm.out = static_cast<std::byte*>(norm.residual_out) + 2 * kHidden * 2;
  qrd_operation operation = 0;
  ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, &norm, &operation)), "");
  const auto posted = daemon_.NextPosted();
  EXPECT_EQ(posted->descriptor.rms_norm.residual_layout, 1);
  EXPECT_EQ(posted->descriptor.rms_norm.operands, 1);
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
  norm.residual_layout = QRD_RESIDUAL_FULL;
  EXPECT_THAT(Try(norm), HasSubstr("norm.out: "));
}

TEST_F(RmsNormTest, APlainOperationInTheSameSlotHasNoneOfIt) {
  auto* x = static_cast<float*>(Allocate(4096));
  for (int i = 0; i < 200; ++i) {  // more than there are slots
    qrd_operation operation = 0;
    if (i % 2 == 0) {
      const qrd_rms_norm norm = Norm(false);
      ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, &norm, &operation)), "");
    } else {
      operation = Post(x, x, 16);
    }
    const auto posted = daemon_.NextPosted();
    if (i % 2 != 0) {
      const shm::RmsNorm nothing{};
      ASSERT_EQ(posted->descriptor.epilogue, 0u);
      ASSERT_EQ(std::memcmp(&posted->descriptor.rms_norm, &nothing, sizeof(nothing)), 0);
    }
    daemon_.Complete(*posted, QRD_OK);
    ASSERT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
  }
}

// Memory of the caller's own: what is read goes to the daemon, what is written comes back.
TEST_F(RmsNormTest, OwnMemoryIsCopiedInAndOut) {
  alignas(16) static uint16_t input[kCount], residual[kCount], weight[kHidden], out[kCount];
  std::iota(std::begin(input), std::end(input), uint16_t{1});
  std::iota(std::begin(residual), std::end(residual), uint16_t{1000});
  std::iota(std::begin(weight), std::end(weight), uint16_t{5000});
  qrd_rms_norm norm = QRD_RMS_NORM_INIT;
  norm.tokens = kTokens;
  norm.hidden = kHidden;
  norm.weight = weight;
  norm.residual = residual;
  norm.residual_out = residual;  // in place
  norm.out = out;
  qrd_operation operation = 0;
  ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input, QRD_BF16, &norm, &operation)), "");
  const auto posted = daemon_.NextPosted();
  const shm::Descriptor& d = posted->descriptor;
  const auto data = [&](const shm::Tensor& tensor) {
    return reinterpret_cast<uint16_t*>(daemon_.ArenaData(tensor.arena_id) + tensor.offset_bytes);
  };
  EXPECT_EQ(data(d.input)[kCount - 1], kCount);
  EXPECT_EQ(data(d.rms_norm.weight)[kHidden - 1], 5000 + kHidden - 1);
  EXPECT_EQ(data(d.rms_norm.residual)[7], 1007);
  EXPECT_EQ(data(d.rms_norm.residual), data(d.rms_norm.residual_out));
  for (size_t i = 0; i < kCount; ++i) {
    data(d.rms_norm.residual_out)[i] = static_cast<uint16_t>(2 * i);
    data(d.output)[i] = static_cast<uint16_t>(3 * i);
  }
  daemon_.Complete(*posted, QRD_OK);
  EXPECT_EQ(residual[7], 1007);  // not before the wait
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, &stats)), "");
  EXPECT_EQ(stats.staged, 1);
  EXPECT_EQ(stats.payload_bytes, 2 * kCount);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(residual[i], 2 * i);
    ASSERT_EQ(out[i], 3 * i);
    ASSERT_EQ(input[i], i + 1);
  }
}

TEST_F(RmsNormTest, MemoryIsInUseUntilTheEnd) {
  const qrd_rms_norm norm = Norm(true);
  qrd_operation operation = 0;
  ASSERT_EQ(Outcome(qrd_all_reduce_rms_norm(comm_, input_, QRD_BF16, &norm, &operation)), "");
  EXPECT_EQ(qrd_mem_free(comm_, const_cast<void*>(norm.weight)), QRD_FAILED_PRECONDITION);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, const_cast<void*>(norm.weight))), "");
}

}  // namespace
}  // namespace qrd::testing
