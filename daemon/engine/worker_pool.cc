// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/worker_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "proto/shm/yield_guard.h"

namespace qrd {

WorkerPool::WorkerPool(uint32_t threads, RunQueue* queue, Backend* backend,
                       std::function<void()> on_finished)
    : thread_count_(threads),
      queue_(queue),
      backend_(backend),
      on_finished_(std::move(on_finished)) {}

absl::Status WorkerPool::Start() {
  stop_.store(false);
  for (uint32_t i = 0; i < thread_count_; ++i) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error& error) {
      Stop();
      return absl::ResourceExhaustedError(
          absl::StrFormat("worker thread %d of %d: %s", i + 1, thread_count_, error.what()));
    }
    pthread_setname_np(threads_.back().native_handle(), "qrd-worker");
  }
  return absl::OkStatus();
}

void WorkerPool::Stop() {
  {
    MutexLock lock(&mu_);
    stop_.store(true);
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::Notify() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0 || !queue_->has_chunks()) return;
  MutexLock lock(&mu_);
  work_.Signal();
}

bool WorkerPool::RunOne(RunQueue* queue, Backend* backend, bool* finished_job) {
  Chunk chunk;
  if (!queue->Take(&chunk)) return false;
  const uint64_t nonfinite = backend->Run(chunk.job->params, chunk.range);
  *finished_job = queue->Finish(chunk, nonfinite, MonotonicNs());
  return true;
}

void WorkerPool::SleepUntilWork() {
  MutexLock lock(&mu_);
  // Sequentially consistent, as has_chunks() is: either Notify() sees the sleeper, or the sleeper
  // sees the chunks. The bound is for nothing but safety.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (!stop_.load() && !queue_->has_chunks()) {
    work_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void WorkerPool::Loop() {
  uint64_t idle_since_ns = MonotonicNs();
  YieldGuard guard;
  while (!stop_.load(std::memory_order_relaxed)) {
    bool finished_job = false;
    if (RunOne(queue_, backend_, &finished_job)) {
      if (finished_job) on_finished_();
      idle_since_ns = MonotonicNs();
      continue;
    }
    const uint64_t now_ns = MonotonicNs();
    if (now_ns - idle_since_ns < kSpinNs && guard.MaySpin(now_ns)) {
      sched_yield();
      guard.Note(now_ns, MonotonicNs());
    } else {
      SleepUntilWork();
      idle_since_ns = MonotonicNs();
    }
  }
}

}  // namespace qrd
