// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm whose residual is sharded by rows, on the host backend: the scalar
// reference byte for byte, and what the layout promises against the full one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"
#include "rms_norm_case.h"
#include "rms_norm_run.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::RmsNormCase;
using testing::RmsNormResults;
using testing::RmsNormShape;
using testing::RmsNormTensors;

RmsNormShape Sharded(uint64_t variant, Codec codec, uint32_t world_size, uint64_t tokens,
                     uint32_t hidden) {
  RmsNormShape shape;
  shape.codec = codec;
  shape.world_size = world_size;
  shape.tokens = tokens;
  shape.hidden = hidden;
  shape.residual_layout = ResidualLayout::kSharded;
  shape.dtype = variant % 2 == 0 ? Dtype::kBf16 : Dtype::kFp16;
  shape.weight_dtype = variant % 4 == 1 ? Dtype::kFp32 : shape.dtype;
  shape.gemma = variant / 2 % 2 != 0;
  shape.quant = static_cast<Quant>(variant % 3);
  shape.mirror = shape.quant != Quant::kNone && variant / 3 % 2 != 0;
  shape.scale_group = shape.quant != Quant::kNone && variant % 5 < 2 ? kScaleGroup : 0;
  shape.has_residual = variant % 7 != 0;
  shape.residual_in_place = shape.has_residual && variant % 5 % 2 == 0;
  shape.output_in_place = variant % 3 != 1;
  return shape;
}

// Every rank another residual, so that a row of the wrong owner shows.
RmsNormTensors TensorsOf(const RmsNormShape& shape, uint64_t seed) {
  RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, seed);
  for (uint32_t r = 1; shape.has_residual && r < shape.world_size; ++r) {
    tensors.residuals.push_back(testing::ToDtype(
        shape.dtype, testing::Activations(shape.tokens, shape.hidden, seed * 1000 + r)));
  }
  return tensors;
}

class ShardedRmsNormTest : public ::testing::Test {
 protected:
  std::vector<RmsNormResults> Run(const RmsNormShape& shape, const RmsNormTensors& tensors,
                                  const testing::Runner& runner = testing::RunAllUnits) {
    RmsNormCase test(shape, tensors);
    const absl::Status status = backend_->Validate(test.params());
    EXPECT_TRUE(status.ok()) << status.ToString() << ": " << shape;
    if (!status.ok()) return {};
    runner(*backend_, test.params());
    test.ExpectNothingElseWritten();
    std::vector<RmsNormResults> results;
    for (uint32_t r = 0; r < shape.world_size; ++r) results.push_back(test.Results(r));
    return results;
  }
  void RunAndCompare(const RmsNormShape& shape, const RmsNormTensors& tensors,
                     const testing::Runner& runner = testing::RunAllUnits) {
    const std::vector<RmsNormResults> got = Run(shape, tensors, runner);
    const std::vector<RmsNormResults> want = testing::ReferenceResults(shape, tensors);
    ASSERT_EQ(got.size(), want.size());
    for (uint32_t r = 0; r < shape.world_size; ++r) {
      ExpectSameResults(shape, got[r], want[r], "rank " + std::to_string(r));
    }
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
};

TEST_F(ShardedRmsNormTest, EveryCodecAndRankCountGivesTheReferenceBytes) {
  uint64_t variant = 0;
  for (const Codec codec : kAllCodecs) {
    for (const uint32_t n : {1u, 2u, 3u, 4u, 5u, 8u, 16u}) {
      // One row, fewer rows than ranks, owners that meet inside a tile and inside a group.
      for (const auto& [tokens, hidden] : std::vector<std::pair<uint64_t, uint32_t>>{
               {1, 8}, {n - 1, 136}, {n + 1, 200}, {40, 24}, {37, 8}, {5, 2880}}) {
        if (tokens == 0) continue;
        const RmsNormShape shape = Sharded(variant, codec, n, tokens, hidden);
        RunAndCompare(shape, TensorsOf(shape, variant));
        ++variant;
      }
    }
  }
}

TEST_F(ShardedRmsNormTest, ThreadsOnDisjointUnitsInPlace) {
  for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3c}) {
    for (const uint32_t hidden : {24u, 136u, 6160u}) {
      RmsNormShape shape = Sharded(2, codec, 4, 40'000 / hidden + 3, hidden);
      shape.mirror = shape.output_in_place = shape.residual_in_place = true;
      const RmsNormTensors tensors = TensorsOf(shape, hidden);
      RunAndCompare(shape, tensors, [](Backend& backend, const LaunchParams& params) {
        return testing::RunOnThreads(backend, params, 4, 11);
      });
      RunAndCompare(shape, tensors, testing::RunUnitsBackwards);
    }
  }
}

// Without a codec the layout only says who keeps which rows.
TEST_F(ShardedRmsNormTest, WithoutACodecTheResultsAreThoseOfTheFullLayout) {
  for (const auto& [tokens, hidden] :
       std::vector<std::pair<uint64_t, uint32_t>>{{3, 136}, {13, 6144}, {33, 6160}}) {
    RmsNormShape shape = Sharded(4, Codec::kNone, 4, tokens, hidden);
    shape.output_in_place = shape.residual_in_place = false;
    const RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, hidden);
    const std::vector<RmsNormResults> sharded = Run(shape, tensors);
    shape.residual_layout = ResidualLayout::kFull;
    const std::vector<RmsNormResults> full = Run(shape, tensors);
    ASSERT_EQ(sharded.size(), full.size());
    Bytes residual_out;
    for (uint32_t r = 0; r < shape.world_size; ++r) {
      residual_out.insert(residual_out.end(), sharded[r].residual_out.begin(),
                          sharded[r].residual_out.end());
      EXPECT_TRUE(sharded[r].out == full[r].out && sharded[r].out8 == full[r].out8 &&
                  sharded[r].scales == full[r].scales && sharded[r].mirror == full[r].mirror)
          << shape << " rank " << r;
    }
    EXPECT_TRUE(residual_out == full[0].residual_out) << shape;
  }
}

