// SPDX-License-Identifier: Apache-2.0
// The daemon's side of one session's stream segment (proto/shm/layout.h): stream-ordered operations
// that the client's streams announce, and their ends. Every byte that the client can write is
// hostile, as in session_channel.h.
//
// Thread safety: Create() on any thread; the rest for the engine thread only, but for the
// constants. Ownership: owns the segment and its registration with the devices.
//
// Invariants
//   1. At most one operation is taken and not completed.
//   2. `doorbell` is 0 before the operation can end, so that the next announcement is not lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/session/shared_segment.h"
#include "kernels/backend.h"
#include "proto/shm/layout.h"

namespace qrd {

class StreamChannel {
 public:
  enum class PollResult { kEmpty, kOperation, kProtocolError };

  // RESOURCE_EXHAUSTED if the machine gives no memory, or what the backend says.
  static absl::StatusOr<std::unique_ptr<StreamChannel>> Create(uint64_t session_id,
                                                               uint32_t entry_count,
                                                               Backend* backend);

  uint32_t entry_count() const { return entry_count_; }
  uint64_t segment_bytes() const { return segment_.bytes(); }
  int segment_fd() const { return segment_.fd(); }
  void CloseSegmentFd() { segment_.CloseFd(); }

  // One load. False while an operation is on its way.
  bool Rung() const { return !busy_ && header()->doorbell.load(std::memory_order_acquire) != 0; }
  // Takes the announced operation: its entry and a copy of its descriptor.
  PollResult Poll(uint32_t* entry, shm::Descriptor* descriptor, std::string* error);
  // What the device stores 1 to when the operation is over.
  std::atomic<uint32_t>* done_word() const { return &header()->done; }
  // The operation is over. `release`: the device will not store to the done word, so do it here.
  void Complete(uint32_t entry, const shm::Completion& completion, bool release);

 private:
  StreamChannel(uint32_t entry_count, SharedSegment segment,
                std::unique_ptr<DeviceVisibleMemory> visible)
      : entry_count_(entry_count), segment_(std::move(segment)), visible_(std::move(visible)) {}
  shm::StreamHeader* header() const {
    return reinterpret_cast<shm::StreamHeader*>(segment_.data());
  }
  shm::StreamEntry* entry(uint32_t index) const {
    return reinterpret_cast<shm::StreamEntry*>(segment_.data() + shm::kStreamEntryOffsetBytes) +
           index;
  }

  const uint32_t entry_count_;
  SharedSegment segment_;
  const std::unique_ptr<DeviceVisibleMemory> visible_;  // ends before the segment
  bool busy_ = false;
  uint32_t failed_entry_ = 0;  // entry + 1 of the first failure, whose completion stays
  uint64_t operations_ = 0;
};

}  // namespace qrd
