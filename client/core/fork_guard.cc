// SPDX-License-Identifier: Apache-2.0
#include "client/core/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>

namespace qrd::client {
namespace {

// Constant-initialised: usable before and after every constructor and destructor of the process.
constinit std::mutex guards_mu;
constinit ForkGuard* guards = nullptr;
constinit bool handlers_installed = false;

}  // namespace

void ForkGuard::Prepare() { guards_mu.lock(); }
void ForkGuard::Parent() { guards_mu.unlock(); }
void ForkGuard::Child() {
  for (ForkGuard* guard = guards; guard != nullptr; guard = guard->next_) {
    guard->in_child_.store(true, std::memory_order_relaxed);
    for (int& fd : guard->fds_) {
      if (fd >= 0) close(fd);
      fd = -1;
    }
    guard->armed_ = false;
  }
  guards = nullptr;
  guards_mu.unlock();
}

void ForkGuard::Arm(int fd_a, int fd_b) {
  const std::lock_guard<std::mutex> lock(guards_mu);
  // Without memory for the handlers a child is not recognised; the parent works all the same.
  if (!handlers_installed) handlers_installed = pthread_atfork(Prepare, Parent, Child) == 0;
  fds_[0] = fd_a;
  fds_[1] = fd_b;
  previous_ = nullptr;
  next_ = guards;
  if (guards != nullptr) guards->previous_ = this;
  guards = this;
  armed_ = true;
}

void ForkGuard::Disarm() {
  const std::lock_guard<std::mutex> lock(guards_mu);
  if (!armed_) return;
  armed_ = false;
  if (previous_ != nullptr) previous_->next_ = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  if (guards == this) guards = next_;
}

}  // namespace qrd::client
