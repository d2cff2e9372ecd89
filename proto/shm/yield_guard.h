// SPDX-License-Identifier: Apache-2.0
// When it pays to spin on a word of the shared memory. Both sides spin by sched_yield(), so that
// with as many processes as cores each gets its turn. That pays while whoever gets the processor
// gives it back soon. A program that computes keeps it for a tick of the scheduler (some
// milliseconds), and a thread that yielded is not brought back early by what it waits for, as one
// that sleeps is. So after two such yields in a row whoever waits sleeps, for a while: a short one
// at first, and longer each time that the next spin is no better. (One alone may be anything.)
//
// Thread safety: any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace qrd {

class YieldGuard {
 public:
  static constexpr uint64_t kLongYieldNs = 500'000;
  static constexpr uint64_t kPauseNsMin = 10'000'000, kPauseNsMax = 1'000'000'000;
  static constexpr uint64_t kInARowNs = 20'000'000;

  bool MaySpin(uint64_t now_ns) const {
    return now_ns >= pause_end_ns_.load(std::memory_order_relaxed);
  }
  // A yield took so long (CLOCK_MONOTONIC). False: do not spin any more.
  bool Note(uint64_t begin_ns, uint64_t end_ns) {
    if (end_ns - begin_ns < kLongYieldNs) return true;
    // Racing threads may lose an update, which does not matter.
    const uint64_t last_end_ns = pause_end_ns_.load(std::memory_order_relaxed);
    const uint64_t last_ns = pause_ns_.load(std::memory_order_relaxed);
    const bool in_a_row = last_end_ns != 0 && begin_ns < last_end_ns + std::max(last_ns, kInARowNs);
    const uint64_t pause_ns = in_a_row ? std::clamp(2 * last_ns, kPauseNsMin, kPauseNsMax) : 0;
    pause_ns_.store(pause_ns, std::memory_order_relaxed);
    pause_end_ns_.store(end_ns + pause_ns, std::memory_order_relaxed);
    return pause_ns == 0;
  }

 private:
  std::atomic<uint64_t> pause_end_ns_{0};
  std::atomic<uint64_t> pause_ns_{0};
};

}  // namespace qrd
