// SPDX-License-Identifier: Apache-2.0
// Threads that do one piece of work together and are timed: for measurements of memory and kernels,
// where waking a sleeping thread would cost more than the work. Idle members spin with
// sched_yield().
//
// Thread safety: Run() from one thread at a time. Lifetime: the destructor joins.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace qrd {

class LockstepTeam {
 public:
  // 0 threads: one a core. The calling thread of Run() is one of them.
  explicit LockstepTeam(uint32_t threads)
      : size_(threads != 0 ? threads : std::max(1u, std::thread::hardware_concurrency())) {
    for (uint32_t i = 1; i < size_; ++i) members_.emplace_back([this, i] { Serve(i); });
  }
  ~LockstepTeam() {
    stop_.store(true, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    for (std::thread& member : members_) member.join();
  }
  LockstepTeam(const LockstepTeam&) = delete;
  LockstepTeam& operator=(const LockstepTeam&) = delete;

  uint32_t size() const { return size_; }

  // Runs work(i) for i in [0, size()), each on its own thread; returns the seconds from the start
  // until the last one is done.
  double Run(const std::function<void(uint32_t)>& work) {
    const auto start = std::chrono::steady_clock::now();
    work_ = &work;
    pending_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    work(0);
    while (pending_.load(std::memory_order_acquire) != 0) sched_yield();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  void Serve(uint32_t index) {
    for (uint64_t seen = 0;; ++seen) {
      while (round_.load(std::memory_order_acquire) == seen) sched_yield();
      if (stop_.load(std::memory_order_relaxed)) return;
      (*work_)(index);
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  const uint32_t size_;
  // Published by round_ (release in Run, acquire in Serve); the end by pending_, the other way.
  const std::function<void(uint32_t)>* work_ = nullptr;
  std::atomic<uint64_t> round_{0};
  std::atomic<uint32_t> pending_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> members_;
};

}  // namespace qrd
