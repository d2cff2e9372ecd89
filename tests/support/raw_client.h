// SPDX-License-Identifier: Apache-2.0
// Speaks the attach protocol and writes rings and descriptors by hand, right or wrong: for tests of
// the daemon that must send what libqrd never would. Shares no code with daemon or client.
//
//   RawClient client(socket_path);
//   ASSERT_EQ(client.Hello(), "");
//   client.SendJoin("c", "g", 0, 2);  ...  ASSERT_EQ(client.FinishJoin(), "");
//   RawArena a = client.Alloc(4096);
//   uint32_t slot = client.Post(client.AllReduce(a, 0, 2048, 1024));
//   EXPECT_EQ(client.Wait(slot).status, shm::Status::kOk);
//
// Every wait is bounded by kWait. Thread safety: none. Ownership: unmaps and closes everything.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/shm/layout.h"
#include "qrd/v1/attach.pb.h"

namespace qrd::testing {

struct RawArena {
  uint32_t arena_id = 0;
  uint32_t generation = 0;
  uint64_t bytes = 0;
  std::byte* data = nullptr;
  template <typename T>
  T* at(uint64_t offset_bytes) const {
    return reinterpret_cast<T*>(data + offset_bytes);
  }
};

// A copy of a completion.
struct RawCompletion {
  bool done = false;
  shm::Status status = shm::Status::kInProgress;
  uint64_t sequence = 0, payload_bytes = 0, wire_bytes = 0, policy_generation = 0;
  uint32_t codec = 0, algorithm = 0;
  uint64_t first_post_ns = 0, ready_ns = 0, start_ns = 0, end_ns = 0, nonfinite_count = 0;
  uint32_t rank_mask = 0;
  std::string message;
};

class RawClient {
 public:
  static constexpr std::chrono::milliseconds kWait{20'000};

  // Connects; connected() tells whether that worked.
  explicit RawClient(const std::string& socket_path);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Close();

  // --- messages ---
  bool SendBytes(const std::string& packet, const std::vector<int>& fds = {});
  bool Send(const v1::ClientMessage& message) { return SendBytes(message.SerializeAsString()); }
  // The next packet, or nullopt at the end of the connection or after `wait`. Its descriptors are
  // put into received_fds().
  std::optional<v1::ServerMessage> Receive(std::chrono::milliseconds wait = kWait);
  std::vector<int> TakeFds();
  // True if the daemon closes the connection within kWait (packets before that are dropped).
  bool WaitForClose();

  // "" or the error's text; last_status() has the number.
  std::string Hello(uint32_t layout_version = shm::kLayoutVersion);
  void SendJoin(const std::string& communicator, const std::string& group, uint32_t rank,
                uint32_t world_size, uint32_t timeout_ms = 0, bool create_if_absent = true);
  // The same, with tensors on a device.
  void SendJoinOnDevice(const std::string& communicator, const std::string& group, uint32_t rank,
                        uint32_t world_size, const std::string& device);
  std::string FinishJoin();
  // Device memory: the handle's first bytes are a descriptor to map (FakeDeviceBackend).
  RawArena AllocOnDevice(uint64_t bytes);
  RawArena Import(const std::string& ipc_handle, uint64_t offset_bytes, uint64_t bytes);
  std::string OpenStream();
  RawArena Alloc(uint64_t bytes);  // data is null on an error
  std::string Free(const RawArena& arena);
  std::string Abort(const std::string& reason);
  shm::Status last_status() const { return last_status_; }
  const std::string& last_error() const { return last_error_; }
  const v1::Joined& joined() const { return joined_; }

  // --- shared memory, after FinishJoin ---
  std::byte* segment() const { return segment_; }
  uint64_t segment_bytes() const { return segment_bytes_; }
  int segment_fd() const { return segment_fd_; }
  int node_fd() const { return node_fd_; }
  const shm::NodeHeader* node() const { return node_; }
  uint32_t slot_count() const;
  shm::ProducerLine* producer() const;
  shm::ConsumerLine* consumer() const;
  uint32_t* ring() const;
  shm::Descriptor* descriptor(uint32_t slot) const;
  shm::Completion* completion(uint32_t slot) const;

  // --- stream segment, after OpenStream ---
  shm::StreamHeader* stream() const { return reinterpret_cast<shm::StreamHeader*>(stream_); }
  shm::StreamEntry* entry(uint32_t index) const {
    return reinterpret_cast<shm::StreamEntry*>(stream_ + shm::kStreamEntryOffsetBytes) + index;
  }
  int stream_fd() const { return stream_fd_; }
  // What a stream does: fills the entry (if there is a descriptor), announces it.
  void Announce(uint32_t index, const shm::Descriptor& descriptor);
  void Announce(uint32_t index) { stream()->doorbell.store(index + 1); }
  // Waits for the done word and stores 0. False after kWait.
  bool PassStream();
  // The completion of an entry, once the daemon has counted `operations` ends.
  RawCompletion WaitEntry(uint32_t index, uint64_t operations) const;

  // A well-formed fp32 sum with the next sequence (which it counts up), in and out in one arena.
  shm::Descriptor AllReduce(const RawArena& arena, uint64_t input_offset_bytes,
                            uint64_t output_offset_bytes, uint64_t count);
  // Puts it into the next slot (round robin) and publishes it. Returns the slot.
  uint32_t Post(const shm::Descriptor& descriptor);
  // Writes a ring entry and publishes it, whatever it is.
  void PublishSlot(uint32_t slot);
  void RingDoorbell(bool always = false);
  // The completion of the slot, done or not yet.
  RawCompletion Look(uint32_t slot) const;
  // Waits until it is done; `done` is false after `wait`.
  RawCompletion Wait(uint32_t slot, std::chrono::milliseconds wait = kWait) const;

 private:
  bool TakeError(const v1::ServerMessage& message);
  static RawCompletion Copy(const shm::Completion& completion);

  int fd_ = -1;
  std::vector<int> fds_;
  shm::Status last_status_ = shm::Status::kOk;
  std::string last_error_;
  v1::Joined joined_;
  int node_fd_ = -1, segment_fd_ = -1, doorbell_fd_ = -1;
  const shm::NodeHeader* node_ = nullptr;
  std::byte* segment_ = nullptr;
  uint64_t segment_bytes_ = 0;
  int stream_fd_ = -1;
  std::byte* stream_ = nullptr;
  uint64_t stream_bytes_ = 0;
  std::vector<RawArena> arenas_;
  uint64_t next_sequence_ = 1;
  uint64_t tail_ = 0;
  uint32_t next_slot_ = 0;
};

}  // namespace qrd::testing
