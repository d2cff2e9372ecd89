// SPDX-License-Identifier: Apache-2.0
// One all-reduce of a test: tensors of all ranks with guard bytes around the outputs, the run
// through a backend, and the comparison with the scalar reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference.h"
#include "kernels/types.h"

namespace qrd::testing {

using Bytes = std::vector<std::byte>;

struct CaseShape {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kBf16;
  ReduceOp op = ReduceOp::kSum;
  uint32_t world_size = 2;
  uint64_t count = 0;
  uint32_t in_place_mask = 0;    // bit r: rank r's output is its input
  uint64_t offset_elements = 0;  // of every tensor from a cache line

  uint64_t TensorBytes() const { return count * DtypeBytes(dtype); }
  bool InPlace(uint32_t rank) const { return (in_place_mask >> rank & 1) != 0; }
  uint64_t Tiles() const { return TileCount(count); }
  friend std::ostream& operator<<(std::ostream& out, const CaseShape& s) {
    return out << Name(s.codec) << ' ' << Name(s.algorithm) << ' ' << Name(s.dtype) << ' '
               << Name(s.op) << " world_size " << s.world_size << " count " << s.count
               << " in_place_mask " << s.in_place_mask << " offset_elements " << s.offset_elements;
  }
};

// Elements of a dtype as integers and as fp32.
inline float ElementToFp32(Dtype dtype, const std::byte* tensor, uint64_t i) {
  float value = 0;
  ReferenceWidenToFp32(dtype, tensor + i * DtypeBytes(dtype), 1, &value);
  return value;
}
inline void SetElement(Dtype dtype, Bytes& tensor, uint64_t i, float value) {
  ReferenceRoundToDtype(dtype, &value, 1, tensor.data() + i * DtypeBytes(dtype));
}
inline Bytes ToDtype(Dtype dtype, const std::vector<float>& values) {
  Bytes tensor(values.size() * DtypeBytes(dtype));
  ReferenceRoundToDtype(dtype, values.data(), values.size(), tensor.data());
  return tensor;
}
inline std::vector<float> ToFp32(Dtype dtype, const Bytes& tensor) {
  std::vector<float> values(tensor.size() / DtypeBytes(dtype));
  ReferenceWidenToFp32(dtype, tensor.data(), values.size(), values.data());
  return values;
}

// Group-wise amplitudes from 2^-12 to 2^8, some zeros: every path of every codec, no overflow.
inline std::vector<float> MixedValues(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> gauss;
  std::vector<float> values(count);
  float amplitude = 1;
  for (uint64_t i = 0; i < count; ++i) {
    if (i % 32 == 0) amplitude = std::ldexp(1.0f, static_cast<int>(random() % 21) - 12);
    values[i] = random() % 16 == 0 ? 0.0f : gauss(random) * amplitude;
    if (i % 192 >= 128) values[i] = std::copysign(0.0f, values[i]);
  }
  return values;
}
inline std::vector<float> GaussValues(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> gauss;
  std::vector<float> values(count);
  for (float& value : values) value = gauss(random);
  return values;
}
// Any bits: NaN, Inf, subnormals and the largest values included, at a rate that leaves good
// groups.
inline Bytes RandomBits(Dtype dtype, uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t element_bytes = DtypeBytes(dtype);
  Bytes tensor(count * element_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    // Clears one exponent bit in most groups, so that these are finite.
    if (i / 128 % 4 != 0) bits &= ~(uint64_t{1} << (dtype == Dtype::kFp32 ? 26 : 10));
    std::memcpy(tensor.data() + i * element_bytes, &bits, element_bytes);
  }
  return tensor;
}

inline bool IsNonFinite(Dtype dtype, const std::byte* tensor, uint64_t i) {
  return !std::isfinite(ElementToFp32(dtype, tensor, i));
}
inline uint64_t CountNonFinite(Dtype dtype, const Bytes& tensor) {
  uint64_t nonfinite = 0;
  for (uint64_t i = 0; i < tensor.size() / DtypeBytes(dtype); ++i) {
    nonfinite += IsNonFinite(dtype, tensor.data(), i);
  }
  return nonfinite;
}

// Runs the tiles of an operation; the default is all of them at once.
using Runner = std::function<uint64_t(Backend&, const LaunchParams&)>;
inline uint64_t RunWhole(Backend& backend, const LaunchParams& params) {
  return backend.Run(params, {0, TileCount(params.count)});
}

// Memory of the ranks of one operation. Inputs end where their allocation ends, so that
// AddressSanitizer sees a read past them; outputs lie between guard bytes.
inline constexpr uint32_t kAllInPlace = 0xFFFF;

class CollectiveCase {
 public:
  CollectiveCase(const CaseShape& shape, std::vector<Bytes> inputs) : shape_(shape) {
    params_.codec = shape.codec;
    params_.algorithm = shape.algorithm;
    params_.dtype = shape.dtype;
    params_.op = shape.op;
    params_.world_size = shape.world_size;
    params_.count = shape.count;
    EXPECT_EQ(inputs.size(), shape.world_size);
    for (uint32_t r = 0; r < shape.world_size; ++r) {
      EXPECT_EQ(inputs[r].size(), shape.TensorBytes());
      outputs_.push_back(Allocate(2 * kGuardBytes + OffsetBytes() + shape.TensorBytes()));
      std::memset(outputs_[r].get(), kGuard, 2 * kGuardBytes + OffsetBytes() + shape.TensorBytes());
      params_.outputs[r] = Output(r);
      std::byte* input = Output(r);
      if (!shape.InPlace(r)) {
        inputs_.push_back(Allocate(OffsetBytes() + shape.TensorBytes()));
        input = inputs_.back().get() + OffsetBytes();
      }
      if (!inputs[r].empty()) std::memcpy(input, inputs[r].data(), inputs[r].size());
      params_.inputs[r] = input;
    }
    originals_ = std::move(inputs);
  }

