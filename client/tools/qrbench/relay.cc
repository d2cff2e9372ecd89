// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/relay.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <ctime>

#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/process_team.h"

namespace qrd::tools {
namespace {

constexpr int kRanks = 2;

struct alignas(64) Word {
  std::atomic<uint32_t> value;
};

struct Shared {
  Word arrivals;
  Word done[kRanks];
  std::atomic<bool> stop;
};

void Wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// Sleeps until the word has reached `want` (they count up). False after 10 s or a stop.
bool WaitFor(std::atomic<uint32_t>& word, uint32_t want, const std::atomic<bool>& stop) {
  for (int slices = 0; slices < 200;) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (static_cast<int32_t>(now - want) >= 0) return true;
    if (stop.load(std::memory_order_relaxed)) return false;
    const timespec slice = {0, 50'000'000};
    if (syscall(SYS_futex, &word, FUTEX_WAIT, now, &slice, nullptr, 0) != 0 && errno == ETIMEDOUT) {
      ++slices;
    }
  }
  return false;
}

int RunRank(Shared& shared, int rank, uint32_t iterations, uint64_t* samples) {
  using Clock = std::chrono::steady_clock;
  for (uint32_t i = 1; i <= iterations; ++i) {
    const auto start = Clock::now();
    shared.arrivals.value.fetch_add(1, std::memory_order_release);
    Wake(shared.arrivals.value);
    if (!WaitFor(shared.done[rank].value, i, shared.stop)) return 1;
    samples[i - 1] = static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
  }
  return 0;
}

bool RunMiddle(Shared& shared, uint32_t iterations) {
  for (uint32_t i = 1; i <= iterations; ++i) {
    if (Interrupted() || !WaitFor(shared.arrivals.value, i * kRanks, shared.stop)) return false;
    for (Word& word : shared.done) {
      word.value.store(i, std::memory_order_release);
      Wake(word.value);
    }
  }
  return true;
}

}  // namespace

uint64_t Percentile(std::vector<uint64_t>& values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::max(1.0, rank)) - 1;
  return values[std::min(index, values.size() - 1)];
}

absl::StatusOr<RelayTimes> MeasureRelay(uint32_t iterations, uint32_t warmup) {
  const uint32_t all = iterations + warmup;
  SharedMemory memory(sizeof(Shared) + sizeof(uint64_t) * kRanks * all);
  if (memory.data() == nullptr) return absl::ResourceExhaustedError("relay: no shared memory");
  auto& shared = *new (memory.data()) Shared();
  auto* samples = reinterpret_cast<uint64_t*>(memory.data() + sizeof(Shared));
  absl::StatusOr<std::unique_ptr<ProcessTeam>> team = ProcessTeam::Fork(kRanks, [&](int, int rank) {
    return RunRank(shared, rank, all, samples + static_cast<size_t>(rank) * all);
  });
  if (!team.ok()) return team.status();
  const bool complete = RunMiddle(shared, all);
  shared.stop.store(true);
  team->reset();
  if (Interrupted()) return absl::CancelledError("interrupted");
  if (!complete) return absl::DeadlineExceededError("relay: a process did not answer within 10 s");
  std::vector<uint64_t> slower;
  for (uint32_t i = warmup; i < all; ++i) slower.push_back(std::max(samples[i], samples[all + i]));
  const double p50 = static_cast<double>(Percentile(slower, 50)) / 1e3;
  return RelayTimes{p50, static_cast<double>(Percentile(slower, 99)) / 1e3, iterations};
}

}  // namespace qrd::tools
