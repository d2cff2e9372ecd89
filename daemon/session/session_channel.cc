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

namespace qrd {
namespace {

// More refused posts than this between two looks is a client that makes numbers up.
constexpr uint64_t kRingFullDeltaMax = 1 << 20;

// The other side may write at any time: word by word, relaxed, each word once.
void CopyOut(const shm::Descriptor* from, shm::Descriptor* to) {
  static_assert(sizeof(shm::Descriptor) % sizeof(uint64_t) == 0);
  uint64_t words[sizeof(shm::Descriptor) / sizeof(uint64_t)];
  auto* source = reinterpret_cast<uint64_t*>(const_cast<shm::Descriptor*>(from));
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
  }
  std::memcpy(to, words, sizeof(words));
}

// Writes all of a completion but its state.
void CopyIn(const shm::Completion& from, size_t bytes, shm::Completion* to) {
  constexpr size_t kFirst = offsetof(shm::Completion, status);
  static_assert(kFirst == 4 && sizeof(shm::Completion) % 8 == 0);
  const auto* source = reinterpret_cast<const std::byte*>(&from);
  auto* target = reinterpret_cast<std::byte*>(to);
  uint32_t first;
  std::memcpy(&first, source + kFirst, sizeof(first));
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(target + kFirst))
      .store(first, std::memory_order_relaxed);
  for (size_t at = 8; at < bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, source + at, sizeof(word));
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(target + at))
        .store(word, std::memory_order_relaxed);
  }
}

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
  // Sequentially consistent for the engine's last look before it sleeps (see layout.h).
  return producer_->tail.load(std::memory_order_seq_cst) != next_index_;
}

SessionChannel::PollResult SessionChannel::Poll(Submission* submission, std::string* error) {
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
                              const std::string& message) {
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
  const size_t text = std::min<size_t>(message.size(), shm::kMessageBytes - 1);
  std::memcpy(completion.message, message.data(), text);
  // The text's first words carry the NUL of an empty one.
  const size_t bytes = offsetof(shm::Completion, message) + (text + 1 + 7) / 8 * 8;
  auto* target = At<shm::Completion>(shm::CompletionOffsetBytes(slot_count_)) + slot;
  CopyIn(completion, bytes, target);

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
