// SPDX-License-Identifier: Apache-2.0
// CLOCK_MONOTONIC in nanoseconds (the clock of the completions) and deadlines on it.
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <ctime>
#include <limits>

namespace qrd::client {

inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

inline uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// 0 if the deadline has passed, kNever if there is none.
inline uint64_t RemainingNs(uint64_t deadline_ns) {
  if (deadline_ns == kNever) return kNever;
  const uint64_t now = NowNs();
  return now >= deadline_ns ? 0 : deadline_ns - now;
}

// Rounded up, so that a poll never returns just before the deadline.
inline int RemainingPollMs(uint64_t deadline_ns) {
  const uint64_t remaining = RemainingNs(deadline_ns);
  if (remaining == kNever) return -1;
  const uint64_t ms = remaining / kNsPerMs + (remaining % kNsPerMs != 0);
  return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
}

}  // namespace qrd::client
