// SPDX-License-Identifier: Apache-2.0
// What a report says about the machine, and the machine's limit for an all-reduce.
//
// Thread safety: pure functions, except MachineLimits (one thread).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace qrd::tools {

struct Machine {
  std::string cpu, kernel, simd_target;
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
};
Machine DescribeMachine();

// "GNU 12.2.0" or "Clang 14.0.6"
std::string CompilerVersion();

// Measures kernels/memory_limit.h once for each size and number of ranks.
class MachineLimits {
 public:
  // Algorithm bandwidth in GB/s of `ranks` inputs of payload_bytes read and as many outputs written
  // by streaming stores on all cores; nullopt below kPayloadBytesMin (there caches decide) and
  // where memory is short.
  std::optional<double> AlgorithmGbps(uint64_t payload_bytes, uint32_t ranks);

  static constexpr uint64_t kPayloadBytesMin = uint64_t{1} << 20;

 private:
  std::map<std::pair<uint64_t, uint32_t>, std::optional<double>> measured_;
};

}  // namespace qrd::tools
