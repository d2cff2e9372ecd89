// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/session_channel.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/session/shared_copy.h"

namespace qrd {
namespace {

// More refused posts than this between two looks is a client that makes numbers up.
constexpr uint64_t kRingFullDeltaMax = 1 << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<SessionChannel>> SessionChannel::Create(
    uint64_t session_id, uint32_t rank, uint32_t world_size, uint32_t slot_count, int32_t pid,
    std::shared_ptr<ArenaTable> arenas) {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Create("qrd-session", shm::SessionSegmentBytes(slot_count));
  if (!segment.ok()) return segment.status();
  UniqueFd doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell.valid()) {
    return absl::ResourceExhaustedError(absl::StrFormat("eventfd: %s", std::strerror(errno)));
  }
  auto* header = reinterpret_cast<shm::SessionHeader*>(segment->data());
  header->magic = shm::kSessionMagic;
  header->layout_version = shm::kLayoutVersion;
  header->segment_bytes = segment->bytes();
  header->session_id = session_id;
  header->rank = rank;
  header->world_size = world_size;
  header->slot_count = slot_count;
  header->ring_offset_bytes = shm::kRingOffsetBytes;
  header->descriptor_offset_bytes = shm::DescriptorOffsetBytes(slot_count);
  header->completion_offset_bytes = shm::CompletionOffsetBytes(slot_count);
  if (absl::Status status = segment->Seal(/*read_only_for_others=*/false); !status.ok())
    return status;
  return std::shared_ptr<SessionChannel>(
      new SessionChannel(session_id, rank, slot_count, pid, *std::move(segment),
                         std::move(doorbell), std::move(arenas)));
}

SessionChannel::SessionChannel(uint64_t session_id, uint32_t rank, uint32_t slot_count, int32_t pid,
                               SharedSegment segment, UniqueFd doorbell,
                               std::shared_ptr<ArenaTable> arenas)
    : session_id_(session_id),
      rank_(rank),
      slot_count_(slot_count),
      pid_(pid),
      segment_(std::move(segment)),
      doorbell_(std::move(doorbell)),
      arenas_(std::move(arenas)),
      producer_(At<shm::ProducerLine>(shm::kProducerOffsetBytes)),
      consumer_(At<shm::ConsumerLine>(shm::kConsumerOffsetBytes)),
      busy_(slot_count, false) {}

bool SessionChannel::HasSubmissions() const {
  if (stream_ != nullptr && stream_->Rung()) return true;
  // Sequentially consistent for the engine's last look before it sleeps (see layout.h).
  return producer_->tail.load(std::memory_order_seq_cst) != next_index_;
}

SessionChannel::PollResult SessionChannel::PollStream(Submission* submission, std::string* error) {
  uint32_t entry = 0;
  switch (stream_->Poll(&entry, &submission->descriptor, error)) {
    case StreamChannel::PollResult::kEmpty:
      return PollResult::kEmpty;
    case StreamChannel::PollResult::kProtocolError:
      return PollResult::kProtocolError;
    case StreamChannel::PollResult::kOperation:
      break;
  }
  submission->slot = kStreamSlot | entry;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  return PollResult::kSubmission;
}

SessionChannel::PollResult SessionChannel::Poll(Submission* submission, std::string* error) {
  if (stream_ != nullptr) {
    const PollResult result = PollStream(submission, error);
    if (result != PollResult::kEmpty) return result;
  }
  // Acquire: pairs with the client's release store of tail; ring entry and descriptor come before
  // it.
  const uint64_t tail = producer_->tail.load(std::memory_order_acquire);
  if (tail == next_index_) return PollResult::kEmpty;
  if (tail - next_index_ > slot_count_) {
    *error = absl::StrFormat("ring tail is %d: want %d to %d", tail, next_index_,
                             next_index_ + slot_count_);
    return PollResult::kProtocolError;
  }
  auto* ring = At<uint32_t>(shm::kRingOffsetBytes);
  const uint32_t slot =
      std::atomic_ref<uint32_t>(ring[next_index_ % slot_count_]).load(std::memory_order_relaxed);
  if (slot >= slot_count_) {
    *error = absl::StrFormat("ring entry %d names slot %d: want 0 to %d", next_index_, slot,
                             slot_count_ - 1);
    return PollResult::kProtocolError;
  }
  if (busy_[slot]) {
    *error = absl::StrFormat("ring entry %d names slot %d, whose operation is in flight",
                             next_index_, slot);
    return PollResult::kProtocolError;
  }
  CopyOut(At<shm::Descriptor>(shm::DescriptorOffsetBytes(slot_count_)) + slot,
          &submission->descriptor);
  submission->slot = slot;
  busy_[slot] = true;
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  ++next_index_;
  consumer_->head.store(next_index_, std::memory_order_release);
  return PollResult::kSubmission;
}

void SessionChannel::Complete(uint32_t slot, const CompletionRecord& record,
                              const std::string& message, bool release_stream) {
  shm::Completion completion = {};
  completion.status = record.status;
  completion.sequence = record.sequence;
  completion.payload_bytes = record.payload_bytes;
  completion.wire_bytes = record.wire_bytes;
  completion.policy_generation = record.policy_generation;
  completion.codec = record.codec;
  completion.algorithm = record.algorithm;
  completion.first_post_ns = record.first_post_ns;
  completion.ready_ns = record.ready_ns;
  completion.start_ns = record.start_ns;
  completion.end_ns = record.end_ns;
  completion.nonfinite_count = record.nonfinite_count;
  completion.rank_mask = record.rank_mask;
  std::memcpy(completion.message, message.data(),
              std::min<size_t>(message.size(), shm::kMessageBytes - 1));
  if ((slot & kStreamSlot) != 0) {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    stream_->Complete(slot & ~kStreamSlot, completion, release_stream);
    return;
  }
  auto* target = At<shm::Completion>(shm::CompletionOffsetBytes(slot_count_)) + slot;
  CopyIn(completion, CompletionBytes(completion), target);

  busy_[slot] = false;
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  // Release: a client that sees kDone (acquire) sees the fields and the results.
  const uint32_t before = target->state.exchange(static_cast<uint32_t>(shm::CompletionState::kDone),
                                                 std::memory_order_acq_rel);
  if (before == static_cast<uint32_t>(shm::CompletionState::kWaiting)) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&target->state), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
  }
}

std::vector<uint32_t> SessionChannel::BusySlots() const {
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < slot_count_; ++slot) {
    if (busy_[slot]) slots.push_back(slot);
  }
  return slots;
}

uint64_t SessionChannel::TakeRingFull() {
  const uint64_t now = producer_->ring_full.load(std::memory_order_relaxed);
  const uint64_t delta = now - ring_full_seen_;
  ring_full_seen_ = now;
  return std::min(delta, kRingFullDeltaMax);
}

}  // namespace qrd
