// SPDX-License-Identifier: Apache-2.0
#include "kernels/types.h"

#include <algorithm>

namespace qrd {
namespace {

constexpr std::array<std::string_view, kCodecCount> kCodecNames = {
    "none", "fp8", "int8", "int6", "int4", "fp4", "int3", "lp4", "lp3", "lp3c", "lp2"};
constexpr std::array kAllDtypes = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};
constexpr std::array kAllAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot,
                                       Algorithm::kLibrary};
constexpr std::array kAllReduceOps = {ReduceOp::kSum, ReduceOp::kAvg};

template <typename T>
std::optional<T> FindByName(const auto& values, std::string_view name) {
  for (const T value : values) {
    if (Name(value) == name) return value;
  }
  return std::nullopt;
}

uint64_t OwnedElements(uint64_t count, uint32_t world_size, uint32_t rank) {
  const TileRange range = OwnedTiles(count, world_size, rank);
  // No overflow: a tile number times kTileElements is at most count rounded up to a tile.
  const uint64_t first = range.first * kTileElements;
  const uint64_t last = range.last > count / kTileElements ? count : range.last * kTileElements;
  return last > first ? last - first : 0;
}

}  // namespace

std::string_view Name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp16:
      return "fp16";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kFp32:
      return "fp32";
  }
  return "unknown";
}

std::string_view Name(Codec codec) {
  const auto id = static_cast<size_t>(codec);
  return id < kCodecNames.size() ? kCodecNames[id] : "unknown";
}

std::string_view Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return "one_shot";
    case Algorithm::kTwoShot:
      return "two_shot";
    case Algorithm::kLibrary:
      return "library";
  }
  return "unknown";
}

std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
  }
  return "unknown";
}

std::optional<Dtype> ParseDtype(std::string_view name) {
  return FindByName<Dtype>(kAllDtypes, name);
}
std::optional<Codec> ParseCodec(std::string_view name) {
  return FindByName<Codec>(kAllCodecs, name);
}
std::optional<Algorithm> ParseAlgorithm(std::string_view name) {
  return FindByName<Algorithm>(kAllAlgorithms, name);
}
std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  return FindByName<ReduceOp>(kAllReduceOps, name);
}

uint64_t WireBytesSent(Codec codec, Algorithm algorithm, Dtype dtype, uint32_t world_size,
                       uint32_t rank, uint64_t count) {
  if (world_size < 2 || rank >= world_size) return 0;
  if (algorithm == Algorithm::kOneShot) {
    return (world_size - 1) * EncodedBytes(codec, dtype, count);
  }
  // Phase 1: the own part of every other owner's segment. Phase 2: the own segment to every other.
  uint64_t bytes = 0;
  for (uint32_t owner = 0; owner < world_size; ++owner) {
    const uint64_t segment = EncodedBytes(codec, dtype, OwnedElements(count, world_size, owner));
    bytes += owner == rank ? (world_size - 1) * segment : segment;
  }
  return bytes;
}

}  // namespace qrd
