// SPDX-License-Identifier: Apache-2.0
// The SIMD codecs against the scalar reference, bit for bit, on every instruction set of this
// machine.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "codec_inputs.h"
#include "kernels/codec_kernels.h"
#include "kernels/reference.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::CodecInputs;
using testing::ForEachSimdTarget;
using testing::kDtypes;
using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr std::byte kGuard{0xA5};

// Whole tiles, every tail up to 300, and both sides of tile edges.
std::vector<uint64_t> Counts() {
  std::vector<uint64_t> counts;
  for (uint64_t count = 0; count <= 300; ++count) counts.push_back(count);
  for (const uint64_t tiles : {1, 2}) {
    for (const int64_t delta :
         {-129, -128, -65, -64, -33, -32, -31, -1, 0, 1, 31, 32, 33, 64, 65, 128, 129, 1000}) {
      counts.push_back(tiles * kTileElements + static_cast<uint64_t>(delta));
    }
  }
  return counts;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class CodecTest : public ::testing::TestWithParam<Codec> {};

TEST_P(CodecTest, EncodesAndDecodesLikeTheReference) {
  const Codec codec = GetParam();
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      for (const uint32_t seed : {1u, 2u, 3u}) {
        const uint64_t count = seed == 1 ? 3 * kTileElements + 777 : 2 * kTileElements - 65;
        for (const auto& input : CodecInputs(dtype, count, seed)) {
          Bytes want(EncodedBytes(codec, dtype, count)), got(want.size());
          ReferenceEncodeFp32(codec, dtype, input.values.data(), count, want.data());
          EncodeFp32(codec, dtype, input.values.data(), count, got.data());
          ASSERT_TRUE(got == want) << Name(dtype) << ", " << input.name << ", seed " << seed;
          Floats want_values(count), got_values(count);
          ReferenceDecode(codec, dtype, want.data(), count, want_values.data());
          Decode(codec, dtype, want.data(), count, got_values.data());
          ASSERT_TRUE(SameBits(got_values, want_values))
              << Name(dtype) << ", " << input.name << ", seed " << seed;
        }
      }
    }
  });
}

TEST_P(CodecTest, EncodesElementsOfTheDtypeLikeTheReference) {
  const Codec codec = GetParam();
  constexpr uint64_t kCount = 2 * kTileElements + 100;
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      for (const auto& input : CodecInputs(dtype, kCount, 4)) {
        Bytes x(kCount * DtypeBytes(dtype));
        ReferenceRoundToDtype(dtype, input.values.data(), kCount, x.data());
        Bytes want(EncodedBytes(codec, dtype, kCount)), got(want.size());
        ReferenceEncode(codec, dtype, x.data(), kCount, want.data());
        Encode(codec, dtype, x.data(), kCount, got.data());
        ASSERT_TRUE(got == want) << Name(dtype) << ", " << input.name;
      }
    }
  });
}

// Every length, wire and tensor at odd places, guards on both sides of what is written. The input
// ends where its allocation ends, so that ASan sees a read past it.
TEST_P(CodecTest, StaysInsideItsBuffersAtEveryLengthAndAlignment) {
  const Codec codec = GetParam();
  const Floats source = CodecInputs(Dtype::kFp16, 3 * kTileElements, 5).front().values;
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      for (const uint64_t count : Counts()) {
        const uint64_t wire_bytes = EncodedBytes(codec, dtype, count);
        const size_t wire_offset = 1 + count % 7, element_offset = count % 5;
        const Floats values(source.begin(), source.begin() + static_cast<int64_t>(count));
        Bytes x((element_offset + count) * DtypeBytes(dtype));
        std::byte* first = x.data() + element_offset * DtypeBytes(dtype);
        ReferenceRoundToDtype(dtype, values.data(), count, first);

        // With what belongs in them between guards.
        Bytes want_wire(wire_offset + wire_bytes + 64, kGuard), wire = want_wire;
        ReferenceEncode(codec, dtype, first, count, want_wire.data() + wire_offset);
        Encode(codec, dtype, first, count, wire.data() + wire_offset);
        ASSERT_TRUE(wire == want_wire) << Name(dtype) << ", count " << count;

        const Bytes exact(wire.begin(), wire.end() - 64);
        Floats want(element_offset + count + 20, -123.25f), got = want;
        ReferenceDecode(codec, dtype, exact.data() + wire_offset, count,
                        want.data() + element_offset);
        Decode(codec, dtype, exact.data() + wire_offset, count, got.data() + element_offset);
        ASSERT_TRUE(SameBits(got, want)) << Name(dtype) << ", count " << count;
      }
    }
  });
}

