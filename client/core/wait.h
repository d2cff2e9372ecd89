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

namespace qrd::client {

inline constexpr uint64_t kSliceNs = 50'000'000;

enum class WaitResult { kDone, kTimeout, kGaveUp };

// Learns how long a spin would have to be. Waits that end within the bound are worth spinning for;
// if recent ones took longer, spinning only takes time from those who work.
class SpinBudget {
 public:
  explicit SpinBudget(uint64_t max_ns) : max_ns_(max_ns) {}

  // What the next wait may spin: the bound, or 0 if recent waits took longer than it.
  uint64_t Get() const { return mean_ns_.load(std::memory_order_relaxed) <= max_ns_ ? max_ns_ : 0; }
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
};

// Waits until *state is CompletionState::kDone (acquire), the deadline (CLOCK_MONOTONIC) passes, or
// give_up(context) is true. A completion that came meanwhile counts as done.
WaitResult WaitForDone(std::atomic<uint32_t>* state, uint64_t spin_ns, uint64_t deadline_ns,
                       bool (*give_up)(void* context), void* context);

}  // namespace qrd::client
