// SPDX-License-Identifier: Apache-2.0
// The GPU kernels' collectives, run lane by lane on the CPU (kernels/gpu/device_emulated.h): the
// same bytes as the scalar reference, without a GPU.
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "emulated_communicator.h"
#include "emulated_kernels.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::Data;
using testing::EmulatedCommunicator;
using testing::MakeTensor;

constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

std::string Text(Codec codec, Dtype dtype) {
  return std::string(Name(codec)) + " " + std::string(Name(dtype));
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
    EXPECT_EQ(communicator.done()[r], 1u) << "done word of rank " << r;
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
        EXPECT_EQ(communicator.done()[r], 0u) << "the host stores it";
        if (communicator.status(r).timed_out != 0) {
          EXPECT_EQ(communicator.status(r).missing, 1u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace qrd
