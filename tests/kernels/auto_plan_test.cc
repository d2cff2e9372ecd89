// SPDX-License-Identifier: Apache-2.0
#include "kernels/auto_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace qrd {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10, kMiB = uint64_t{1} << 20;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

AutoFacts Facts(LinkKind link, uint32_t world_size, uint64_t payload_bytes) {
  AutoFacts facts;
  facts.link = link;
  facts.world_size = world_size;
  facts.payload_bytes = payload_bytes;
  return facts;
}

Codec CodecAt(uint32_t world_size, uint64_t payload_bytes, Codec coarsest = Codec::kInt4) {
  AutoFacts facts = Facts(LinkKind::kXgmi, world_size, payload_bytes);
  facts.coarsest = coarsest;
  return PlanAuto(facts).codec;
}

Algorithm AlgorithmAt(LinkKind link, uint32_t world_size, uint64_t payload_bytes, Codec codec) {
  AutoFacts facts = Facts(link, world_size, payload_bytes);
  facts.codec = codec;
  const AutoPlan plan = PlanAuto(facts);
  EXPECT_EQ(plan.codec, codec);  // a rule's codec is never replaced
  return plan.algorithm;
}

// one_shot up to bytes_max, two_shot above.
void ExpectOneShotUpTo(uint64_t bytes_max, LinkKind link, uint32_t world_size, Codec codec) {
  SCOPED_TRACE(std::string(Name(codec)) + ", world size " + std::to_string(world_size));
  EXPECT_EQ(AlgorithmAt(link, world_size, 2, codec), Algorithm::kOneShot);
  EXPECT_EQ(AlgorithmAt(link, world_size, bytes_max, codec), Algorithm::kOneShot);
  EXPECT_EQ(AlgorithmAt(link, world_size, bytes_max + 2, codec), Algorithm::kTwoShot);
  EXPECT_EQ(AlgorithmAt(link, world_size, uint64_t{1} << 40, codec), Algorithm::kTwoShot);
}

TEST(AutoPlanTest, OneDeviceHasNoWireAndNoCodec) {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    for (uint32_t world_size = 1; world_size <= kWorldSizeMax; ++world_size) {
      for (uint64_t bytes = 2; bytes <= uint64_t{1} << 32; bytes *= 2) {
        AutoFacts facts = Facts(LinkKind::kSameDevice, world_size, bytes);
        facts.dtype = dtype;
        facts.coarsest = Codec::kLp2;
        facts.library_available = true;
        const AutoPlan plan = PlanAuto(facts);
        EXPECT_EQ(plan.codec, Codec::kNone);
        EXPECT_FALSE(plan.library);
      }
    }
  }
}

TEST(AutoPlanTest, OneDeviceChangesAlgorithmAtTheMeasuredCrossovers) {
  const auto same = LinkKind::kSameDevice;
  ExpectOneShotUpTo(2 * kMiB, same, 2, Codec::kNone);
  ExpectOneShotUpTo(256 * kKiB, same, 3, Codec::kNone);
  ExpectOneShotUpTo(256 * kKiB, same, 4, Codec::kNone);
  ExpectOneShotUpTo(64 * kKiB, same, 5, Codec::kNone);
  ExpectOneShotUpTo(64 * kKiB, same, 8, Codec::kNone);
  ExpectOneShotUpTo(16 * kKiB, same, 9, Codec::kNone);
  ExpectOneShotUpTo(16 * kKiB, same, 16, Codec::kNone);
  for (const Codec codec : {Codec::kInt8, Codec::kInt4, Codec::kLp3}) {
    ExpectOneShotUpTo(4 * kMiB, same, 2, codec);
    ExpectOneShotUpTo(2 * kMiB, same, 4, codec);
    ExpectOneShotUpTo(2 * kMiB, same, 8, codec);
    ExpectOneShotUpTo(kMiB, same, 16, codec);
  }
}

