// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm and FP8 of the GPU kernels, run lane by lane on the CPU
// (kernels/gpu/device_emulated.h), with waves of 32 or of 64 lanes: the same bytes as the scalar
// reference and as the golden files.
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "emulated_communicator.h"
#include "emulated_kernels.h"
#include "golden_epilogue.h"
#include "gtest/gtest.h"
#include "kernels/gpu/plan.h"
#include "rms_norm_case.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::EmulatedCommunicator;
using testing::RmsNormData;
using testing::RmsNormOptions;
using testing::RmsNormShape;

// Host memory aligned to 16, with a guard behind it.
class HostBuffer {
 public:
  explicit HostBuffer(uint64_t bytes) : bytes_(bytes), lines_(bytes / 16 + 2, testing::Line{}) {
    std::memset(data() + bytes, 0x77, Room());
  }
  std::byte* data() const { return const_cast<std::byte*>(lines_[0].bytes); }
  uint64_t bytes() const { return bytes_; }
  void Upload(const void* from) const { std::memcpy(data(), from, bytes_); }
  void Fill(uint8_t value) const { std::memset(data(), value, bytes_); }
  Bytes Download() const { return {data(), data() + bytes_}; }
  bool GuardsAreIntact() const {
    for (uint64_t i = 0; i < Room(); ++i) {
      if (data()[bytes_ + i] != std::byte{0x77}) return false;
    }
    return true;
  }

 private:
  uint64_t Room() const { return lines_.size() * 16 - bytes_; }
  uint64_t bytes_;
  std::vector<testing::Line> lines_;
};
using Tensors = testing::RmsNormTensors<HostBuffer>;

void Expect(bool passed, const std::string& what) { EXPECT_TRUE(passed) << what; }

void RunFused(EmulatedCommunicator& communicator, const LaunchParams& params) {
  communicator.RunRmsNorm(params.codec, params.algorithm, params.dtype, params.rms_norm,
                          params.inputs);
  EXPECT_TRUE(communicator.RowCountersAreZero());
}

void CheckCase(EmulatedCommunicator& communicator, const RmsNormData& data,
               const RmsNormOptions& options) {
  const Tensors tensors(data.shape());
  tensors.Upload(data, options);
  RunFused(communicator, tensors.Params(options));
  tensors.CheckResults(data, options, "fused", Expect);
}

gpu::RowsArgs RowsOf(const LaunchParams& params) {
  gpu::RowsArgs args = {};
  args.norm = gpu::MakeRmsNormArgs(params.rms_norm, params.world_size);
  args.local_count = params.world_size;
  args.pass_rows = 2;
  for (uint32_t r = 0; r < params.world_size; ++r) {
    args.reduced[r] = params.inputs[r];
    args.local[r] = static_cast<uint8_t>(r);
  }
  return args;
}

constexpr RmsNormOptions kKinds[] = {
    {},
    {.gemma = true, .weight_is_fp32 = true},
    {.quant = Quant::kE4m3fn},
    {.gemma = true, .quant = Quant::kE4m3fnuz, .mirror = true},
    {.weight_is_fp32 = true, .quant = Quant::kE4m3fnuz, .divisor = 224},
    {.quant = Quant::kE4m3fn, .scale_group = 128, .mirror = true},
    {.gemma = true, .quant = Quant::kE4m3fnuz, .scale_group = 128},
};

bool IsBuilt(Codec codec) { return gpu::EmulatedRmsNormKernelsOf(codec, Dtype::kBf16) != nullptr; }

class EmulatedRmsNormTest : public ::testing::TestWithParam<uint32_t> {};

