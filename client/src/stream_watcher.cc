// SPDX-License-Identifier: Apache-2.0
#include "client/src/stream_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "client/core/clock.h"
#include "client/core/error.h"

namespace qrd::client {
namespace {

// Between two looks at an operation on its way; the bound is seconds.
constexpr int kLookMs = 500;
// Between two releases: soon while something waits, later when nothing has come for a while (a
// program that does not know of the loss may replay a graph at any time).
constexpr int kReleaseMs = 1;
constexpr int kIdleReleaseMs = 20;
constexpr uint64_t kIdleAfterNs = 5'000'000'000;

}  // namespace

qrd_status StreamWatcher::Start() {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "cannot make an eventfd for the watcher thread: %s",
                strerror(errno));
  }
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  qrd_status status = QRD_OK;
  try {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "qrd-watcher");
  } catch (const std::system_error& e) {
    status = Fail(QRD_RESOURCE_EXHAUSTED, "cannot start the watcher thread: %s", e.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void StreamWatcher::Wake() const {
  const uint64_t one = 1;
  // EAGAIN: it is awake already.
  while (write(wake_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void StreamWatcher::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  Wake();
  thread_.join();
}

// Until the connection or the wake descriptor has something, or the time is over. False: stop.
bool StreamWatcher::Sleep(int timeout_ms, bool with_socket) const {
  pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {socket_fd_, POLLRDHUP, 0}};
  if (poll(entries, with_socket ? 2 : 1, timeout_ms) > 0 && entries[0].revents != 0) {
    uint64_t count = 0;
    while (read(wake_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
    }
  }
  return !stop_.load(std::memory_order_acquire);
}

const char* StreamWatcher::Stuck() {
  if (control_->expired.load(std::memory_order_acquire) != 0) return "did not end an operation";
  if (owner_->DaemonStalledNs(start_ns_) > bound_ns_) return "did not move";
  const uint32_t doorbell = header_->doorbell.load(std::memory_order_acquire);
  const uint64_t operations = header_->operations.load(std::memory_order_acquire);
  const uint64_t now_ns = NowNs();
  if (doorbell == 0 || doorbell != seen_doorbell_ || operations != seen_operations_) {
    seen_doorbell_ = doorbell;
    seen_operations_ = operations;
    since_ns_ = now_ns;
    return nullptr;
  }
  return now_ns - since_ns_ > bound_ns_ ? "did not take an operation" : nullptr;
}

bool StreamWatcher::Lost() {
  const std::lock_guard<std::mutex> lock(owner_mu_);
  if (owner_ == nullptr || owner_->SessionLost()) return true;
  const char* const stuck = Stuck();
  if (stuck == nullptr) return false;
  char text[160];
  std::snprintf(text, sizeof(text), "the daemon %s for %" PRIu64 " ms; the streams were released",
                stuck, bound_ns_ / kNsPerMs);
  owner_->LoseSession(QRD_DAEMON_LOST, text);
  return true;
}

bool StreamWatcher::Watch() {
  start_ns_ = since_ns_ = NowNs();
  while (Sleep(kLookMs, true)) {
    if (Lost()) return true;
  }
  return false;
}

void StreamWatcher::Detach() {
  const std::lock_guard<std::mutex> lock(owner_mu_);
  owner_ = nullptr;
  thread_.detach();
}

void StreamWatcher::Release() {
  uint64_t last_ns = NowNs();
  int timeout_ms = 0;
  while (Sleep(timeout_ms, false)) {
    const uint64_t now_ns = NowNs();
    // Nobody takes it any more; a daemon that is only slow must not begin now.
    if (header_->doorbell.exchange(0, std::memory_order_relaxed) != 0) last_ns = now_ns;
    header_->done.store(1, std::memory_order_release);
    timeout_ms = now_ns - last_ns > kIdleAfterNs ? kIdleReleaseMs : kReleaseMs;
  }
}

void StreamWatcher::Run() {
  if (Watch()) Release();
}

}  // namespace qrd::client
