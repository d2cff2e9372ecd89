// SPDX-License-Identifier: Apache-2.0
// RawClient: ranks on devices.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "tests/support/raw_client.h"

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void RawClient::SendJoinOnDevice(const std::string& communicator, const std::string& group,
                                 uint32_t rank, uint32_t world_size, const std::string& device) {
  v1::ClientMessage message;
  v1::Join* join = message.mutable_join();
  join->set_communicator(communicator);
  join->set_group(group);
  join->set_rank(rank);
  join->set_world_size(world_size);
  join->set_create_if_absent(true);
  join->set_device(device);
  Send(message);
}

RawArena RawClient::AllocOnDevice(uint64_t bytes) {
  v1::ClientMessage message;
  message.mutable_arena_alloc()->set_bytes(bytes);
  RawArena arena;
  if (!Send(message)) return arena;
  const auto reply = Receive();
  if (!reply || TakeError(*reply) || !reply->has_arena_allocated()) return arena;
  arena.arena_id = reply->arena_allocated().arena_id();
  arena.generation = reply->arena_allocated().generation();
  arena.bytes = reply->arena_allocated().bytes();
  const std::string& handle = reply->arena_allocated().ipc_handle();
  if (handle.size() < sizeof(int)) return arena;
  int fd = -1;
  std::memcpy(&fd, handle.data(), sizeof(fd));
  // A descriptor of its own, as another process would have.
  const int own = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  void* data = mmap(nullptr, arena.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  close(own);
  if (data == MAP_FAILED) return arena;
  arena.data = static_cast<std::byte*>(data);
  arenas_.push_back(arena);
  return arena;
}

RawArena RawClient::Import(const std::string& ipc_handle, uint64_t offset_bytes, uint64_t bytes) {
  v1::ClientMessage message;
  message.mutable_arena_import()->set_ipc_handle(ipc_handle);
  message.mutable_arena_import()->set_offset_bytes(offset_bytes);
  message.mutable_arena_import()->set_bytes(bytes);
  RawArena arena;
  if (!Send(message)) return arena;
  const auto reply = Receive();
  if (!reply || TakeError(*reply) || !reply->has_arena_allocated()) return arena;
  arena.arena_id = reply->arena_allocated().arena_id();
  arena.generation = reply->arena_allocated().generation();
  arena.bytes = reply->arena_allocated().bytes();
  return arena;
}

std::string RawClient::OpenStream() {
  v1::ClientMessage message;
  message.mutable_stream_open();
  if (!Send(message)) return "send failed";
  const auto reply = Receive();
  if (!reply) return "no reply";
  if (TakeError(*reply)) return last_error_;
  if (!reply->has_stream_opened()) return "not a StreamOpened";
  const std::vector<int> fds = TakeFds();
  if (fds.size() != 1) return "want one descriptor";
  stream_fd_ = fds[0];
  stream_bytes_ = reply->stream_opened().stream_segment_bytes();
  void* data = mmap(nullptr, stream_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, stream_fd_, 0);
  if (data == MAP_FAILED) return "mmap failed";
  stream_ = static_cast<std::byte*>(data);
  return "";
}

void RawClient::Announce(uint32_t index, const shm::Descriptor& descriptor) {
  std::memcpy(&entry(index)->descriptor, &descriptor, sizeof(descriptor));
  Announce(index);
}

bool RawClient::PassStream() {
  const Clock::time_point end = Clock::now() + kWait;
  while (stream()->done.load(std::memory_order_acquire) != 1) {
    if (Clock::now() >= end) return false;
    sched_yield();
  }
  stream()->done.store(0, std::memory_order_relaxed);
  return true;
}

RawCompletion RawClient::WaitEntry(uint32_t index, uint64_t operations) const {
  const Clock::time_point end = Clock::now() + kWait;
  while (stream()->operations.load(std::memory_order_acquire) < operations && Clock::now() < end) {
    sched_yield();
  }
  return Copy(entry(index)->completion);
}

}  // namespace qrd::testing