TEST(AutoPlanTest, ASingleRankHasNothingToShareOut) {
  for (const LinkKind link : {LinkKind::kSameDevice, LinkKind::kXgmi, LinkKind::kNvlink}) {
    for (const uint64_t bytes : {uint64_t{0}, kMiB, kHuge}) {
      const AutoPlan want{Codec::kNone, Algorithm::kOneShot, false};
      EXPECT_EQ(PlanAuto(Facts(link, 1, bytes)), want);
    }
  }
}

TEST(AutoPlanTest, XgmiGetsInt4FromThePublishedCrossovers) {
  struct Row {
    uint32_t world_size;
    uint64_t bytes_min;
  };
  const std::vector<Row> rows = {{2, kMiB},     {3, 2 * kMiB}, {4, 2 * kMiB}, {5, 4 * kMiB},
                                 {6, 4 * kMiB}, {7, 4 * kMiB}, {8, 4 * kMiB}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.world_size);
    EXPECT_EQ(CodecAt(row.world_size, 4 * kKiB), Codec::kNone);
    EXPECT_EQ(CodecAt(row.world_size, row.bytes_min - 2), Codec::kNone);
    EXPECT_EQ(CodecAt(row.world_size, row.bytes_min), Codec::kInt4);
    EXPECT_EQ(CodecAt(row.world_size, kHuge), Codec::kInt4);
  }
  for (uint32_t world_size = 9; world_size <= kWorldSizeMax; ++world_size) {
    EXPECT_EQ(CodecAt(world_size, kHuge), Codec::kNone);
  }
}

TEST(AutoPlanTest, NothingCoarserThanInt4UnlessTold) {
  for (uint32_t world_size = 1; world_size <= kWorldSizeMax; ++world_size) {
    for (uint64_t bytes = 2; bytes <= uint64_t{1} << 40; bytes *= 2) {
      const Codec codec = CodecAt(world_size, bytes);
      EXPECT_TRUE(codec == Codec::kNone || codec == Codec::kInt4);
    }
  }
  // Told: the class of three bits, where it pays.
  for (const Codec told : {Codec::kLp3, Codec::kInt3, Codec::kLp2}) {
    EXPECT_EQ(CodecAt(2, 4 * kMiB - 2, told), Codec::kInt4);
    EXPECT_EQ(CodecAt(2, 4 * kMiB, told), Codec::kLp3);
    EXPECT_EQ(CodecAt(4, kHuge, told), Codec::kInt4);
    EXPECT_EQ(CodecAt(8, kHuge, told), Codec::kInt4);
  }
}

TEST(AutoPlanTest, AFinerFloorMovesTheCrossovers) {
  EXPECT_EQ(CodecAt(2, 2 * kMiB - 2, Codec::kInt6), Codec::kNone);
  EXPECT_EQ(CodecAt(2, 2 * kMiB, Codec::kInt6), Codec::kInt6);
  EXPECT_EQ(CodecAt(4, 4 * kMiB - 2, Codec::kInt6), Codec::kNone);
  EXPECT_EQ(CodecAt(4, 4 * kMiB, Codec::kInt6), Codec::kInt6);
  EXPECT_EQ(CodecAt(8, 4 * kMiB - 2, Codec::kInt6), Codec::kNone);
  EXPECT_EQ(CodecAt(8, 4 * kMiB, Codec::kInt6), Codec::kInt6);
  EXPECT_EQ(CodecAt(2, 2 * kMiB - 2, Codec::kInt8), Codec::kNone);
  EXPECT_EQ(CodecAt(2, 2 * kMiB, Codec::kInt8), Codec::kInt8);
  EXPECT_EQ(CodecAt(4, 16 * kMiB - 2, Codec::kInt8), Codec::kNone);
  EXPECT_EQ(CodecAt(4, 16 * kMiB, Codec::kInt8), Codec::kInt8);
  EXPECT_EQ(CodecAt(8, kHuge, Codec::kInt8), Codec::kNone);
  EXPECT_EQ(CodecAt(8, kHuge, Codec::kFp8), Codec::kNone);  // fp8: the bytes of int8
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    EXPECT_EQ(CodecAt(world_size, kHuge, Codec::kNone), Codec::kNone);
  }
}

