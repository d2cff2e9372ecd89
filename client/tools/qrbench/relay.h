// SPDX-License-Identifier: Apache-2.0
// The baseline of small messages: three processes and nothing but wake-ups. Two "ranks" signal a
// process in the middle (as they would a daemon), the middle one wakes both; all of them sleep on
// futexes in between. No served operation on this machine can be much faster than this while its
// processes sleep.
//
// Thread safety: forks; call it before the process has threads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace qrd::tools {

struct RelayTimes {
  double p50_us = 0;
  double p99_us = 0;
  uint32_t iterations = 0;
};
// The time of an iteration is that of the slower rank, from its signal to its wake-up.
absl::StatusOr<RelayTimes> MeasureRelay(uint32_t iterations, uint32_t warmup);

// Nearest-rank percentile; 0 for no values. Sorts `values`.
uint64_t Percentile(std::vector<uint64_t>& values, double percent);

}  // namespace qrd::tools
