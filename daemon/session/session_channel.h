// SPDX-License-Identifier: Apache-2.0
// The daemon's side of one session's shared memory: takes submissions out of the ring, puts
// completions in. Every byte that the client can write is hostile: an index is read once, a
// descriptor is copied out once, and only the copies are looked at. What the daemon wrote is never
// read back.
//
// Thread safety: after Create(), Poll* and Complete are for the engine thread only; the accessors
// of constants, doorbell_fd() and in_flight() are for any thread. Ownership: shared between the
// session server and the engine; owns segment and doorbell.
//
// Invariants
//   1. next_index() - head published <= slot_count; a tail beyond that is a protocol error.
//   2. A slot that was taken is not taken again before it was completed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/unique_fd.h"
#include "daemon/session/arena_table.h"
#include "daemon/session/shared_segment.h"
#include "daemon/session/stream_channel.h"
#include "proto/shm/layout.h"

namespace qrd {

// What goes into a shm::Completion.
struct CompletionRecord {
  shm::Status status = shm::Status::kOk;
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0, wire_bytes = 0, policy_generation = 0;
  uint32_t codec = 0, algorithm = 0;
  uint64_t first_post_ns = 0, ready_ns = 0, start_ns = 0, end_ns = 0;
  uint64_t nonfinite_count = 0;
  uint32_t rank_mask = 0;
};

// Set in Submission::slot: the rest is an entry of the stream segment, not a slot.
inline constexpr uint32_t kStreamSlot = uint32_t{1} << 31;

// One entry of the ring, or an announced stream-ordered operation, copied out.
struct Submission {
  uint32_t slot = 0;
  shm::Descriptor descriptor;
};

class SessionChannel {
 public:
  enum class PollResult { kEmpty, kSubmission, kProtocolError };

  // RESOURCE_EXHAUSTED if the machine gives no memory or descriptor.
  static absl::StatusOr<std::shared_ptr<SessionChannel>> Create(uint64_t session_id, uint32_t rank,
                                                                uint32_t world_size,
                                                                uint32_t slot_count, int32_t pid,
                                                                std::shared_ptr<ArenaTable> arenas);

  uint64_t session_id() const { return session_id_; }
  uint32_t rank() const { return rank_; }
  int32_t pid() const { return pid_; }
  uint32_t slot_count() const { return slot_count_; }
  uint64_t segment_bytes() const { return segment_.bytes(); }
  int segment_fd() const { return segment_.fd(); }
  // The client has its copy: saves a descriptor a session. Attach thread, once.
  void CloseSegmentFd() { segment_.CloseFd(); }
  int doorbell_fd() const { return doorbell_.get(); }
  ArenaTable& arenas() const { return *arenas_; }
  // Operations taken from the ring and not completed.
  uint32_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

  // True if the client published something that was not taken. One load.
  bool HasSubmissions() const;
  // Takes the next submission. kProtocolError: `error` says what; the channel must not be polled
  // again.
  PollResult Poll(Submission* submission, std::string* error);
  // Fills the slot's completion, wakes a client that waits on it, frees the slot. `message` is cut
  // to what fits. `release_stream`: of a stream-ordered operation that the device does not end.
  void Complete(uint32_t slot, const CompletionRecord& record, const std::string& message,
                bool release_stream = true);
  // From here on stream-ordered operations are taken, too. Once.
  void AddStream(std::unique_ptr<StreamChannel> stream) { stream_ = std::move(stream); }
  const StreamChannel* stream() const { return stream_.get(); }
  // All slots that were taken and not completed.
  std::vector<uint32_t> BusySlots() const;
  // What the client added to its ring-full counter since the last call; hostile, so clamped.
  uint64_t TakeRingFull();

 private:
  SessionChannel(uint64_t session_id, uint32_t rank, uint32_t slot_count, int32_t pid,
                 SharedSegment segment, UniqueFd doorbell, std::shared_ptr<ArenaTable> arenas);

  PollResult PollStream(Submission* submission, std::string* error);

  template <typename T>
  T* At(uint64_t offset_bytes) const {
    return reinterpret_cast<T*>(segment_.data() + offset_bytes);
  }

  const uint64_t session_id_;
  const uint32_t rank_;
  const uint32_t slot_count_;
  const int32_t pid_;
  SharedSegment segment_;
  const UniqueFd doorbell_;
  const std::shared_ptr<ArenaTable> arenas_;
  std::atomic<uint32_t> in_flight_{0};

  // Engine thread only.
  shm::ProducerLine* const producer_;
  shm::ConsumerLine* const consumer_;
  uint64_t next_index_ = 0;
  uint64_t ring_full_seen_ = 0;
  std::vector<bool> busy_;
  std::unique_ptr<StreamChannel> stream_;  // null until the client asks for it
};

}  // namespace qrd
