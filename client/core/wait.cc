// SPDX-License-Identifier: Apache-2.0
#include "client/core/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "client/core/clock.h"
#include "proto/shm/layout.h"

namespace qrd::client {
namespace {

constexpr uint32_t kIdle = static_cast<uint32_t>(shm::CompletionState::kIdle);
constexpr uint32_t kWaiting = static_cast<uint32_t>(shm::CompletionState::kWaiting);
constexpr uint32_t kDone = static_cast<uint32_t>(shm::CompletionState::kDone);

bool Done(const std::atomic<uint32_t>& state) {
  return state.load(std::memory_order_acquire) == kDone;
}

// Sleeps while *state is kWaiting, at most `ns`. Wakes early for any reason (EINTR, EAGAIN): the
// caller looks again. The word is shared between processes, hence not FUTEX_PRIVATE.
void FutexWait(std::atomic<uint32_t>* state, uint64_t ns) {
  const timespec timeout{static_cast<time_t>(ns / 1'000'000'000),
                         static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(state), FUTEX_WAIT, kWaiting, &timeout, nullptr,
          0);
}

}  // namespace

WaitResult WaitForDone(std::atomic<uint32_t>* state, uint64_t spin_ns, YieldGuard* guard,
                       uint64_t deadline_ns, bool (*give_up)(void* context), void* context) {
  if (Done(*state)) return WaitResult::kDone;
  if (spin_ns > 0) {
    uint64_t now_ns = NowNs();
    const uint64_t spin_end = std::min(now_ns + spin_ns, deadline_ns);
    bool pays = true;
    do {
      const uint64_t before_ns = now_ns;
      sched_yield();
      now_ns = NowNs();
      pays = guard->Note(before_ns, now_ns);
      if (Done(*state)) return WaitResult::kDone;
    } while (pays && now_ns < spin_end);
  }
  for (;;) {
    // Checked before the first sleep too: an operation that was posted to a dead daemon fails at
    // once.
    if (give_up(context)) return Done(*state) ? WaitResult::kDone : WaitResult::kGaveUp;
    const uint64_t remaining = RemainingNs(deadline_ns);
    if (remaining == 0) return Done(*state) ? WaitResult::kDone : WaitResult::kTimeout;
    // From here on the daemon wakes us when it stores kDone.
    uint32_t expected = kIdle;
    if (!state->compare_exchange_strong(expected, kWaiting, std::memory_order_acq_rel,
                                        std::memory_order_acquire) &&
        expected != kWaiting) {
      if (expected == kDone) return WaitResult::kDone;
      // Not a value of the protocol: never spin hot on it, the slice bounds the wait.
      usleep(1000);
      continue;
    }
    FutexWait(state, std::min(remaining, kSliceNs));
    if (Done(*state)) return WaitResult::kDone;
  }
}

}  // namespace qrd::client