TEST_P(CodecTest, DecodesHostileBytesLikeTheReference) {
  const Codec codec = GetParam();
  std::mt19937 random(6);
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      for (int round = 0; round < 20; ++round) {
        const uint64_t count = round % 4 == 0 ? 1 + random() % 300 : kTileElements + random() % 500;
        Bytes wire(EncodedBytes(codec, dtype, count));
        for (std::byte& byte : wire) byte = static_cast<std::byte>(random());
        if (round % 3 == 1) {  // scales and group words of all ones and zeros come up too
          for (size_t i = 0; i < wire.size(); i += 1 + random() % 3) {
            wire[i] = random() % 2 == 0 ? std::byte{0xFF} : std::byte{0x00};
          }
        }
        Floats want(count), got(count);
        ReferenceDecode(codec, dtype, wire.data(), count, want.data());
        Decode(codec, dtype, wire.data(), count, got.data());
        ASSERT_TRUE(SameBits(got, want)) << Name(dtype) << ", round " << round;
        for (const float value : got) {
          if (!std::isnan(value)) continue;
          ASSERT_EQ(std::bit_cast<uint32_t>(value), kCanonicalNanBits);
        }
      }
    }
  });
}

// Every value of the 16-bit scale, every code.
class BlockCodecTest : public CodecTest {};

TEST_P(BlockCodecTest, DecodesEveryScaleLikeTheReference) {
  const Codec codec = GetParam();
  constexpr uint64_t kGroups = kTileElements / 32, kTiles = 65536 / kGroups;
  const uint64_t data_bytes = EncodedBytes(codec, Dtype::kFp16, kTileElements) - kGroups * 2;
  std::mt19937 random(7);
  Bytes wire;
  for (uint64_t tile = 0; tile < kTiles; ++tile) {
    for (uint64_t i = 0; i < data_bytes; ++i) wire.push_back(static_cast<std::byte>(random()));
    for (uint64_t g = 0; g < kGroups; ++g) {
      const uint64_t scale = tile * kGroups + g;
      wire.push_back(static_cast<std::byte>(scale & 0xFF));
      wire.push_back(static_cast<std::byte>(scale >> 8));
    }
  }
  constexpr uint64_t kCount = kTiles * kTileElements;
  Floats got(kCount), want(kCount);
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    ReferenceDecode(codec, dtype, wire.data(), kCount, want.data());
    ForEachSimdTarget([&] {
      Decode(codec, dtype, wire.data(), kCount, got.data());
      ASSERT_TRUE(SameBits(got, want)) << Name(dtype);
    });
  }
}

TEST_P(CodecTest, PartsAtTileBoundariesGiveTheBytesOfTheWhole) {
  const Codec codec = GetParam();
  constexpr uint64_t kCount = 4 * kTileElements + 99, kCut = 2 * kTileElements;
  const Floats x = CodecInputs(Dtype::kBf16, kCount, 8).front().values;
  ForEachSimdTarget([&] {
    for (const Dtype dtype : kDtypes) {
      Bytes whole(EncodedBytes(codec, dtype, kCount)), parts(whole.size());
      EncodeFp32(codec, dtype, x.data(), kCount, whole.data());
      EncodeFp32(codec, dtype, x.data(), kCut, parts.data());
      EncodeFp32(codec, dtype, x.data() + kCut, kCount - kCut,
                 parts.data() + EncodedBytes(codec, dtype, kCut));
      EXPECT_TRUE(whole == parts) << Name(dtype);
    }
  });
}

TEST_P(CodecTest, RoundTripOfATileIsEncodeThenDecode) {
  const Codec codec = GetParam();
  ForEachSimdTarget([&] {
    const CodecKernels& kernels = KernelsFor(codec);
    for (const Dtype dtype : kDtypes) {
      for (const uint32_t count : {1u, 31u, 32u, 33u, 100u, 300u, 1024u, 2047u, 2048u}) {
        for (const auto& input : CodecInputs(dtype, count, 9)) {
          Bytes wire(EncodedBytes(codec, dtype, count));
          Floats want(count), apart(count), in_place = input.values;
          ReferenceEncodeFp32(codec, dtype, input.values.data(), count, wire.data());
          ReferenceDecode(codec, dtype, wire.data(), count, want.data());
          kernels.round_trip_tile(dtype, input.values.data(), count, apart.data());
          kernels.round_trip_tile(dtype, in_place.data(), count, in_place.data());
          ASSERT_TRUE(SameBits(apart, want)) << Name(dtype) << ", " << input.name << ", " << count;
          ASSERT_TRUE(SameBits(in_place, want)) << Name(dtype) << ", " << input.name;
        }
      }
    }
  });
}

std::string ParamName(const ::testing::TestParamInfo<Codec>& info) {
  return std::string(Name(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest, ::testing::ValuesIn(kAllCodecs), ParamName);
INSTANTIATE_TEST_SUITE_P(All, BlockCodecTest,
                         ::testing::Values(Codec::kFp8, Codec::kInt8, Codec::kInt6, Codec::kInt4,
                                           Codec::kFp4, Codec::kInt3),
                         ParamName);

}  // namespace
}  // namespace qrd