// One communicator for all of them: calls of different shapes follow each other. Rows begin and end
// inside of tiles; every kind of output comes in turn.
TEST_P(EmulatedRmsNormTest, EveryCodecAndAlgorithmGivesTheReferencesBytes) {
  const uint32_t world_size = GetParam();
  EmulatedCommunicator communicator(world_size, world_size < 4 ? 2 : 1);
  uint32_t seed = world_size;
  for (const Codec codec : kAllCodecs) {
    if (!IsBuilt(codec)) continue;
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
        ++seed;
        RmsNormShape shape{codec, algorithm, dtype, world_size, world_size < 8 ? 11u : 5u,
                           1048,  seed};
        shape.residuals_differ = seed % 3 == 0;
        shape.special_rows = true;
        CheckCase(communicator, RmsNormData(shape), kKinds[seed % std::size(kKinds)]);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(WorldSizes, EmulatedRmsNormTest, ::testing::Values(2, 3, 4, 8));

TEST(EmulatedRmsNormTest, EveryKindOfOutputIsRightForAnyWidth) {
  EmulatedCommunicator communicator(2, 2);
  uint32_t seed = 100;
  for (const auto& [tokens, hidden] : {std::pair<uint64_t, uint32_t>{1, 8},
                                       {300, 8},
                                       {29, 72},
                                       {3, 2048},
                                       {2, 2880},
                                       {2, 6144},
                                       {1, 6160},
                                       {1, 6176},
                                       {2, 8192},
                                       {1, 8200},
                                       {1, 16384}}) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4}) {
      RmsNormShape shape{codec,
                         seed % 2 == 0 ? Algorithm::kOneShot : Algorithm::kTwoShot,
                         seed % 3 == 0 ? Dtype::kFp16 : Dtype::kBf16,
                         2,
                         tokens,
                         hidden,
                         seed};
      ++seed;
      shape.special_rows = true;
      const RmsNormData data(shape);
      for (const RmsNormOptions& options : kKinds) CheckCase(communicator, data, options);
    }
    ++seed;  // the other algorithms for the next shape
  }
}

// Codec none, two_shot on one device: a row a block for all ranks, or several blocks a row, each
// for some of the ranks; rows of one and of two slots' width.
TEST(EmulatedRmsNormTest, RowsThatBlocksShareAreRight) {
  uint32_t seed = 300;
  for (const uint32_t world_size : {3u, 5u}) {
    EmulatedCommunicator communicator(world_size, 2);
    for (const auto& [tokens, hidden] :
         {std::pair<uint64_t, uint32_t>{1, 72}, {3, 136}, {5, 72}, {1, 8200}, {11, 8200}}) {
      RmsNormShape shape{
          Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, world_size, tokens, hidden, ++seed};
      shape.residuals_differ = true;
      const RmsNormData data(shape);
      CheckCase(communicator, data, {.quant = Quant::kE4m3fn, .mirror = true});
      CheckCase(communicator, data, {.norm_over_input = true, .residual_out_in_place = true});
    }
  }
}

TEST(EmulatedRmsNormTest, AMissingResidualIsPlusZero) {
  EmulatedCommunicator communicator(2, 1);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4}) {
      RmsNormShape shape{codec, algorithm, Dtype::kBf16, 2, 12, 136, 5};
      shape.has_residual = false;
      shape.special_rows = true;
      CheckCase(communicator, RmsNormData(shape), {.quant = Quant::kE4m3fn, .mirror = true});
    }
  }
}

TEST(EmulatedRmsNormTest, OutputsMayLieOverTheInputAndTheResidual) {
  for (const uint32_t world_size : {2u, 4u}) {
    EmulatedCommunicator communicator(world_size, 2);
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3c}) {
        RmsNormShape shape{codec, algorithm, Dtype::kFp16, world_size, 13, 1000, 6};
        shape.residuals_differ = true;
        const RmsNormData data(shape);
        RmsNormOptions options{.norm_over_input = true, .residual_out_in_place = true};
        CheckCase(communicator, data, options);
        options.quant = Quant::kE4m3fnuz;
        options.mirror = true;
        CheckCase(communicator, data, options);
      }
    }
  }
}

// More tiles than the blocks hold, so several turns; every turn completes rows.
TEST(EmulatedRmsNormTest, RowsOfSeveralTurnsAreComplete) {
  EmulatedCommunicator communicator(2, 1);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4}) {
      const RmsNormShape shape{codec, algorithm, Dtype::kBf16, 2, 41, 2056, 8};
      CheckCase(communicator, RmsNormData(shape), {.quant = Quant::kE4m3fn});
    }
  }
}

