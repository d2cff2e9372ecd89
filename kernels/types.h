// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the kernels: dtypes, codecs, algorithms, and the arithmetic of sizes.
// Everything here is a pure function of its arguments: thread-safe, no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "proto/shm/layout.h"

namespace qrd {

using Dtype = shm::Dtype;        // kFp16, kBf16, kFp32
using ReduceOp = shm::ReduceOp;  // kSum, kAvg

// Ids of the wire format (docs: wire format, section 2).
enum class Codec : uint8_t {
  kNone = 0,
  kFp8 = 1,
  kInt8 = 2,
  kInt6 = 3,
  kInt4 = 4,
  kFp4 = 5,
  kInt3 = 6,
  kLp4 = 7,
  kLp3 = 8,
  kLp3c = 9,
  kLp2 = 10,
};
inline constexpr int kCodecCount = 11;
inline constexpr std::array<Codec, kCodecCount> kAllCodecs = {
    Codec::kNone, Codec::kFp8, Codec::kInt8, Codec::kInt6, Codec::kInt4, Codec::kFp4,
    Codec::kInt3, Codec::kLp4, Codec::kLp3,  Codec::kLp3c, Codec::kLp2};

// kLibrary: the vendor's collective library (RCCL, NCCL), without a codec, in its own order of
// additions; of GPU communicators only.
enum class Algorithm : uint8_t { kOneShot = 1, kTwoShot = 2, kLibrary = 3 };

inline constexpr uint64_t kTileElements = 2048;
inline constexpr uint32_t kWorldSizeMax = shm::kWorldSizeMax;

// "fp16", "int4", "two_shot", "sum": the names used in policy, metrics, CLI and golden files.
std::string_view Name(Dtype dtype);
std::string_view Name(Codec codec);
std::string_view Name(Algorithm algorithm);
std::string_view Name(ReduceOp op);
// nullopt for anything but an exact name.
std::optional<Dtype> ParseDtype(std::string_view name);
std::optional<Codec> ParseCodec(std::string_view name);
std::optional<Algorithm> ParseAlgorithm(std::string_view name);
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

constexpr uint64_t DtypeBytes(Dtype dtype) { return dtype == Dtype::kFp32 ? 4 : 2; }

// Elements of a group (1 for none) and wire bytes of one group.
struct CodecShape {
  uint32_t group_elements;
  uint32_t group_bytes;
};
constexpr CodecShape ShapeOf(Codec codec, Dtype dtype) {
  switch (codec) {
    case Codec::kNone:
      return {1, static_cast<uint32_t>(DtypeBytes(dtype))};
    case Codec::kFp8:
    case Codec::kInt8:
      return {32, 34};
    case Codec::kInt6:
      return {32, 26};
    case Codec::kInt4:
    case Codec::kFp4:
      return {32, 18};
    case Codec::kInt3:
      return {32, 14};
    case Codec::kLp4:
      return {64, 36};
    case Codec::kLp3:
      return {64, 28};
    case Codec::kLp3c:
      return {128, 52};
    case Codec::kLp2:
      return {64, 20};
  }
  return {1, 0};
}

// Wire bytes of `count` elements: full tiles, then the whole groups that cover the rest.
constexpr uint64_t EncodedBytes(Codec codec, Dtype dtype, uint64_t count) {
  const CodecShape s = ShapeOf(codec, dtype);
  const uint64_t tail = count % kTileElements;
  return (count / kTileElements * (kTileElements / s.group_elements) +
          (tail + s.group_elements - 1) / s.group_elements) *
         s.group_bytes;
}

constexpr uint64_t TileCount(uint64_t count) {
  return count / kTileElements + (count % kTileElements != 0);
}

// Tiles [first, last) that `rank` owns in two_shot; the first ranks take the odd ones.
struct TileRange {
  uint64_t first;
  uint64_t last;
};
constexpr TileRange OwnedTiles(uint64_t count, uint32_t world_size, uint32_t rank) {
  const uint64_t tiles = TileCount(count), q = tiles / world_size, m = tiles % world_size;
  const uint64_t first = q * rank + (rank < m ? rank : m);
  return {first, first + q + (rank < m ? 1 : 0)};
}

// Bytes that rank `rank` sends over links: two_shot sends every other owner its encoded part and
// the own encoded segment to every other rank; one_shot sends the whole encoded tensor to every
// other rank. library: as two_shot, which is what a ring sends.
uint64_t WireBytesSent(Codec codec, Algorithm algorithm, Dtype dtype, uint32_t world_size,
                       uint32_t rank, uint64_t count);

}  // namespace qrd
