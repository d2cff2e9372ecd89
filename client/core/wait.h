// SPDX-License-Identifier: Apache-2.0
// Waits for a completion: spins for a bounded time that is learnt from recent waits, then sleeps on
// the word. A spin turn is a sched_yield: with as many ranks as cores the daemon must get its turn.
// A sleep is cut in slices, and the connection is checked between them, since a dead daemon wakes
// nobody.
//
// Thread safety: all functions from any thread; several threads may wait on one word.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/shm/yield_guard.h"

namespace qrd::client {

inline constexpr uint64_t kSliceNs = 50'000'000;

enum class WaitResult { kDone, kTimeout, kGaveUp };

// Learns how long a spin would have to be. Waits that end within the bound are worth spinning for;
// if recent ones took longer, spinning only takes time from those who work.
class SpinBudget {
 public:
  explicit SpinBudget(uint64_t max_ns) : max_ns_(max_ns) {}

  // What a wait that begins now may spin: the bound, or 0 if recent waits took longer than it, or a
  // yield did.
  uint64_t Get(uint64_t now_ns) const {
    const bool pays = mean_ns_.load(std::memory_order_relaxed) <= max_ns_ && guard_.MaySpin(now_ns);
    return pays ? max_ns_ : 0;
  }
  YieldGuard* guard() { return &guard_; }
  // From the begin of a wait to the end of the operation (not to the waking-up, which would make
  // sleeping look necessary because sleeping is slow).
  void Learn(uint64_t needed_ns) {
    // Weight 1/4: a handful of waits changes the mind, one outlier does not. The cap keeps one very
    // long wait (a rank that loads a model) from costing hundreds of short ones. Racing threads may
    // lose an update, which does not matter.
    const uint64_t cap = 4 * max_ns_;
    const uint64_t mean = mean_ns_.load(std::memory_order_relaxed);
    const uint64_t sample = needed_ns < cap ? needed_ns : cap;
    mean_ns_.store(mean - mean / 4 + sample / 4, std::memory_order_relaxed);
  }

 private:
  const uint64_t max_ns_;
  std::atomic<uint64_t> mean_ns_{0};
  YieldGuard guard_;
};

// Waits until *state is CompletionState::kDone (acquire), the deadline (CLOCK_MONOTONIC) passes, or
// give_up(context) is true. A completion that came meanwhile counts as done. `guard` is told how
// long yields take.
WaitResult WaitForDone(std::atomic<uint32_t>* state, uint64_t spin_ns, YieldGuard* guard,
                       uint64_t deadline_ns, bool (*give_up)(void* context), void* context);

}  // namespace qrd::client