  const LaunchParams& params() const { return params_; }
  std::byte* Output(uint32_t rank) { return outputs_[rank].get() + kGuardBytes + OffsetBytes(); }
  Bytes Result(uint32_t rank = 0) { return {Output(rank), Output(rank) + shape_.TensorBytes()}; }
  Bytes Expected() const {
    const void* inputs[kWorldSizeMax] = {};
    for (uint32_t r = 0; r < shape_.world_size; ++r) inputs[r] = originals_[r].data();
    Bytes expected(shape_.TensorBytes());
    ReferenceAllReduce(shape_.codec, shape_.algorithm, shape_.dtype, shape_.op, shape_.world_size,
                       shape_.count, inputs, expected.data());
    return expected;
  }

  // Runs and checks what holds for every operation: all ranks hold the same bytes, nothing else was
  // written, the inputs are as they were, the count of non-finite elements is right. Returns the
  // count.
  uint64_t Run(Backend& backend, const Runner& runner = RunWhole) {
    const absl::Status status = backend.Validate(params_);
    EXPECT_TRUE(status.ok()) << status.ToString() << ": " << shape_;
    if (!status.ok()) return 0;
    const uint64_t nonfinite = runner(backend, params_);
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      EXPECT_TRUE(Result(r) == Result(0)) << "rank " << r << " differs from rank 0: " << shape_;
      EXPECT_TRUE(GuardsAreIntact(r)) << "rank " << r << ": " << shape_;
      if (shape_.InPlace(r) || shape_.count == 0) continue;
      EXPECT_EQ(std::memcmp(params_.inputs[r], originals_[r].data(), originals_[r].size()), 0)
          << "input of rank " << r << " changed: " << shape_;
    }
    EXPECT_EQ(nonfinite, CountNonFinite(shape_.dtype, Result(0))) << shape_;
    return nonfinite;
  }

  // Run() and the comparison with the reference.
  void RunAndCompare(Backend& backend, const Runner& runner = RunWhole) {
    Run(backend, runner);
    ExpectEqual(Expected());
  }
  void ExpectEqual(const Bytes& expected) {
    const Bytes result = Result(0);
    if (result == expected) return;
    const uint64_t element_bytes = DtypeBytes(shape_.dtype);
    for (uint64_t i = 0; i < shape_.count; ++i) {
      const uint64_t at = i * element_bytes;
      if (std::memcmp(&result[at], &expected[at], element_bytes) == 0) continue;
      ADD_FAILURE() << shape_ << ": element " << i << " is "
                    << ElementToFp32(shape_.dtype, result.data(), i) << ", want "
                    << ElementToFp32(shape_.dtype, expected.data(), i);
      return;
    }
  }

 private:
  static constexpr uint64_t kGuardBytes = 256;
  static constexpr int kGuard = 0xA5;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  static Memory Allocate(uint64_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, std::max<uint64_t>(bytes, 1)) != 0) std::abort();
    return Memory(static_cast<std::byte*>(memory));
  }
  uint64_t OffsetBytes() const { return shape_.offset_elements * DtypeBytes(shape_.dtype); }
  bool GuardsAreIntact(uint32_t rank) {
    const auto intact = [](const std::byte* first, uint64_t bytes) {
      return std::all_of(first, first + bytes, [](std::byte b) { return b == std::byte{kGuard}; });
    };
    return intact(outputs_[rank].get(), kGuardBytes + OffsetBytes()) &&
           intact(Output(rank) + shape_.TensorBytes(), kGuardBytes);
  }

  const CaseShape shape_;
  LaunchParams params_;
  std::vector<Bytes> originals_;
  std::vector<Memory> inputs_;
  std::vector<Memory> outputs_;
};

// Tensors of all ranks from a generator of values.
inline std::vector<Bytes> MakeInputs(const CaseShape& shape,
                                     std::vector<float> (*values)(uint64_t, uint64_t),
                                     uint64_t seed) {
  std::vector<Bytes> inputs;
  for (uint32_t r = 0; r < shape.world_size; ++r) {
    inputs.push_back(ToDtype(shape.dtype, values(shape.count, seed * kWorldSizeMax + r)));
  }
  return inputs;
}

}  // namespace qrd::testing
