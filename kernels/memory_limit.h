// SPDX-License-Identifier: Apache-2.0
// The machine's limit for a host all-reduce, measured: `ranks` inputs read and `ranks` outputs
// written with streaming stores, by all cores at once, with no codec, daemon or process in the way.
// qrbench and the benchmarks print what fraction of it they reach, in the same run.
//
// Thread safety: callable from any thread; starts its own threads and joins them before it returns.
// Two measurements at the same time disturb each other.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace qrd {

struct MemoryLimitOptions {
  uint64_t payload_bytes = uint64_t{64} << 20;  // one input or output; a multiple of 64
  uint32_t ranks = 2;                           // 1 to 16
  uint32_t threads = 0;                         // 0: one a core
  uint32_t repetitions = 9;                     // the median counts; 1 to 1000
};

// Time of one pass.
struct MemoryLimit {
  double seconds_median = 0;
  double seconds_min = 0;
  uint64_t traffic_bytes = 0;  // 2 * ranks * payload_bytes
  double TrafficBytesPerSecond() const {
    return static_cast<double>(traffic_bytes) / seconds_median;
  }
};

// The buffers of a measurement, kept for several (allocating and touching them takes longer than a
// pass). INVALID_ARGUMENT naming field, value and bound; RESOURCE_EXHAUSTED if memory is short.
absl::StatusOr<MemoryLimit> MeasureMemoryLimit(const MemoryLimitOptions& options);

}  // namespace qrd
