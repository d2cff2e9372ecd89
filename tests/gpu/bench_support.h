// SPDX-License-Identifier: Apache-2.0
// What the parts of the benchmark share.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "device_support.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

// Prints its table to standard output.
void BenchEpilogue();
void BenchLinks();

// Fills device memory with N(0,1) values of the dtype, a block of 16 MiB again and again.
inline void Fill(const DeviceBuffer& buffer, Dtype dtype, uint32_t seed) {
  static std::map<std::pair<Dtype, uint32_t>, Bytes> cache;
  Bytes& block = cache[{dtype, seed}];
  if (block.empty()) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(4 * kMiB);
    for (float& value : values) value = normal(random);
    block.resize(values.size() * DtypeBytes(dtype));
    ReferenceRoundToDtype(dtype, values.data(), values.size(), block.data());
  }
  for (uint64_t at = 0; at < buffer.bytes(); at += block.size()) {
    QRD_MUST(hipMemcpy(buffer.data() + at, block.data(),
                       std::min(block.size(), buffer.bytes() - at), hipMemcpyHostToDevice));
  }
}

}  // namespace qrd::testing
