// SPDX-License-Identifier: Apache-2.0
#include "kernels/auto_plan.h"

#include <limits>

namespace qrd {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10, kMiB = uint64_t{1} << 20;

struct CodecRow {
  uint32_t world_size_min, world_size_max;
  Codec codec;
  uint64_t payload_bytes_min;
};

// 16-bit tensors over xGMI, coarse to fine: the first row that the facts admit decides. Published
// for QuickReduce, whose codecs have as many bytes on the wire: sizes from which vLLM and aiter use
// it (TP2 / TP4 / TP8, MiB: int4 1 / 2 / 2, in aiter 8; int6 2 / 4 / 4; int8 2 / 16 / 4), MI300X
// (mk1-project/quickreduce, README) and MI355X figures (AMD blogs on FP4 and INT3). int4 at TP8: 4
// MiB, between the two, where 44 us meet 47 us. int8 at TP8 gains nothing at 4 to 64 MiB, and int3
// beats int4 only at TP2 above 4 MiB; lp3 has its bytes and 2.6 dB more. More than 8 ranks: no
// figures, no codec.
constexpr CodecRow kCodecRows[] = {{2, 2, Codec::kLp3, 4 * kMiB},  {2, 2, Codec::kInt4, kMiB},
                                   {3, 4, Codec::kInt4, 2 * kMiB}, {5, 8, Codec::kInt4, 4 * kMiB},
                                   {2, 2, Codec::kInt6, 2 * kMiB}, {3, 4, Codec::kInt6, 4 * kMiB},
                                   {5, 8, Codec::kInt6, 4 * kMiB}, {2, 2, Codec::kInt8, 2 * kMiB},
                                   {3, 4, Codec::kInt8, 16 * kMiB}};

// one_shot up to these payloads on one device: measured on one H200 at 2 and 8 ranks, bf16, none
// and int4, and interpolated between the sizes; 4 ranks lie between, 16 are extrapolated.
struct SameDeviceRow {
  uint32_t world_size_max;
  uint64_t none_bytes_max, codec_bytes_max;
};
constexpr SameDeviceRow kSameDeviceRows[] = {
    {1, std::numeric_limits<uint64_t>::max(), std::numeric_limits<uint64_t>::max()},
    {2, 2 * kMiB, 4 * kMiB},
    {4, 256 * kKiB, 2 * kMiB},
    {8, 64 * kKiB, 2 * kMiB},
    {kWorldSizeMax, 16 * kKiB, kMiB}};

// one_shot between more than two devices: up to so many bytes on the wire, over the world size
// (128 rows of 7168 bf16 values: aiter#3880; measured crossovers on MI355X at TP4: 400 to 470 KiB,
// aiter#3458). vLLM's 512 KiB at TP4 and 256 KiB at TP8 (csrc/custom_all_reduce.cuh) are near.
constexpr uint64_t kOneShotWireBytesMaxTimesWorldSize = 1'835'008;

// RCCL against uncompressed kernels on MI300X (mk1 README): 205 / 239 us at TP4 16 MiB, 426 / 464
// at TP8 64 MiB; equal or slower below, and at TP2.
struct LibraryRow {
  uint32_t world_size_min, world_size_max;
  uint64_t payload_bytes_min;
};
constexpr LibraryRow kLibraryRows[] = {{3, 4, 16 * kMiB}, {5, 8, 64 * kMiB}};

bool FinerOrEqual(Codec codec, Codec coarsest) {
  constexpr Dtype kAny = Dtype::kBf16;
  return EncodedBytes(codec, kAny, kTileElements) >= EncodedBytes(coarsest, kAny, kTileElements);
}

Codec ChooseCodec(const AutoFacts& facts) {
  // fp32 tensors: every published figure, and every evaluation of a model, is for 16 bits.
  if (facts.link != LinkKind::kXgmi || facts.dtype == Dtype::kFp32) return Codec::kNone;
  for (const CodecRow& row : kCodecRows) {
    if (facts.world_size >= row.world_size_min && facts.world_size <= row.world_size_max &&
        facts.payload_bytes >= row.payload_bytes_min && FinerOrEqual(row.codec, facts.coarsest)) {
      return row.codec;
    }
  }
  return Codec::kNone;
}

Algorithm ChooseAlgorithm(const AutoFacts& facts, Codec codec) {
  const auto up_to = [](uint64_t bytes, uint64_t bytes_max) {
    return bytes <= bytes_max ? Algorithm::kOneShot : Algorithm::kTwoShot;
  };
  // Two devices with a codec: the same bytes cross the link, quantized once instead of twice (1.5
  // to 3 dB), and one meeting less. Without a codec two_shot moves fewer bytes within a device.
  if (facts.link != LinkKind::kSameDevice && facts.world_size == 2 && codec != Codec::kNone) {
    return Algorithm::kOneShot;
  }
  if (facts.link == LinkKind::kSameDevice || facts.world_size <= 2) {
    for (const SameDeviceRow& row : kSameDeviceRows) {
      if (facts.world_size > row.world_size_max) continue;
      return up_to(facts.payload_bytes,
                   codec == Codec::kNone ? row.none_bytes_max : row.codec_bytes_max);
    }
  }
  const uint64_t count = facts.payload_bytes / DtypeBytes(facts.dtype);
  return up_to(EncodedBytes(codec, facts.dtype, count),
               kOneShotWireBytesMaxTimesWorldSize / facts.world_size);
}

bool ChooseLibrary(const AutoFacts& facts, Codec codec) {
  if (!facts.library_available || codec != Codec::kNone || facts.link != LinkKind::kXgmi) {
    return false;
  }
  for (const LibraryRow& row : kLibraryRows) {
    if (facts.world_size >= row.world_size_min && facts.world_size <= row.world_size_max) {
      return facts.payload_bytes >= row.payload_bytes_min;
    }
  }
  return false;
}

}  // namespace

AutoPlan PlanAuto(const AutoFacts& facts) {
  AutoPlan plan;
  plan.codec = facts.codec.has_value() ? *facts.codec : ChooseCodec(facts);
  plan.algorithm = ChooseAlgorithm(facts, plan.codec);
  plan.library = ChooseLibrary(facts, plan.codec);
  return plan;
}

}  // namespace qrd
