// SPDX-License-Identifier: Apache-2.0
// What every backend must do: each line of its instance list, all world sizes, any count, against
// the scalar reference, bit for bit. A new backend is added to Backends() and nowhere else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "collective_case.h"
#include "kernels/all_reduce.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::CaseShape;
using testing::CollectiveCase;
using testing::MakeInputs;

using BackendFactory = std::unique_ptr<Backend> (*)();
struct NamedBackend {
  const char* name;
  BackendFactory make;
};
constexpr NamedBackend kBackends[] = {{"host", &MakeHostBackend}};

// (backend, line of instances.def)
using Parameters = std::tuple<NamedBackend, KernelInstance>;

std::string NameOf(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [backend, instance] = info.param;
  std::string name(backend.name);
  for (const std::string_view part :
       {Name(instance.algorithm), Name(instance.codec), Name(instance.dtype)}) {
    name += '_';
    name += part;
  }
  return name;
}

class ConformanceTest : public ::testing::TestWithParam<Parameters> {
 protected:
  CaseShape Shape(uint32_t world_size, uint64_t count) const {
    CaseShape shape;
    shape.codec = instance_.codec;
    shape.algorithm = instance_.algorithm;
    shape.dtype = instance_.dtype;
    shape.world_size = world_size;
    shape.count = count;
    return shape;
  }

  const KernelInstance instance_ = std::get<1>(GetParam());
  const std::unique_ptr<Backend> backend_ = std::get<0>(GetParam()).make();
};

constexpr uint64_t kCounts[] = {0,   1,   7,    31,   32,   33,   63,   64,   65,  127,
                                128, 129, 1000, 2047, 2048, 2049, 4095, 4097, 6145};

TEST_P(ConformanceTest, EveryWorldSizeAndCountGivesTheReferenceBits) {
  uint64_t variant = 0;
  for (uint32_t n = instance_.world_size_min; n <= instance_.world_size_max; ++n) {
    for (const uint64_t count : kCounts) {
      CaseShape shape = Shape(n, count);
      shape.op = variant % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
      shape.in_place_mask = variant / 2 % 2 != 0 ? testing::kAllInPlace : 0;
      shape.offset_elements = variant % 5 == 0 ? 1 + variant % 31 : 0;
      CollectiveCase test(shape, MakeInputs(shape, testing::MixedValues, variant));
      test.RunAndCompare(*backend_);
      ++variant;
    }
  }
}

TEST_P(ConformanceTest, EveryInstructionSetGivesTheReferenceBits) {
  for (const uint32_t n : {2u, 3u, 4u, 8u}) {
    for (const uint64_t count : {5u, 130u, 2049u, 4500u}) {
      CaseShape shape = Shape(n, count);
      shape.op = n == 3 ? ReduceOp::kAvg : ReduceOp::kSum;
      std::vector<Bytes> inputs;
      for (uint32_t r = 0; r < n; ++r) {
        inputs.push_back(testing::RandomBits(shape.dtype, count, 100 * n + r));
      }
      const Bytes expected = CollectiveCase(shape, inputs).Expected();
      testing::ForEachSimdTarget([&] {
        CollectiveCase test(shape, inputs);
        test.Run(*backend_);
        test.ExpectEqual(expected);
      });
    }
  }
}

TEST_P(ConformanceTest, AnyBitsInAnyPlace) {
  for (const uint32_t n : {1u, 2u, 3u, 5u, 16u}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      CaseShape shape = Shape(n, 3 * kTileElements + 77);
      shape.op = op;
      shape.in_place_mask = op == ReduceOp::kAvg ? 0b10 : 0;
      std::vector<Bytes> inputs;
      for (uint32_t r = 0; r < n; ++r) {
        inputs.push_back(testing::RandomBits(shape.dtype, shape.count, 1000 * n + r));
      }
      CollectiveCase test(shape, inputs);
      test.RunAndCompare(*backend_);
    }
  }
}

// Sums near the limits of the dtype: Inf, marked groups and averages that come back into range.
TEST_P(ConformanceTest, OverflowFollowsTheFormat) {
  const float largest = instance_.dtype == Dtype::kFp16   ? 65504.0f
                        : instance_.dtype == Dtype::kBf16 ? 0x1.FEp127f
                                                          : 0x1.FFFFFEp127f;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    CaseShape shape = Shape(3, 1000);
    shape.op = op;
    std::vector<Bytes> inputs = MakeInputs(shape, testing::GaussValues, 7);
    for (Bytes& input : inputs) {
      testing::SetElement(shape.dtype, input, 5, largest * 0.6f);
      testing::SetElement(shape.dtype, input, 300, -largest);
      testing::SetElement(shape.dtype, input, 999, largest * 0.25f);
    }
    CollectiveCase test(shape, inputs);
    test.RunAndCompare(*backend_);
  }
}

TEST_P(ConformanceTest, AnySplitOnTwoThreadsGivesTheSameBits) {
  CaseShape shape = Shape(3, 37 * kTileElements + 41);
  const std::vector<Bytes> inputs = MakeInputs(shape, testing::MixedValues, 3);
  std::mt19937 random(1);
  std::vector<TileRange> ranges;
  for (uint64_t first = 0; first < shape.Tiles();) {
    const uint64_t last = std::min(shape.Tiles(), first + random() % 5);  // empty ones too
    ranges.push_back({first, last});
    first = last;
  }
  std::ranges::shuffle(ranges, random);
  CollectiveCase test(shape, inputs);
  test.RunAndCompare(*backend_, [&](Backend& backend, const LaunchParams& params) {
    uint64_t nonfinite[2] = {};
    const auto work = [&](size_t thread) {
      for (size_t i = thread; i < ranges.size(); i += 2) {
        nonfinite[thread] += backend.Run(params, ranges[i]);
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    return nonfinite[0] + nonfinite[1];
  });
}

// Large enough for streaming stores; outputs at a cache line and beside it, some ranks in place.
TEST_P(ConformanceTest, LargeTensorsGiveTheReferenceBits) {
  CaseShape shape = Shape(2, 0);
  shape.count = kStreamTrafficBytesMin / (4 * DtypeBytes(shape.dtype)) + 77;
  const std::vector<Bytes> inputs = MakeInputs(shape, testing::MixedValues, 5);
  const Bytes expected = CollectiveCase(shape, inputs).Expected();
  for (const uint32_t in_place_mask : {0b00u, 0b01u, 0b11u}) {
    for (const uint64_t offset_elements : {0u, 3u}) {
      shape.in_place_mask = in_place_mask;
      shape.offset_elements = offset_elements;
      CollectiveCase test(shape, inputs);
      test.Run(*backend_);
      test.ExpectEqual(expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllBackends, ConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(kBackends),
                                            ::testing::ValuesIn(AllInstances().begin(),
                                                                AllInstances().end())),
                         NameOf);

TEST(InstanceListTest, HasEveryCodecDtypeAndAlgorithm) {
  EXPECT_EQ(AllInstances().size(), size_t{kCodecCount} * 3 * 2);
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        EXPECT_TRUE(HasAllReduce(algorithm, codec, dtype, 1));
        EXPECT_TRUE(HasAllReduce(algorithm, codec, dtype, kWorldSizeMax));
        EXPECT_FALSE(HasAllReduce(algorithm, codec, dtype, 0));
        EXPECT_FALSE(HasAllReduce(algorithm, codec, dtype, kWorldSizeMax + 1));
      }
    }
  }
}

}  // namespace
}  // namespace qrd
