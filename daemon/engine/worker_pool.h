// SPDX-License-Identifier: Apache-2.0
// Threads that run chunks of large operations beside the engine thread.
//
// A worker without work spins with sched_yield() for a short time, then sleeps; Notify() wakes one
// if there is something to hand out. Thread safety: all functions from any thread. Ownership: queue
// and backend outlive the pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "daemon/base/mutex.h"
#include "daemon/engine/run_queue.h"
#include "kernels/backend.h"

namespace qrd {

class WorkerPool {
 public:
  // `on_finished` is called, from a worker, after a chunk that finished its job.
  WorkerPool(uint32_t threads, RunQueue* queue, Backend* backend,
             std::function<void()> on_finished);
  ~WorkerPool() { Stop(); }

  // RESOURCE_EXHAUSTED if a thread cannot be had; those that were started are ended then.
  absl::Status Start();
  // After the chunks that run now. Idempotent.
  void Stop();
  // Wakes a sleeping worker if the queue has chunks. Cheap if none sleeps.
  void Notify();

  // Runs one chunk on the calling thread. False if there is none.
  static bool RunOne(RunQueue* queue, Backend* backend, bool* finished_job);

 private:
  void Loop();
  void SleepUntilWork() ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr uint64_t kSpinNs = 50'000;

  const uint32_t thread_count_;
  RunQueue* const queue_;
  Backend* const backend_;
  const std::function<void()> on_finished_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> sleepers_{0};
  Mutex mu_;
  CondVar work_;
};

}  // namespace qrd