// A row's owner has its own contribution exact, so a rank that alone has data loses nothing of its
// own rows, whatever the codec.
TEST_F(ShardedRmsNormTest, TheOwnersContributionIsExact) {
  RmsNormShape shape = Sharded(0, Codec::kLp2, 2, 4, 256);
  shape.has_residual = shape.residual_in_place = shape.output_in_place = false;
  RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, 3);
  std::memset(tensors.inputs[1].data(), 0, tensors.inputs[1].size());
  const std::vector<RmsNormResults> results = Run(shape, tensors);
  ASSERT_EQ(results.size(), 2u);
  const Bytes& input = tensors.inputs[0];
  EXPECT_TRUE(
      std::equal(results[0].residual_out.begin(), results[0].residual_out.end(), input.begin()));
  EXPECT_FALSE(std::equal(results[1].residual_out.begin(), results[1].residual_out.end(),
                          input.begin() + static_cast<ptrdiff_t>(input.size() / 2)));
}

TEST_F(ShardedRmsNormTest, NanOfAnyRankPoisonsItsRowOnEveryRank) {
  for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3}) {
    RmsNormShape shape = Sharded(4, codec, 3, 7, 264);
    shape.quant = Quant::kE4m3fn;
    shape.scale_group = 0;
    shape.has_residual = shape.residual_in_place = shape.output_in_place = false;
    RmsNormTensors tensors = testing::MakeRmsNormTensors(shape, 3);
    const uint16_t nan = 0x7FC0;
    std::memcpy(tensors.inputs[2].data() + (3 * 264 + 100) * 2, &nan, 2);
    RmsNormCase test(shape, tensors);
    EXPECT_GT(testing::RunAllUnits(*backend_, test.params()), 0u);
    for (uint32_t r = 0; r < 3; ++r) {
      const RmsNormResults results = test.Results(r);
      for (uint64_t row = 0; row < 7; ++row) {
        float scale = 0;
        std::memcpy(&scale, &results.scales[row * 4], 4);
        EXPECT_EQ(std::isnan(scale), row == 3) << Name(codec) << " rank " << r << " row " << row;
      }
    }
  }
}

TEST(OwnedRowsTest, RowsAreNeighboursAndTheFirstRanksTakeTheOddOnes) {
  for (const uint64_t tokens : {uint64_t{1}, uint64_t{3}, uint64_t{8}, uint64_t{13}, UINT64_MAX}) {
    for (const uint32_t n : {1u, 2u, 5u, 8u, 16u}) {
      uint64_t next = 0;
      for (uint32_t r = 0; r < n; ++r) {
        const RowRange rows = OwnedRows(tokens, n, r);
        EXPECT_EQ(rows.first, next);
        EXPECT_EQ(rows.last - rows.first, tokens / n + (r < tokens % n ? 1 : 0));
        next = rows.last;
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

TEST(ShardedWireBytesTest, AreTheOthersTilesAndTheOwnRows) {
  LaunchParams p;
  p.dtype = Dtype::kBf16;
  p.world_size = 2;
  p.epilogue = Epilogue::kRmsNorm;
  p.count = 3 * 6144;
  p.rms_norm.tokens = 3;
  p.rms_norm.hidden = 6144;
  p.rms_norm.residual_layout = ResidualLayout::kSharded;
  // Rank 0 has 2 rows, rank 1 has 1; 3 tiles a row, 1152 bytes each with int4.
  EXPECT_EQ(WireBytesSent(p, 0), 6144u * 2 + 2 * 6144 * 2);
  p.codec = Codec::kInt4;
  EXPECT_EQ(WireBytesSent(p, 0), 3u * 1152 + 2 * 6144 * 2);
  EXPECT_EQ(WireBytesSent(p, 1), 6u * 1152 + 6144 * 2);
  p.rms_norm.quant = Quant::kE4m3fn;
  EXPECT_EQ(WireBytesSent(p, 0), 3u * 1152 + 2 * (6144 + 4));
  p.rms_norm.scale_group = kScaleGroup;
  EXPECT_EQ(WireBytesSent(p, 1), 6u * 1152 + 6144 + 48 * 4);
  uint16_t mirror = 0;
  p.rms_norm.mirror[0] = &mirror;
  EXPECT_EQ(WireBytesSent(p, 1), 6u * 1152 + 6144 * 3 + 48 * 4);
  // Rows that share a tile: it is sent to both owners.
  p.rms_norm.tokens = 3;
  p.rms_norm.hidden = 8;
  p.count = 24;
  p.rms_norm.quant = Quant::kNone;
  EXPECT_EQ(WireBytesSent(p, 0), 18u + 2 * 8 * 2);
  p.world_size = 1;
  EXPECT_EQ(WireBytesSent(p, 0), 0u);
}

}  // namespace
}  // namespace qrd
