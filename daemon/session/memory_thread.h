// SPDX-License-Identifier: Apache-2.0
// Runs what may take long with memory (reserving and unmapping gigabytes) away from the threads
// that must answer soon. One thread, first in, first out.
//
// Thread safety: all functions from any thread. Ownership: shared; Stop() must be called by one
// owner.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "daemon/base/mutex.h"

namespace qrd {

class MemoryThread {
 public:
  using Task = std::function<void()>;

  MemoryThread() = default;
  ~MemoryThread() { Stop(); }
  MemoryThread(const MemoryThread&) = delete;
  MemoryThread& operator=(const MemoryThread&) = delete;

  // Throws std::system_error if a thread cannot be had; tasks then run on the caller's thread.
  void Start();
  // Runs what is queued, then ends. Not from a task.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Before Start() and after Stop() the task runs at once, on the caller's thread.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);

  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace qrd