// Scales far outside of the range in which reciprocals are exact enough.
TEST(EmulatedRmsNormTest, ExtremeDivisorsGiveTheReferencesBytes) {
  EmulatedCommunicator communicator(2, 1);
  RmsNormShape shape{Codec::kNone, Algorithm::kOneShot, Dtype::kBf16, 2, 20, 256, 9};
  shape.special_rows = true;
  const RmsNormData data(shape);
  for (const Quant quant : {Quant::kE4m3fn, Quant::kE4m3fnuz}) {
    for (const float divisor : {0x1p-149f, 1e-37f, 1e-30f, 1e-3f, 1.0f, 239.0f}) {
      for (const float eps : {0x1p-64f, 1e-6f, 1e30f, 3e38f}) {
        CheckCase(communicator, data,
                  {.quant = quant, .divisor = divisor, .mirror = true, .eps = eps});
      }
    }
  }
}

// Codec none, two_shot, as between devices: by the inboxes, where each rank reads its own tensors
// only.
TEST(EmulatedRmsNormTest, RanksOnSeveralDevicesGiveTheReferencesBytes) {
  for (const uint32_t world_size : {2u, 3u, 4u}) {
    EmulatedCommunicator communicator(world_size, 1);
    communicator.direct = false;
    uint32_t seed = 70;
    for (const auto& [tokens, hidden] :
         {std::pair<uint64_t, uint32_t>{1, 8}, {37, 1000}, {21, 2880}}) {
      RmsNormShape shape{
          Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, world_size, tokens, hidden, ++seed};
      shape.residuals_differ = true;
      shape.special_rows = tokens == 21;
      const RmsNormData data(shape);
      CheckCase(communicator, data, {.quant = Quant::kE4m3fn});
      CheckCase(communicator, data, {.norm_over_input = true, .residual_out_in_place = true});
    }
  }
}

// two_shot with a codec: sums in one pool, or in one of each rank, where all wait for all; rows of
// one and of two slots' width, the last tile in part, several turns. And, where the pool is too
// small, through memory.
TEST(EmulatedRmsNormTest, EncodedSumsGiveTheReferencesBytesFromAnyPool) {
  uint32_t seed = 600;
  for (const auto& [world_size, codec] : {std::pair{2u, Codec::kLp3c}, {3u, Codec::kInt4}}) {
    EmulatedCommunicator communicator(world_size, 1);
    for (const auto& [tokens, hidden] :
         {std::pair<uint64_t, uint32_t>{1, 8}, {11, 1000}, {1, 8200}}) {
      RmsNormShape shape{codec, Algorithm::kTwoShot, Dtype::kBf16, world_size, tokens, hidden,
                         ++seed};
      shape.residuals_differ = true;
      shape.special_rows = tokens > 10;
      const RmsNormData data(shape);
      for (const auto& [pool_of_each_rank, pool_bytes] :
           {std::pair{true, 1u << 20}, {false, 1u << 20}, {false, 0u}}) {
        communicator.pool_of_each_rank = pool_of_each_rank;
        communicator.wire_pool_bytes = pool_bytes;
        CheckCase(communicator, data, {.quant = Quant::kE4m3fn, .mirror = true});
        CheckCase(communicator, data, {.norm_over_input = true, .residual_out_in_place = true});
      }
    }
  }
}

// Codec none on one device with its sums in the pool: one launch of all ranks, or as if several.
TEST(EmulatedRmsNormTest, SumsWithoutACodecGiveTheReferencesBytesFromThePool) {
  EmulatedCommunicator communicator(3, 2);
  communicator.always_keeps_wire = true;
  for (const auto& [tokens, hidden] : {std::pair<uint64_t, uint32_t>{13, 1000}, {1, 8200}}) {
    RmsNormShape shape{Codec::kNone, Algorithm::kTwoShot, Dtype::kFp16, 3, tokens, hidden, 700};
    shape.residuals_differ = true;
    shape.special_rows = tokens > 10;
    const RmsNormData data(shape);
    for (const bool is_launched_apart : {false, true}) {
      communicator.is_launched_apart = is_launched_apart;
      CheckCase(communicator, data, {.quant = Quant::kE4m3fn, .mirror = true});
      CheckCase(communicator, data, {.norm_over_input = true, .residual_out_in_place = true});
    }
  }
}

