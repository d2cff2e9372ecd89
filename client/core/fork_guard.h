// SPDX-License-Identifier: Apache-2.0
// Tells the copy of a communicator in a forked child from the original, and closes the child's copy
// of its descriptors: as long as a child held the attach connection, the daemon would take a killed
// parent for alive. (exec closes them by itself.)
//
// Thread safety: all functions from any thread. In the child only close() and stores run.
// Ownership: the guard's owner keeps the descriptors; the child's copies are closed behind its
// back.
#pragma once

#include <atomic>

namespace qrd::client {

class ForkGuard {
 public:
  ForkGuard() = default;
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  // Not to be run in the child.
  ~ForkGuard() { Disarm(); }

  // From here on a child's copy is InChild and has the descriptors closed.
  void Arm(int fd_a, int fd_b);
  void Disarm();
  bool InChild() const { return in_child_.load(std::memory_order_relaxed); }

 private:
  static void Prepare();
  static void Parent();
  static void Child();

  std::atomic<bool> in_child_{false};
  bool armed_ = false;
  int fds_[2] = {-1, -1};
  ForkGuard* previous_ = nullptr;
  ForkGuard* next_ = nullptr;
};

}  // namespace qrd::client
