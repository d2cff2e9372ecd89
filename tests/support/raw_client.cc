// SPDX-License-Identifier: Apache-2.0
#include "tests/support/raw_client.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

RawClient::RawClient(const std::string& socket_path) {
  fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path.c_str(), sizeof(address.sun_path) - 1);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
}

RawClient::~RawClient() {
  Close();
  for (const int fd : fds_) close(fd);
  for (const RawArena& arena : arenas_) munmap(arena.data, arena.bytes);
  if (segment_ != nullptr) munmap(segment_, segment_bytes_);
  if (stream_ != nullptr) munmap(stream_, stream_bytes_);
  if (node_ != nullptr) munmap(const_cast<shm::NodeHeader*>(node_), shm::kNodeSegmentBytes);
  for (const int fd : {node_fd_, segment_fd_, doorbell_fd_, stream_fd_}) {
    if (fd >= 0) close(fd);
  }
}

void RawClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool RawClient::SendBytes(const std::string& packet, const std::vector<int>& fds) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(fd_, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

std::optional<v1::ServerMessage> RawClient::Receive(std::chrono::milliseconds wait) {
  pollfd poll_fd = {fd_, POLLIN, 0};
  if (poll(&poll_fd, 1, static_cast<int>(wait.count())) <= 0) return std::nullopt;
  char buffer[8192];
  iovec part = {buffer, sizeof(buffer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t bytes = recvmsg(fd_, &header, MSG_CMSG_CLOEXEC);
  if (bytes <= 0) return std::nullopt;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> fds(count);
    std::memcpy(fds.data(), CMSG_DATA(c), count * sizeof(int));
    fds_.insert(fds_.end(), fds.begin(), fds.end());
  }
  v1::ServerMessage message;
  if (!message.ParseFromArray(buffer, static_cast<int>(bytes))) return std::nullopt;
  return message;
}

std::vector<int> RawClient::TakeFds() {
  std::vector<int> fds;
  fds.swap(fds_);
  return fds;
}

bool RawClient::WaitForClose() {
  const Clock::time_point end = Clock::now() + kWait;
  char buffer[8192];
  while (Clock::now() < end) {
    pollfd poll_fd = {fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, 1000) <= 0) continue;
    const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
    if (bytes == 0 || (bytes < 0 && errno == ECONNRESET)) return true;
  }
  return false;
}

bool RawClient::TakeError(const v1::ServerMessage& message) {
  last_status_ = shm::Status::kOk;
  last_error_.clear();
  if (!message.has_error()) return false;
  last_status_ = static_cast<shm::Status>(message.error().status());
  last_error_ = message.error().message();
  return true;
}

std::string RawClient::Hello(uint32_t layout_version) {
  v1::ClientMessage message;
  message.mutable_hello()->set_layout_version(layout_version);
  message.mutable_hello()->set_client_version("raw");
  if (!Send(message)) return "send failed";
  const auto reply = Receive();
  if (!reply) return "no reply";
  if (TakeError(*reply)) return last_error_;
  return reply->has_welcome() ? "" : "not a Welcome";
}

void RawClient::SendJoin(const std::string& communicator, const std::string& group, uint32_t rank,
                         uint32_t world_size, uint32_t timeout_ms, bool create_if_absent) {
  v1::ClientMessage message;
  v1::Join* join = message.mutable_join();
  join->set_communicator(communicator);
  join->set_group(group);
  join->set_rank(rank);
  join->set_world_size(world_size);
  join->set_timeout_ms(timeout_ms);
  join->set_create_if_absent(create_if_absent);
  Send(message);
}

std::string RawClient::FinishJoin() {
  const auto reply = Receive();
  if (!reply) return "no reply";
  if (TakeError(*reply)) return last_error_;
  if (!reply->has_joined()) return "not a Joined";
  joined_ = reply->joined();
  const std::vector<int> fds = TakeFds();
  if (fds.size() != 3) return "want three descriptors";
  node_fd_ = fds[0];
  segment_fd_ = fds[1];
  doorbell_fd_ = fds[2];
  void* node = mmap(nullptr, shm::kNodeSegmentBytes, PROT_READ, MAP_SHARED, node_fd_, 0);
  segment_bytes_ = joined_.session_segment_bytes();
  void* segment = mmap(nullptr, segment_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd_, 0);
  if (node == MAP_FAILED || segment == MAP_FAILED) return "mmap failed";
  node_ = static_cast<const shm::NodeHeader*>(node);
  segment_ = static_cast<std::byte*>(segment);
  return "";
}

RawArena RawClient::Alloc(uint64_t bytes) {
  v1::ClientMessage message;
  message.mutable_arena_alloc()->set_bytes(bytes);
  RawArena arena;
  if (!Send(message)) return arena;
  const auto reply = Receive();
  if (!reply || TakeError(*reply) || !reply->has_arena_allocated()) return arena;
  const std::vector<int> fds = TakeFds();
  if (fds.size() != 1) return arena;
  arena.arena_id = reply->arena_allocated().arena_id();
  arena.generation = reply->arena_allocated().generation();
  arena.bytes = reply->arena_allocated().bytes();
  void* data = mmap(nullptr, arena.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
  close(fds[0]);
  if (data == MAP_FAILED) return arena;
  arena.data = static_cast<std::byte*>(data);
  arenas_.push_back(arena);
  return arena;
}

std::string RawClient::Free(const RawArena& arena) {
  v1::ClientMessage message;
  message.mutable_arena_free()->set_arena_id(arena.arena_id);
  message.mutable_arena_free()->set_generation(arena.generation);
  if (!Send(message)) return "send failed";
  const auto reply = Receive();
  if (!reply) return "no reply";
  if (TakeError(*reply)) return last_error_;
  return reply->has_arena_freed() ? "" : "not an ArenaFreed";
}

std::string RawClient::Abort(const std::string& reason) {
  v1::ClientMessage message;
  message.mutable_abort()->set_reason(reason);
  if (!Send(message)) return "send failed";
  const auto reply = Receive();
  if (!reply) return "no reply";
  if (TakeError(*reply)) return last_error_;
  return reply->has_aborted() ? "" : "not an Aborted";
}

uint32_t RawClient::slot_count() const {
  return reinterpret_cast<const shm::SessionHeader*>(segment_)->slot_count;
}
shm::ProducerLine* RawClient::producer() const {
  return reinterpret_cast<shm::ProducerLine*>(segment_ + shm::kProducerOffsetBytes);
}
shm::ConsumerLine* RawClient::consumer() const {
  return reinterpret_cast<shm::ConsumerLine*>(segment_ + shm::kConsumerOffsetBytes);
}
uint32_t* RawClient::ring() const {
  return reinterpret_cast<uint32_t*>(segment_ + shm::kRingOffsetBytes);
}
shm::Descriptor* RawClient::descriptor(uint32_t slot) const {
  return reinterpret_cast<shm::Descriptor*>(segment_ + shm::DescriptorOffsetBytes(slot_count())) +
         slot;
}
shm::Completion* RawClient::completion(uint32_t slot) const {
  return reinterpret_cast<shm::Completion*>(segment_ + shm::CompletionOffsetBytes(slot_count())) +
         slot;
}

shm::Descriptor RawClient::AllReduce(const RawArena& arena, uint64_t input_offset_bytes,
                                     uint64_t output_offset_bytes, uint64_t count) {
  shm::Descriptor d = {};
  d.kind = shm::Kind::kAllReduce;
  d.dtype = shm::Dtype::kFp32;
  d.op = shm::ReduceOp::kSum;
  d.sequence = next_sequence_++;
  d.count = count;
  d.input = {arena.arena_id, arena.generation, input_offset_bytes};
  d.output = {arena.arena_id, arena.generation, output_offset_bytes};
  return d;
}

uint32_t RawClient::Post(const shm::Descriptor& d) {
  const uint32_t slot = next_slot_++ % slot_count();
  // Word by word and atomically: some tests write the same bytes from another thread.
  uint64_t words[sizeof(d) / sizeof(uint64_t)];
  std::memcpy(words, &d, sizeof(d));
  auto* target = reinterpret_cast<uint64_t*>(descriptor(slot));
  for (size_t i = 0; i < std::size(words); ++i) {
    std::atomic_ref<uint64_t>(target[i]).store(words[i], std::memory_order_relaxed);
  }
  completion(slot)->state.store(static_cast<uint32_t>(shm::CompletionState::kIdle));
  PublishSlot(slot);
  return slot;
}

void RawClient::PublishSlot(uint32_t slot) {
  ring()[tail_ % slot_count()] = slot;
  producer()->tail.store(++tail_, std::memory_order_seq_cst);
  RingDoorbell();
}

void RawClient::RingDoorbell(bool always) {
  if (always || node_->engine_sleeping.load(std::memory_order_seq_cst) == 1) {
    eventfd_write(doorbell_fd_, 1);
  }
}

RawCompletion RawClient::Look(uint32_t slot) const { return Copy(*completion(slot)); }

RawCompletion RawClient::Copy(const shm::Completion& c) {
  RawCompletion copy;
  copy.done =
      c.state.load(std::memory_order_acquire) == static_cast<uint32_t>(shm::CompletionState::kDone);
  if (!copy.done) return copy;
  copy.status = c.status;
  copy.sequence = c.sequence;
  copy.payload_bytes = c.payload_bytes;
  copy.wire_bytes = c.wire_bytes;
  copy.policy_generation = c.policy_generation;
  copy.codec = c.codec;
  copy.algorithm = c.algorithm;
  copy.first_post_ns = c.first_post_ns;
  copy.ready_ns = c.ready_ns;
  copy.start_ns = c.start_ns;
  copy.end_ns = c.end_ns;
  copy.nonfinite_count = c.nonfinite_count;
  copy.rank_mask = c.rank_mask;
  copy.message.assign(c.message, strnlen(c.message, sizeof(c.message)));
  return copy;
}

RawCompletion RawClient::Wait(uint32_t slot, std::chrono::milliseconds wait) const {
  const Clock::time_point end = Clock::now() + wait;
  std::atomic<uint32_t>& state = completion(slot)->state;
  while (state.load(std::memory_order_acquire) !=
             static_cast<uint32_t>(shm::CompletionState::kDone) &&
         Clock::now() < end) {
    uint32_t idle = static_cast<uint32_t>(shm::CompletionState::kIdle);
    state.compare_exchange_strong(idle, static_cast<uint32_t>(shm::CompletionState::kWaiting));
    const timespec slice = {0, 50'000'000};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state), FUTEX_WAIT,
            static_cast<uint32_t>(shm::CompletionState::kWaiting), &slice, nullptr, 0);
  }
  return Look(slot);
}

}  // namespace qrd::testing
