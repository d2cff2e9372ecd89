// SPDX-License-Identifier: Apache-2.0
// The GPU kernels' codecs and collectives, run lane by lane on the CPU
// (kernels/gpu/device_emulated.h): the same bytes as the scalar reference, without a GPU.
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulated_communicator.h"
#include "emulated_kernels.h"
#include "golden_files.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::Data;
using testing::EmulatedCommunicator;
using testing::GoldenFolder;
using testing::MakeTensor;

constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

std::string Text(Codec codec, Dtype dtype) {
  return std::string(Name(codec)) + " " + std::string(Name(dtype));
}

gpu::CodecArgs Args(const void* values, std::byte* wire, uint64_t count) {
  const auto bits = reinterpret_cast<uintptr_t>(values) | reinterpret_cast<uintptr_t>(wire);
  return {const_cast<void*>(values), reinterpret_cast<uint8_t*>(wire), count, bits % 16 == 0};
}

// Encodes and decodes with the emulated kernels and compares with the reference.
void CheckCodec(Codec codec, Dtype dtype, Dtype source, const void* x, uint64_t count) {
  const gpu::EmulatedKernels& kernels = gpu::EmulatedKernelsOf(codec, dtype);
  const uint64_t wire_bytes = EncodedBytes(codec, dtype, count);
  Bytes want(wire_bytes), wire(wire_bytes, std::byte{0xA5});
  if (source == dtype) {
    ReferenceEncode(codec, dtype, x, count, want.data());
    kernels.encode(Args(x, wire.data(), count));
  } else {
    ReferenceEncodeFp32(codec, dtype, static_cast<const float*>(x), count, want.data());
    kernels.encode_fp32(Args(x, wire.data(), count));
  }
  EXPECT_TRUE(wire == want) << "wire of " << Text(codec, dtype) << " count " << count << " from "
                            << Name(source);
  std::vector<float> want_values(count), values(count, 1234.5f);
  ReferenceDecode(codec, dtype, want.data(), count, want_values.data());
  kernels.decode_fp32(Args(values.data(), want.data(), count));
  EXPECT_EQ(std::memcmp(values.data(), want_values.data(), count * sizeof(float)), 0)
      << "values of " << Text(codec, dtype) << " count " << count;
  Bytes want_rounded(count * DtypeBytes(dtype)), rounded(want_rounded.size());
  ReferenceRoundToDtype(dtype, want_values.data(), count, want_rounded.data());
  kernels.decode(Args(rounded.data(), want.data(), count));
  EXPECT_TRUE(rounded == want_rounded) << "rounded " << Text(codec, dtype) << " count " << count;
}

TEST(EmulatedCodecTest, HardTensorsGiveTheReferencesBytes) {
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : kDtypes) {
      for (const Data data : {Data::kOrdinary, Data::kAdversarial, Data::kBits}) {
        for (const uint64_t count : {1u, 40u, 2048u, 2 * 2048u + 777u}) {
          const auto seed = static_cast<uint32_t>(count);
          CheckCodec(codec, dtype, dtype, MakeTensor(dtype, count, data, seed).data(), count);
          if (dtype == Dtype::kFp32) continue;
          CheckCodec(codec, dtype, Dtype::kFp32, MakeTensor(Dtype::kFp32, count, data, seed).data(),
                     count);
        }
      }
    }
  }
}

TEST(EmulatedCodecTest, AnyWireBytesDecodeAsInTheReference) {
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : kDtypes) {
      constexpr uint64_t kCount = 2048 + 100;
      Bytes wire =
          MakeTensor(Dtype::kFp32, EncodedBytes(codec, dtype, kCount) / 4 + 1, Data::kBits, 9);
      std::vector<float> want(kCount), values(kCount);
      ReferenceDecode(codec, dtype, wire.data(), kCount, want.data());
      gpu::EmulatedKernelsOf(codec, dtype).decode_fp32(Args(values.data(), wire.data(), kCount));
      EXPECT_EQ(std::memcmp(values.data(), want.data(), kCount * sizeof(float)), 0)
          << Text(codec, dtype);
    }
  }
}