TEST(AutoPlanTest, Fp32AndLinksWithoutFiguresStayExact) {
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    AutoFacts facts = Facts(LinkKind::kXgmi, world_size, 64 * kMiB);
    facts.dtype = Dtype::kFp32;
    EXPECT_EQ(PlanAuto(facts).codec, Codec::kNone);
    facts.dtype = Dtype::kFp16;
    EXPECT_EQ(PlanAuto(facts).codec, Codec::kInt4);
    facts.link = LinkKind::kNvlink;
    EXPECT_EQ(PlanAuto(facts).codec, Codec::kNone);
  }
}

TEST(AutoPlanTest, TwoDevicesQuantizeOnce) {
  for (const LinkKind link : {LinkKind::kXgmi, LinkKind::kNvlink}) {
    for (const uint64_t bytes : {4 * kKiB, kMiB, uint64_t{1} << 40}) {
      EXPECT_EQ(AlgorithmAt(link, 2, bytes, Codec::kInt4), Algorithm::kOneShot);
    }
    ExpectOneShotUpTo(2 * kMiB, link, 2, Codec::kNone);
  }
}

TEST(AutoPlanTest, MoreDevicesUseOneShotForLittleWire) {
  for (const LinkKind link : {LinkKind::kXgmi, LinkKind::kNvlink}) {
    ExpectOneShotUpTo(458'752, link, 4, Codec::kNone);
    ExpectOneShotUpTo(229'376, link, 8, Codec::kNone);
    ExpectOneShotUpTo(114'688, link, 16, Codec::kNone);
    // int4 has 18 bytes for 64 of bf16: the bound is on the wire.
    ExpectOneShotUpTo(458'752 / 18 * 64, link, 4, Codec::kInt4);
  }
}

TEST(AutoPlanTest, LibraryOnlyWhereItIsFasterWithoutACodec) {
  const auto library = [](uint32_t world_size, uint64_t bytes, Codec coarsest, bool available,
                          LinkKind link = LinkKind::kXgmi) {
    AutoFacts facts = Facts(link, world_size, bytes);
    facts.coarsest = coarsest;
    facts.library_available = available;
    return PlanAuto(facts).library;
  };
  EXPECT_FALSE(library(4, 16 * kMiB - 2, Codec::kNone, true));
  EXPECT_TRUE(library(4, 16 * kMiB, Codec::kNone, true));
  EXPECT_TRUE(library(3, 16 * kMiB, Codec::kNone, true));
  EXPECT_FALSE(library(8, 64 * kMiB - 2, Codec::kNone, true));
  EXPECT_TRUE(library(8, 64 * kMiB, Codec::kNone, true));
  EXPECT_FALSE(library(2, kHuge, Codec::kNone, true));
  EXPECT_FALSE(library(16, kHuge, Codec::kNone, true));
  EXPECT_FALSE(library(8, 64 * kMiB, Codec::kNone, false));
  EXPECT_FALSE(library(8, 64 * kMiB, Codec::kInt4, true));  // int4 is faster than the library
  EXPECT_FALSE(library(8, 64 * kMiB, Codec::kNone, true, LinkKind::kNvlink));
}

TEST(AutoPlanTest, ALibraryIsNeverUsedForARulesCodec) {
  AutoFacts facts = Facts(LinkKind::kXgmi, 8, 256 * kMiB);
  facts.library_available = true;
  facts.codec = Codec::kInt8;
  EXPECT_FALSE(PlanAuto(facts).library);
  facts.codec = Codec::kNone;
  EXPECT_TRUE(PlanAuto(facts).library);
}

}  // namespace
}  // namespace qrd
