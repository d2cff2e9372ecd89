// SPDX-License-Identifier: Apache-2.0
// A stream segment as the daemon makes it, and a session's owner.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "client/src/stream_watcher.h"
#include "proto/shm/layout.h"

namespace qrd::testing {

class StreamMemory {
 public:
  explicit StreamMemory(uint32_t entry_count) : bytes_(shm::StreamSegmentBytes(entry_count)) {
    fd_ = memfd_create("qrd-test-stream", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes_)), 0);
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    EXPECT_NE(data_, MAP_FAILED);
    header()->magic = shm::kStreamMagic;
    header()->layout_version = shm::kLayoutVersion;
    header()->segment_bytes = bytes_;
    header()->session_id = 1;
    header()->entry_count = entry_count;
    header()->entry_offset_bytes = shm::kStreamEntryOffsetBytes;
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }
  ~StreamMemory() {
    munmap(data_, bytes_);
    close(fd_);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }
  shm::StreamHeader* header() const { return static_cast<shm::StreamHeader*>(data_); }
  shm::StreamEntry* entry(uint32_t index) const {
    return reinterpret_cast<shm::StreamEntry*>(static_cast<std::byte*>(data_) +
                                               shm::kStreamEntryOffsetBytes) +
           index;
  }

 private:
  const uint64_t bytes_;
  int fd_ = -1;
  void* data_ = nullptr;
};

class FakeOwner final : public client::StreamWatcher::Owner {
 public:
  FakeOwner() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets_), 0); }
  ~FakeOwner() {
    close(sockets_[0]);
    HangUp();
  }

  bool SessionLost() override {
    ++questions;
    return lost;
  }
  uint64_t DaemonStalledNs(uint64_t) override { return stalled_ns; }
  void LoseSession(qrd_status status, const std::string& text) override {
    const std::lock_guard<std::mutex> lock(mu_);
    status_ = status;
    text_ = text;
    lost = true;
  }
  std::string text() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return text_;
  }
  // The client's end of the connection, and the end of the daemon's.
  int socket() const { return sockets_[0]; }
  void HangUp() {
    if (sockets_[1] >= 0) close(sockets_[1]);
    sockets_[1] = -1;
  }

  std::atomic<bool> lost{false};
  std::atomic<uint64_t> stalled_ns{0};
  std::atomic<int> questions{0};

 private:
  int sockets_[2] = {-1, -1};
  mutable std::mutex mu_;
  qrd_status status_ = QRD_OK;
  std::string text_;
};

// True once the condition holds; false after 20 s.
template <typename Condition>
bool Eventually(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace qrd::testing
