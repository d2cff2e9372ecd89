// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/memory_thread.h"

#include <pthread.h>

#include <utility>

namespace qrd {

void MemoryThread::Start() {
  {
    MutexLock lock(&mu_);
    running_ = true;
  }
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (...) {
    MutexLock lock(&mu_);
    running_ = false;
    throw;
  }
  pthread_setname_np(thread_.native_handle(), "qrd-memory");
}

void MemoryThread::Stop() {
  {
    MutexLock lock(&mu_);
    running_ = false;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void MemoryThread::Post(Task task) {
  {
    MutexLock lock(&mu_);
    if (running_) {
      tasks_.push_back(std::move(task));
      changed_.Signal();
      return;
    }
  }
  task();
}

void MemoryThread::Loop() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mu_);
      while (running_ && tasks_.empty()) changed_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace qrd
