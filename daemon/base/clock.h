// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC in nanoseconds: every timestamp of the data path.
#pragma once

#include <time.h>

#include <cstdint>

namespace qrd {

inline uint64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

}  // namespace qrd
