// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_daemon.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace qrd::testing {
namespace {

void Check(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

template <typename Condition>
bool PollFor(std::chrono::milliseconds timeout, Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

FakeDaemon::Reply FakeDaemon::Refuse(uint32_t status, const std::string& text) {
  Reply reply;
  reply.kind = Reply::Kind::kSend;
  reply.message.mutable_error()->set_status(status);
  reply.message.mutable_error()->set_message(text);
  return reply;
}

FakeDaemon::FakeDaemon() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ / "attach.sock";
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  Check(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "bind");
  Check(listen(listener_, 8) == 0, "listen");
  stop_ = eventfd(0, EFD_CLOEXEC);
  doorbell_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  node_ = MakeMemory(shm::kNodeSegmentBytes, false);
  thread_ = std::thread([this] { Serve(); });
}

FakeDaemon::~FakeDaemon() {
  const uint64_t one = 1;
  Check(write(stop_, &one, sizeof(one)) == sizeof(one), "write");
  thread_.join();
  for (int fd : {listener_, stop_, doorbell_}) close(fd);
  DropMemory(&node_);
  DropMemory(&session_);
  DropMemory(&stream_);
  for (auto& [id, memory] : arenas_) DropMemory(&memory);
}

FakeDaemon::Memory FakeDaemon::MakeMemory(uint64_t bytes, bool sealed) const {
  Memory memory;
  memory.bytes = bytes;
  memory.fd = memfd_create("qrd-fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Check(memory.fd >= 0, "memfd_create");
  Check(ftruncate(memory.fd, static_cast<off_t>(bytes)) == 0, "ftruncate");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
  Check(data != MAP_FAILED, "mmap");
  memory.data = static_cast<std::byte*>(data);
  if (sealed) {
    Check(fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seal");
  }
  return memory;
}

void FakeDaemon::DropMemory(Memory* memory) {
  if (memory->fd < 0) return;
  munmap(memory->data, memory->bytes);
  close(memory->fd);
  *memory = Memory{};
}

void FakeDaemon::Serve() {
  for (;;) {
    pollfd entries[2] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    ++connections;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      connection_ = fd;
    }
    ServeConnection(fd);
    const std::lock_guard<std::mutex> lock(mu_);
    connection_ = -1;
    close(fd);
  }
}

void FakeDaemon::ServeConnection(int fd) {
  for (;;) {
    pollfd entries[2] = {{fd, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return;
    char bytes[4096];
    const ssize_t received = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (received <= 0) return;
    v1::ClientMessage request;
    if (!request.ParseFromArray(bytes, static_cast<int>(received))) return;
    if (!Answer(fd, request)) return;
  }
}

bool FakeDaemon::Send(int fd, const std::string& bytes, const std::vector<int>& fds) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  return sendmsg(fd, &header, MSG_NOSIGNAL) >= 0;
}

bool FakeDaemon::Answer(int fd, const v1::ClientMessage& request) {
  if (request.has_arena_alloc()) ++arena_requests;
  const auto hook = on_request.get();
  const Reply reply = hook ? hook(request) : Normal();
  switch (reply.kind) {
    case Reply::Kind::kNormal:
      break;
    case Reply::Kind::kSilent:
      return true;
    case Reply::Kind::kClose:
      return false;
    case Reply::Kind::kSendRaw:
      return Send(fd, reply.raw, reply.fds);
    case Reply::Kind::kSend:
      return Send(fd, reply.message.SerializeAsString(), reply.fds);
    case Reply::Kind::kSendThenClose:
      Send(fd, reply.message.SerializeAsString(), reply.fds);
      return false;
  }
  v1::ServerMessage answer;
  switch (request.message_case()) {
    case v1::ClientMessage::kHello:
      answer.mutable_welcome()->set_layout_version(shm::kLayoutVersion);
      answer.mutable_welcome()->set_daemon_version("fake");
      break;
    case v1::ClientMessage::kJoin:
      return AnswerJoin(fd, request.join());
    case v1::ClientMessage::kArenaAlloc:
      return AnswerArena(fd, request.arena_alloc());
    case v1::ClientMessage::kArenaFree: {
      const std::lock_guard<std::mutex> lock(mu_);
      const auto it = arenas_.find(request.arena_free().arena_id());
      if (it != arenas_.end()) {
        DropMemory(&it->second);
        arenas_.erase(it);
        --arenas_live;
      }
      answer.mutable_arena_freed();
      break;
    }
    case v1::ClientMessage::kAbort:
      answer.mutable_aborted();
      break;
    case v1::ClientMessage::kArenaImport:
      return AnswerImport(fd, request.arena_import());
    case v1::ClientMessage::kStreamOpen:
      return AnswerStreamOpen(fd);
    case v1::ClientMessage::MESSAGE_NOT_SET:
      return false;
  }
  return Send(fd, answer.SerializeAsString(), {});
}

bool FakeDaemon::AnswerJoin(int fd, const v1::Join& join) {
  auto* node = reinterpret_cast<shm::NodeHeader*>(node_.data);
  node->magic = shm::kNodeMagic;
  node->layout_version = shm::kLayoutVersion;
  node->segment_bytes = shm::kNodeSegmentBytes;
  if (seal) fcntl(node_.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const std::lock_guard<std::mutex> lock(mu_);
  DropMemory(&session_);
  DropMemory(&stream_);
  on_device_ = !join.device().empty();
  stream_operations_ = 0;
  head_ = 0;
  session_slots_ = slot_count;
  session_ = MakeMemory(shm::SessionSegmentBytes(slot_count), seal);
  auto* header = reinterpret_cast<shm::SessionHeader*>(session_.data);
  header->magic = shm::kSessionMagic;
  header->layout_version = shm::kLayoutVersion;
  header->segment_bytes = session_.bytes;
  header->session_id = 1;
  header->rank = join.rank();
  header->world_size = join.world_size();
  header->slot_count = slot_count;
  header->ring_offset_bytes = shm::kRingOffsetBytes;
  header->descriptor_offset_bytes = shm::DescriptorOffsetBytes(slot_count);
  header->completion_offset_bytes = shm::CompletionOffsetBytes(slot_count);
  v1::ServerMessage answer;
  v1::Joined& joined = *answer.mutable_joined();
  joined.set_session_id(1);
  joined.set_node_segment_bytes(node_.bytes);
  joined.set_session_segment_bytes(session_.bytes);
  joined.set_operation_timeout_ms(30000);
  joined.set_spin_us_max(spin_us_max);
  joined.set_device(join.device());
  if (edit_joined) edit_joined(node, header, &joined);
  std::vector<int> fds = {node_.fd, session_.fd, doorbell_};
  fds.resize(static_cast<size_t>(joined_fd_count), doorbell_);
  return Send(fd, answer.SerializeAsString(), fds);
}

bool FakeDaemon::AnswerArena(int fd, const v1::ArenaAlloc& request) {
  const std::lock_guard<std::mutex> lock(mu_);
  const uint32_t id = next_arena_++;
  Memory& memory = arenas_[id];
  memory = MakeMemory((request.bytes() + 4095) / 4096 * 4096, seal);
  ++arenas_live;
  v1::ServerMessage answer;
  answer.mutable_arena_allocated()->set_arena_id(id);
  answer.mutable_arena_allocated()->set_generation(id + 100);
  answer.mutable_arena_allocated()->set_bytes(memory.bytes);
  std::vector<int> fds = {memory.fd};
  if (on_device_) {
    std::string handle(kIpcHandleBytes, '\0');
    std::memcpy(handle.data(), &memory.data, sizeof(memory.data));
    answer.mutable_arena_allocated()->set_ipc_handle(handle);
    fds.clear();
  }
  if (edit_arena) edit_arena(answer.mutable_arena_allocated());
  return Send(fd, answer.SerializeAsString(), fds);
}

std::byte* FakeDaemon::SessionData() {
  const std::lock_guard<std::mutex> lock(mu_);
  return session_.data;
}

std::optional<FakeDaemon::Posted> FakeDaemon::NextPosted(std::chrono::milliseconds timeout) {
  std::byte* const data = SessionData();
  const auto* producer = reinterpret_cast<shm::ProducerLine*>(data + shm::kProducerOffsetBytes);
  auto* consumer = reinterpret_cast<shm::ConsumerLine*>(data + shm::kConsumerOffsetBytes);
  if (!PollFor(timeout, [&] { return producer->tail.load(std::memory_order_acquire) > head_; })) {
    return std::nullopt;
  }
  Posted posted;
  std::memcpy(&posted.slot,
              data + shm::kRingOffsetBytes + head_ % session_slots_ * sizeof(uint32_t),
              sizeof(uint32_t));
  std::memcpy(
      &posted.descriptor,
      data + shm::DescriptorOffsetBytes(session_slots_) + posted.slot * sizeof(shm::Descriptor),
      sizeof(shm::Descriptor));
  consumer->head.store(++head_, std::memory_order_release);
  return posted;
}

shm::Completion* FakeDaemon::completion(uint32_t slot) {
  return reinterpret_cast<shm::Completion*>(SessionData() +
                                            shm::CompletionOffsetBytes(session_slots_)) +
         slot;
}

void FakeDaemon::Complete(const Posted& posted, uint32_t status, const std::string& message,
                          std::optional<uint64_t> sequence) {
  shm::Completion& c = *completion(posted.slot);
  c.status = static_cast<shm::Status>(status);
  c.sequence = sequence.value_or(posted.descriptor.sequence);
  c.payload_bytes = posted.descriptor.count;
  c.wire_bytes = 77;
  c.codec = 4;
  c.algorithm = 1;
  c.policy_generation = 9;
  c.end_ns = NowNs();
  c.rank_mask = 2;
  std::memset(c.message, 0, sizeof(c.message));
  std::memcpy(c.message, message.data(), std::min(message.size(), sizeof(c.message)));
  const uint32_t before = c.state.exchange(static_cast<uint32_t>(shm::CompletionState::kDone),
                                           std::memory_order_acq_rel);
  if (before == static_cast<uint32_t>(shm::CompletionState::kWaiting)) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&c.state), FUTEX_WAKE, 1 << 30, nullptr, nullptr,
            0);
  }
}

std::byte* FakeDaemon::ArenaData(uint32_t arena_id) {
  const std::lock_guard<std::mutex> lock(mu_);
  const auto it = arenas_.find(arena_id);
  return it == arenas_.end() ? nullptr : it->second.data;
}

bool FakeDaemon::AwaitSleeper(uint32_t slot) {
  return PollFor(std::chrono::seconds(20), [&] {
    return completion(slot)->state.load(std::memory_order_acquire) ==
           static_cast<uint32_t>(shm::CompletionState::kWaiting);
  });
}

void FakeDaemon::HangUp(uint32_t status, const std::string& words) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (connection_ < 0) return;
  if (!words.empty()) {
    v1::ServerMessage message;
    message.mutable_error()->set_status(status);
    message.mutable_error()->set_message(words);
    Send(connection_, message.SerializeAsString(), {});
  }
  shutdown(connection_, SHUT_RDWR);
}

void FakeDaemon::SetEngineSleeping(bool sleeping) {
  reinterpret_cast<shm::NodeHeader*>(node_.data)
      ->engine_sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst);
}

uint64_t FakeDaemon::Rings() {
  uint64_t count = 0;
  return read(doorbell_, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

}  // namespace qrd::testing