TEST(WirePoolTest, ManyRowsGoThroughItAndWhatACodecHasIfThereIsRoom) {
  constexpr uint64_t kRoom = 32 << 20;
  const auto keeps = [](Codec codec, uint64_t tokens, uint32_t world_size, uint64_t room,
                        bool direct = true, Algorithm algorithm = Algorithm::kTwoShot) {
    RmsNormParams norm;
    norm.tokens = tokens;
    norm.hidden = 6144;
    return gpu::KeepsWire(codec, algorithm, Dtype::kBf16, norm, world_size, direct, room);
  };
  EXPECT_FALSE(keeps(Codec::kNone, 512, 2, kRoom));
  EXPECT_TRUE(keeps(Codec::kNone, 512, 4, kRoom));
  EXPECT_FALSE(keeps(Codec::kNone, 512, 4, kRoom, false));
  EXPECT_FALSE(keeps(Codec::kNone, 4097, 4, kRoom));
  EXPECT_TRUE(keeps(Codec::kInt4, 1, 2, kRoom, false));
  EXPECT_FALSE(keeps(Codec::kInt4, 1, 2, kRoom, false, Algorithm::kOneShot));
  // 3 tiles of 1152 bytes.
  EXPECT_TRUE(keeps(Codec::kInt4, 1, 2, 3 * 1152));
  EXPECT_FALSE(keeps(Codec::kInt4, 1, 2, 3 * 1152 - 1));
}

// The owners count what is not finite in what they encode, each its own tiles, once.
TEST(EmulatedRmsNormTest, EncodedSumsAreCountedByTheirOwners) {
  EmulatedCommunicator communicator(2, 1);
  RmsNormShape shape{Codec::kInt4, Algorithm::kTwoShot, Dtype::kBf16, 2, 12, 264, 3};
  shape.special_rows = true;
  const RmsNormData data(shape);
  uint64_t counts[2] = {};
  for (const uint32_t pool_bytes : {1u << 20, 0u}) {
    communicator.wire_pool_bytes = pool_bytes;
    CheckCase(communicator, data, {.quant = Quant::kE4m3fn});
    counts[pool_bytes == 0] = communicator.status(0).non_finite + communicator.status(1).non_finite;
  }
  EXPECT_GT(counts[0], 0u);
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_EQ(communicator.status(0).operations, 2u);
}

// A sharded residual: each codec, fewer rows than ranks, owners that meet inside a tile, rows of
// one and of two slots' width, several steps, and all ranks' results over the inputs.
TEST(EmulatedShardedRmsNormTest, EveryCodecGivesTheReferencesBytes) {
  uint32_t seed = 400;
  for (const uint32_t world_size : {2u, 3u, 8u}) {
    EmulatedCommunicator communicator(world_size, world_size == 2 ? 2 : 1);
    for (const Codec codec : kAllCodecs) {
      if (!IsBuilt(codec)) continue;
      ++seed;
      RmsNormShape shape{
          codec,      Algorithm::kTwoShot,       seed % 2 == 0 ? Dtype::kFp16 : Dtype::kBf16,
          world_size, world_size < 8 ? 11u : 5u, 1048,
          seed};
      shape.sharded = true;
      shape.residuals_differ = true;
      shape.special_rows = true;
      shape.has_residual = seed % 7 != 0;
      CheckCase(communicator, RmsNormData(shape), kKinds[seed % std::size(kKinds)]);
    }
  }
}

TEST(EmulatedShardedRmsNormTest, AnyShapeOverInputsAndResiduals) {
  uint32_t seed = 500;
  for (const uint32_t world_size : {3u}) {
    EmulatedCommunicator communicator(world_size, 1);
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3c}) {
      for (const auto& [tokens, hidden] : {std::pair<uint64_t, uint32_t>{1, 8},
                                           {300, 8},
                                           {29, 72},
                                           {41, 2056},
                                           {3, 8200},
                                           {5, 6160}}) {
        RmsNormShape shape{codec, Algorithm::kTwoShot, Dtype::kBf16, world_size, tokens, hidden,
                           ++seed};
        shape.sharded = true;
        shape.residuals_differ = true;
        const RmsNormData data(shape);
        RmsNormOptions options{.norm_over_input = true, .residual_out_in_place = true};
        CheckCase(communicator, data, options);
        options.quant = Quant::kE4m3fn;
        options.mirror = true;
        CheckCase(communicator, data, options);
      }
    }
  }
}

