// SPDX-License-Identifier: Apache-2.0
// FakeDaemon: sessions whose tensors are on a device. The device is the test's, too: memory of it
// is memory of this process.
#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/support/fake_daemon.h"

namespace qrd::testing {

bool FakeDaemon::AnswerImport(int fd, const v1::ArenaImport& request) {
  if (request.ipc_handle().size() != kIpcHandleBytes) return false;
  const std::lock_guard<std::mutex> lock(mu_);
  Memory memory;  // without descriptor: borrowed
  std::memcpy(&memory.data, request.ipc_handle().data(), sizeof(memory.data));
  memory.data += request.offset_bytes();
  memory.bytes = request.bytes();
  const uint32_t id = next_arena_++;
  arenas_[id] = memory;
  ++arenas_live;
  v1::ServerMessage answer;
  answer.mutable_arena_allocated()->set_arena_id(id);
  answer.mutable_arena_allocated()->set_generation(id + 100);
  answer.mutable_arena_allocated()->set_bytes(request.bytes());
  if (edit_arena) edit_arena(answer.mutable_arena_allocated());
  return Send(fd, answer.SerializeAsString(), {});
}

bool FakeDaemon::AnswerStreamOpen(int fd) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (!on_device_ || stream_.fd >= 0) return false;
  stream_ = MakeMemory(shm::StreamSegmentBytes(stream_entry_count), seal);
  auto* header = reinterpret_cast<shm::StreamHeader*>(stream_.data);
  header->magic = shm::kStreamMagic;
  header->layout_version = shm::kLayoutVersion;
  header->segment_bytes = stream_.bytes;
  header->session_id = 1;
  header->entry_count = stream_entry_count;
  header->entry_offset_bytes = shm::kStreamEntryOffsetBytes;
  v1::ServerMessage answer;
  answer.mutable_stream_opened()->set_stream_segment_bytes(stream_.bytes);
  answer.mutable_stream_opened()->set_entry_count(stream_entry_count);
  if (edit_stream) edit_stream(header, answer.mutable_stream_opened());
  return Send(fd, answer.SerializeAsString(), {stream_.fd});
}

shm::StreamHeader* FakeDaemon::stream() {
  const std::lock_guard<std::mutex> lock(mu_);
  return reinterpret_cast<shm::StreamHeader*>(stream_.data);
}

std::optional<FakeDaemon::Announced> FakeDaemon::NextAnnounced(std::chrono::milliseconds timeout) {
  shm::StreamHeader* const header = stream();
  if (header == nullptr) return std::nullopt;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  uint32_t rung = 0;
  while ((rung = header->doorbell.load(std::memory_order_acquire)) == 0) {
    if (std::chrono::steady_clock::now() > deadline) return std::nullopt;
    std::this_thread::yield();
  }
  if (rung > header->entry_count) return std::nullopt;
  Announced announced;
  announced.entry = rung - 1;
  const auto* entries = reinterpret_cast<const shm::StreamEntry*>(
      reinterpret_cast<const std::byte*>(header) + shm::kStreamEntryOffsetBytes);
  std::memcpy(&announced.descriptor, &entries[announced.entry].descriptor,
              sizeof(announced.descriptor));
  header->doorbell.store(0, std::memory_order_release);
  return announced;
}

void FakeDaemon::EndAnnounced(const Announced& announced, uint32_t status,
                              const std::string& message) {
  shm::StreamHeader* const header = stream();
  auto* entries = reinterpret_cast<shm::StreamEntry*>(reinterpret_cast<std::byte*>(header) +
                                                      shm::kStreamEntryOffsetBytes);
  shm::Completion& c = entries[announced.entry].completion;
  const bool failed = status != static_cast<uint32_t>(shm::Status::kOk);
  // After a success it was the device that let the stream go on, a little before this.
  if (!failed) header->done.store(1, std::memory_order_release);
  c.status = static_cast<shm::Status>(status);
  c.sequence = ++stream_operations_;
  c.payload_bytes = announced.descriptor.count;
  c.wire_bytes = 77;
  c.codec = 4;
  c.algorithm = 1;
  c.policy_generation = 9;
  c.rank_mask = failed ? 2 : 0;
  std::memset(c.message, 0, sizeof(c.message));
  std::memcpy(c.message, message.data(), std::min(message.size(), sizeof(c.message) - 1));
  c.state.store(static_cast<uint32_t>(shm::CompletionState::kDone), std::memory_order_release);
  if (failed && header->failed_entry.load(std::memory_order_relaxed) == 0) {
    header->failed_entry.store(announced.entry + 1, std::memory_order_release);
  }
  header->operations.store(stream_operations_, std::memory_order_release);
  if (failed) header->done.store(1, std::memory_order_release);
}

}  // namespace qrd::testing
