// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/stream_channel.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/session/shared_copy.h"

namespace qrd {

absl::StatusOr<std::unique_ptr<StreamChannel>> StreamChannel::Create(uint64_t session_id,
                                                                     uint32_t entry_count,
                                                                     Backend* backend) {
  absl::StatusOr<SharedSegment> segment =
      SharedSegment::Create("qrd-stream", shm::StreamSegmentBytes(entry_count));
  if (!segment.ok()) return segment.status();
  auto* header = reinterpret_cast<shm::StreamHeader*>(segment->data());
  header->magic = shm::kStreamMagic;
  header->layout_version = shm::kLayoutVersion;
  header->segment_bytes = segment->bytes();
  header->session_id = session_id;
  header->entry_count = entry_count;
  header->entry_offset_bytes = shm::kStreamEntryOffsetBytes;
  if (absl::Status status = segment->Seal(/*read_only_for_others=*/false); !status.ok()) {
    return status;
  }
  absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> visible =
      backend->MakeDeviceVisible(segment->data(), segment->bytes());
  if (!visible.ok()) return visible.status();
  return std::unique_ptr<StreamChannel>(
      new StreamChannel(entry_count, *std::move(segment), *std::move(visible)));
}

StreamChannel::PollResult StreamChannel::Poll(uint32_t* entry_index, shm::Descriptor* descriptor,
                                              std::string* error) {
  if (busy_) return PollResult::kEmpty;
  // Acquire: the entry was written before the stream could come to the doorbell.
  const uint32_t rung = header()->doorbell.load(std::memory_order_acquire);
  if (rung == 0) return PollResult::kEmpty;
  if (rung > entry_count_) {
    *error = absl::StrFormat("stream doorbell is %d: want 1 to %d", rung, entry_count_);
    return PollResult::kProtocolError;
  }
  header()->doorbell.store(0, std::memory_order_release);
  *entry_index = rung - 1;
  CopyOut(&entry(*entry_index)->descriptor, descriptor);
  busy_ = true;
  return PollResult::kOperation;
}

void StreamChannel::Complete(uint32_t entry_index, const shm::Completion& completion,
                             bool release) {
  shm::Completion& target = entry(entry_index)->completion;
  // The first failure is told once and kept: a graph may come to its entry again before the client
  // looks.
  if (failed_entry_ != entry_index + 1) {
    CopyIn(completion, CompletionBytes(completion), &target);
  }
  target.state.store(static_cast<uint32_t>(shm::CompletionState::kDone), std::memory_order_release);
  if (completion.status != shm::Status::kOk && failed_entry_ == 0) {
    failed_entry_ = entry_index + 1;
    header()->failed_entry.store(failed_entry_, std::memory_order_release);
  }
  header()->operations.store(++operations_, std::memory_order_release);
  busy_ = false;
  if (release) header()->done.store(1, std::memory_order_release);
}

}  // namespace qrd