// The count of NaN and Inf comes from the owners, each its own rows once, in one report for the two
// kernels.
TEST(EmulatedShardedRmsNormTest, OwnersCountAndReportOnce) {
  for (const Codec codec : {Codec::kNone, Codec::kInt4}) {
    EmulatedCommunicator communicator(2, 1);
    RmsNormShape shape{codec, Algorithm::kTwoShot, Dtype::kBf16, 2, 5, 264, 3};
    shape.sharded = true;
    shape.special_rows = true;  // a NaN of rank 1 in row 3, which is its own: exact
    const RmsNormData data(shape);
    CheckCase(communicator, data, {.quant = Quant::kE4m3fn});
    EXPECT_EQ(communicator.status(0).non_finite, 0u) << Name(codec);
    EXPECT_EQ(communicator.status(1).non_finite, 1u) << Name(codec);
    EXPECT_EQ(communicator.status(0).operations, 1u);
    EXPECT_EQ(communicator.status(1).operations, 1u);
  }
}

// The separate kernels, and two of them in a row.
TEST(EmulatedRowsTest, SeparateStepsGiveTheReferencesBytes) {
  for (const uint32_t hidden : {72u, 2880u, 6160u, 16384u}) {
    for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
      RmsNormShape shape{Codec::kNone, Algorithm::kOneShot, dtype, 1, 12, hidden, hidden};
      shape.special_rows = true;
      const RmsNormData data(shape);
      const Tensors tensors(shape);
      for (RmsNormOptions options : kKinds) {
        const gpu::EmulatedRowsKernels& kernels = *gpu::EmulatedRowsKernelsOf(dtype);
        tensors.Upload(data, options);
        kernels.add_rms_norm(RowsOf(tensors.Params(options)));
        tensors.CheckResults(data, options, "one kernel", Expect);
        if (options.quant == Quant::kNone) continue;
        tensors.Upload(data, options);
        options.mirror = true;
        gpu::RowsArgs args = RowsOf(tensors.Params(options));
        args.norm.quant = Quant::kNone;
        kernels.add_rms_norm(args);
        kernels.quantize(RowsOf(tensors.Params(options)));
        tensors.CheckResults(data, options, "two kernels", Expect);
      }
    }
  }
}

TEST(EmulatedRmsNormTest, AMissingRankEndsTheWait) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    EmulatedCommunicator communicator(3, 1);
    communicator.timeout_ns = 20'000'000;
    const RmsNormShape shape{Codec::kInt4, algorithm, Dtype::kBf16, 3, 4, 1000, 1};
    const RmsNormData data(shape);
    const Tensors tensors(shape);
    tensors.Upload(data, {});
    const LaunchParams params = tensors.Params({});
    communicator.RunRmsNorm(params.codec, algorithm, params.dtype, params.rms_norm, params.inputs,
                            {0, 2});
    EXPECT_EQ(communicator.aborted(), 1u);
  }
}

TEST(EmulatedRmsNormGoldenTest, FilesAreMatchedByteForByte) {
  const testing::GoldenEpilogue golden(QRD_TEST_DATA_DIR "/golden/epilogue");
  ASSERT_TRUE(golden.is_readable());
  int checked = 0;
  for (const auto& record : golden.cases()) {
    const testing::GoldenEpilogue::Case c = golden.CaseOf(record, Algorithm::kOneShot);
    EmulatedCommunicator communicator(c.shape.world_size, 2);
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      golden.Run<HostBuffer>(
          record, algorithm, [&](const LaunchParams& params) { RunFused(communicator, params); },
          Expect);
      ++checked;
    }
  }
  EXPECT_GE(checked, 100);
}

}  // namespace
}  // namespace qrd
