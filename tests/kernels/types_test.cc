// SPDX-License-Identifier: Apache-2.0
#include "kernels/types.h"

#include <gtest/gtest.h>

namespace qrd {
namespace {

TEST(TypesTest, EveryNameParsesBack) {
  for (const Codec codec : kAllCodecs) EXPECT_EQ(ParseCodec(Name(codec)), codec);
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    EXPECT_EQ(ParseDtype(Name(dtype)), dtype);
  }
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    EXPECT_EQ(ParseAlgorithm(Name(algorithm)), algorithm);
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) EXPECT_EQ(ParseReduceOp(Name(op)), op);
}

TEST(TypesTest, NamesAreThoseOfTheWireFormat) {
  EXPECT_EQ(Name(Codec::kNone), "none");
  EXPECT_EQ(Name(Codec::kLp3c), "lp3c");
  EXPECT_EQ(Name(Codec::kLp2), "lp2");
  EXPECT_EQ(Name(Dtype::kBf16), "bf16");
  EXPECT_EQ(Name(Algorithm::kTwoShot), "two_shot");
  EXPECT_EQ(Name(ReduceOp::kAvg), "avg");
}

TEST(TypesTest, OnlyExactNamesParse) {
  for (const char* name : {"", "INT4", "int4 ", " int4", "int", "int40", "auto", "unknown"}) {
    EXPECT_EQ(ParseCodec(name), std::nullopt) << '"' << name << '"';
  }
  EXPECT_EQ(ParseDtype("float16"), std::nullopt);
  EXPECT_EQ(ParseAlgorithm("twoshot"), std::nullopt);
  EXPECT_EQ(ParseReduceOp("SUM"), std::nullopt);
  EXPECT_EQ(ParseCodec(std::string_view("int4\0", 5)), std::nullopt);
}

TEST(TypesTest, ValuesOutOfRangeHaveAName) {
  EXPECT_EQ(Name(static_cast<Codec>(200)), "unknown");
  EXPECT_EQ(Name(static_cast<Dtype>(9)), "unknown");
  EXPECT_EQ(Name(static_cast<Algorithm>(0)), "unknown");
  EXPECT_EQ(Name(static_cast<ReduceOp>(0)), "unknown");
}

TEST(TypesTest, EncodedBytesOfATileMatchTheTable) {
  constexpr uint64_t kExpected[kCodecCount] = {4096, 2176, 2176, 1664, 1152, 1152,
                                               896,  1152, 896,  832,  640};
  for (const Codec codec : kAllCodecs) {
    EXPECT_EQ(EncodedBytes(codec, Dtype::kBf16, kTileElements), kExpected[static_cast<int>(codec)])
        << Name(codec);
  }
  EXPECT_EQ(EncodedBytes(Codec::kNone, Dtype::kFp32, kTileElements), 8192u);
}

TEST(TypesTest, EncodedBytesRoundTheTailUpToGroups) {
  EXPECT_EQ(EncodedBytes(Codec::kInt4, Dtype::kFp16, 0), 0u);
  EXPECT_EQ(EncodedBytes(Codec::kInt4, Dtype::kFp16, 1), 18u);
  EXPECT_EQ(EncodedBytes(Codec::kInt4, Dtype::kFp16, 32), 18u);
  EXPECT_EQ(EncodedBytes(Codec::kInt4, Dtype::kFp16, 33), 36u);
  EXPECT_EQ(EncodedBytes(Codec::kLp3c, Dtype::kFp16, 2049), 832u + 52u);
  EXPECT_EQ(EncodedBytes(Codec::kNone, Dtype::kFp16, 2049), 4098u);
}

TEST(TypesTest, EncodedBytesWorkBeyondFourGiB) {
  constexpr uint64_t kCount = (uint64_t{1} << 33) + 5;  // 16 GiB of fp16
  EXPECT_EQ(EncodedBytes(Codec::kInt8, Dtype::kFp16, kCount), (uint64_t{1} << 22) * 2176 + 34);
  EXPECT_EQ(EncodedBytes(Codec::kNone, Dtype::kFp32, kCount), kCount * 4);
  EXPECT_EQ(EncodedBytes(Codec::kLp3c, Dtype::kBf16, kCount), (uint64_t{1} << 22) * 832 + 52);
}

TEST(TypesTest, OwnedTilesCoverEveryTileOnceInRankOrder) {
  for (const uint64_t count :
       {uint64_t{0}, uint64_t{1}, uint64_t{2048}, uint64_t{2049}, uint64_t{2048} * 37 + 11,
        (uint64_t{1} << 33) + 12345, uint64_t{1} << 62}) {
    for (uint32_t world_size = 1; world_size <= kWorldSizeMax; ++world_size) {
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const TileRange range = OwnedTiles(count, world_size, rank);
        EXPECT_EQ(range.first, next);
        EXPECT_LE(range.first, range.last);
        next = range.last;
      }
      EXPECT_EQ(next, TileCount(count)) << count << " on " << world_size;
    }
  }
}

TEST(TypesTest, WireBytesOfOneShotAreTheEncodedTensorForEveryOther) {
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kOneShot, Dtype::kFp16, 4, 2, 2048), 3 * 1152u);
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kOneShot, Dtype::kFp16, 1, 0, 2048), 0u);
}

TEST(TypesTest, WireBytesOfTwoShotFollowTheOwners) {
  // Two tiles and one element on two ranks: rank 0 owns two tiles, rank 1 the short one.
  constexpr uint64_t kCount = 2 * 2048 + 1;
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kTwoShot, Dtype::kFp16, 2, 0, kCount),
            18u + 2 * 1152u);
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kTwoShot, Dtype::kFp16, 2, 1, kCount),
            2 * 1152u + 18u);
  // One tile on four ranks: rank 0 owns it and sends it to three; the others send only to rank 0.
  EXPECT_EQ(WireBytesSent(Codec::kLp3, Algorithm::kTwoShot, Dtype::kFp16, 4, 0, 100), 3 * 56u);
  EXPECT_EQ(WireBytesSent(Codec::kLp3, Algorithm::kTwoShot, Dtype::kFp16, 4, 3, 100), 56u);
  EXPECT_EQ(WireBytesSent(Codec::kNone, Algorithm::kTwoShot, Dtype::kFp32, 3, 1, 0), 0u);
}

TEST(TypesTest, WireBytesOfTwoShotWorkBeyondFourGiB) {
  constexpr uint64_t kCount = uint64_t{1} << 34;
  EXPECT_EQ(WireBytesSent(Codec::kNone, Algorithm::kTwoShot, Dtype::kFp16, 2, 0, kCount),
            kCount * 2);
}

}  // namespace
}  // namespace qrd