TEST(EmulatedCodecTest, GoldenFilesAreMatchedByteForByte) {
  const GoldenFolder golden = testing::LoadGoldenFolder(QRD_TEST_DATA_DIR "/golden/codec");
  int checked = 0;
  for (const auto& record : golden.records) {
    if (record.at("test") != "codec") continue;
    const Codec codec = GoldenFolder::CodecOf(record);
    const Dtype dtype = GoldenFolder::DtypeOf(record);
    const Dtype source = GoldenFolder::DtypeOf(record, "in_type");
    const auto count = record.at("n").get<uint64_t>();
    const Bytes input =
        testing::Slice(golden.inputs, record.at("input"), count * DtypeBytes(source));
    const Bytes want = testing::Slice(golden.wire, record.at("wire"), record.at("wire_size"));
    Bytes wire(want.size());
    const gpu::EmulatedKernels& kernels = gpu::EmulatedKernelsOf(codec, dtype);
    (source == dtype ? kernels.encode
                     : kernels.encode_fp32)(Args(input.data(), wire.data(), count));
    EXPECT_TRUE(wire == want) << GoldenFolder::Describe(record);
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

uint64_t CountNonFinite(Dtype dtype, const Bytes& tensor) {
  uint64_t non_finite = 0;
  std::vector<float> values(tensor.size() / DtypeBytes(dtype));
  ReferenceWidenToFp32(dtype, tensor.data(), values.size(), values.data());
  for (const float value : values) non_finite += !std::isfinite(value);
  return non_finite;
}

struct Case {
  Codec codec;
  Algorithm algorithm;
  Dtype dtype;
  ReduceOp op;
  uint64_t count;
  bool in_place;
  uint32_t offset_elements;  // misaligns the tensors
};

void CheckReduce(EmulatedCommunicator& communicator, uint32_t world_size, const Case& c,
                 uint32_t seed) {
  const uint64_t bytes = c.count * DtypeBytes(c.dtype);
  const uint64_t offset = c.offset_elements * DtypeBytes(c.dtype);
  std::vector<Bytes> inputs, outputs;
  std::vector<const void*> input_pointers;
  std::vector<void*> output_pointers;
  const Data data = seed % 2 == 0 ? Data::kOrdinary : Data::kAdversarial;
  for (uint32_t r = 0; r < world_size; ++r) {
    const Bytes tensor = MakeTensor(c.dtype, c.count, data, seed * 31 + r);
    inputs.emplace_back(bytes + offset + 16);
    std::memcpy(inputs.back().data() + offset, tensor.data(), bytes);
    outputs.emplace_back(bytes + offset + 16, std::byte{0x5A});
  }
  for (uint32_t r = 0; r < world_size; ++r) {
    input_pointers.push_back(inputs[r].data() + offset);
    output_pointers.push_back((c.in_place ? inputs : outputs)[r].data() + offset);
  }
  Bytes want(bytes);
  ReferenceAllReduce(c.codec, c.algorithm, c.dtype, c.op, world_size, c.count,
                     input_pointers.data(), want.data());
  communicator.Run(c.codec, c.algorithm, c.dtype, c.op, c.count, input_pointers, output_pointers);
  uint64_t non_finite = 0;
  for (uint32_t r = 0; r < world_size; ++r) {
    EXPECT_EQ(std::memcmp(output_pointers[r], want.data(), bytes), 0)
        << Text(c.codec, c.dtype) << " " << Name(c.algorithm) << " " << Name(c.op) << " count "
        << c.count << " rank " << r << " of " << world_size << " offset " << c.offset_elements;
    non_finite += communicator.status(r).non_finite;
    EXPECT_EQ(communicator.status(r).timed_out, 0u);
    if (!c.in_place) {
      EXPECT_EQ(outputs[r][bytes + offset], std::byte{0x5A}) << "behind the end";
    }
  }
  EXPECT_EQ(non_finite, CountNonFinite(c.dtype, want)) << Text(c.codec, c.dtype);
}

class EmulatedAllReduceTest : public ::testing::TestWithParam<uint32_t> {};

// One communicator for all of them: calls of different shapes follow each other (F07, F10).
TEST_P(EmulatedAllReduceTest, EveryInstanceGivesTheReferencesBytes) {
  const uint32_t world_size = GetParam();
  EmulatedCommunicator communicator(world_size, world_size < 4 ? 2 : 1);
  uint32_t seed = 1;
  for (const Codec codec : kAllCodecs) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const Dtype dtype : kDtypes) {
        const uint64_t tail = 2048 * world_size + 555 + seed % 17;
        const ReduceOp op = seed % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum;
        CheckReduce(communicator, world_size,
                    {codec, algorithm, dtype, op, tail, seed % 2 == 0, seed % 5 == 0 ? 1u : 0u},
                    seed);
        ++seed;
      }
      CheckReduce(communicator, world_size,
                  {codec, algorithm, Dtype::kBf16, ReduceOp::kSum, 31, false, 0}, seed++);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(WorldSizes, EmulatedAllReduceTest, ::testing::Values(2, 3, 5));

TEST(EmulatedCommunicatorTest, MoreTilesThanThePoolAreRunInSteps) {
  EmulatedCommunicator communicator(2, 1);
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp3c}) {
      CheckReduce(communicator, 2,
                  {codec, algorithm, Dtype::kFp16, ReduceOp::kSum, 2048 * 37 + 5, false, 0}, 4);
    }
  }
}

TEST(EmulatedCommunicatorTest, AMissingRankEndsTheWaitAndIsNamed) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kInt4, Codec::kNone}) {
      EmulatedCommunicator communicator(3, 1);
      communicator.timeout_ns = 20'000'000;
      const Bytes tensor = MakeTensor(Dtype::kFp16, 4096, Data::kOrdinary, 1);
      Bytes output(tensor.size());
      const void* inputs[] = {tensor.data(), tensor.data(), tensor.data()};
      void* outputs[] = {output.data(), output.data(), output.data()};
      communicator.Run(codec, algorithm, Dtype::kFp16, ReduceOp::kSum, 4096, inputs, outputs,
                       {0, 2});
      EXPECT_EQ(communicator.aborted(), 1u);
      EXPECT_EQ(communicator.status(0).timed_out + communicator.status(2).timed_out, 1u)
          << "the first to give up stops the other";
      for (const uint32_t r : {0u, 2u}) {
        if (communicator.status(r).timed_out != 0) {
          EXPECT_EQ(communicator.status(r).missing, 1u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace qrd
