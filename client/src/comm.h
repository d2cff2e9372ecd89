// SPDX-License-Identifier: Apache-2.0
// One rank's session with the daemon: what a qrd_comm_t points to. The C functions check for NULL
// and exceptions and call here.
//
//   Attach   connect, Hello, Join, map the segments, check them
//   Post     check arguments, reserve a slot, find or stage the buffers, fill the descriptor
//   Wait     spin, sleep, take the result, copy a staged output back, release the slot
//
// Thread safety: all functions from any thread, the destructor last and alone.
//   mu_       memory, operations, ring, sequence; not held over a wait, a copy or a message
//   call_mu_  the attach connection, one request at a time; held for at most kCallTimeoutMs
//   lost_mu_  text of the loss
// No two of them are ever held together. A communicator with a device has two more (device_side.h),
// which are taken before these.
// Ownership: owns the connection, all mappings, and with them the memory of qrd_mem_alloc.
//
// Invariants
//   1. Posting to memory that the daemon can reach allocates nothing and makes no system call,
//      unless the engine sleeps.
//   2. Once lost, always lost: every function that needs the daemon returns the same status and
//      text; results that had arrived can still be taken, memory can still be freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "client/core/fork_guard.h"
#include "client/core/ring.h"
#include "client/core/segment.h"
#include "client/core/unix_socket.h"
#include "client/core/wait.h"
#include "client/src/arguments.h"
#include "client/src/device_memory.h"
#include "client/src/memory_table.h"
#include "client/src/operation_table.h"
#include "client/src/stream_watcher.h"
#include "qrd/qrd.h"

namespace qrd::client {

struct DeviceSide;
struct RmsNormCall;

class Comm final : private DeviceMemory::Source, private StreamWatcher::Owner {
 public:
  static qrd_status Attach(const AttachOptions& options, std::unique_ptr<Comm>* comm);
  ~Comm();

  uint32_t rank() const { return rank_; }
  uint32_t world_size() const { return world_size_; }
  bool InForkedChild() const { return fork_guard_.InChild(); }

  qrd_status Abort(const std::string& reason);

  qrd_status MemAlloc(size_t bytes, void** ptr);
  qrd_status MemFree(void* ptr);
  qrd_status MemRegister(void* ptr, size_t bytes);
  qrd_status MemDeregister(void* ptr);
  qrd_status MemImport(void* ptr, size_t bytes);
  qrd_status MemRelease(void* ptr);

  qrd_status AllReduce(const AllReduceCall& call, qrd_operation* operation);
  qrd_status Wait(qrd_operation operation, uint32_t timeout_ms, qrd_op_stats* stats);
  qrd_status Test(qrd_operation operation, qrd_op_stats* stats);

  // rms_norm_call.h says what was checked. comm_rms_norm.cc
  qrd_status AllReduceRmsNorm(const RmsNormCall& call, qrd_operation* operation);
  qrd_status AllReduceRmsNormOnStream(const RmsNormCall& call, void* stream);

  qrd_status AllReduceOnStream(const AllReduceCall& call, void* stream);
  qrd_status AsyncError(qrd_status* status, qrd_op_stats* stats);
  qrd_status StreamStats(uint64_t* operations, qrd_op_stats* last);

 private:
  Comm();

  // comm.cc
  qrd_status Open(const AttachOptions& options);
  qrd_status Join(const AttachOptions& options, uint64_t deadline_ns);
  qrd_status CallDaemon(const v1::ClientMessage& request, const char* what,
                        v1::ServerMessage::MessageCase want, size_t want_fds,
                        v1::ServerMessage* reply, std::vector<UniqueFd>* fds);
  // True if the daemon is gone; then IsLost() from here on.
  bool CheckLost();
  bool IsLost() const { return lost_.load(std::memory_order_acquire); }
  void MarkLost(qrd_status status, const std::string& text);
  qrd_status FailLost();

  // comm_memory.cc
  qrd_status AllocateArena(size_t bytes, std::unique_ptr<Arena>* arena);
  // Tells the daemon and unmaps. QRD_OK if the daemon is gone, too.
  qrd_status FreeArena(std::unique_ptr<Arena> arena);
  qrd_status FreeDaemonArena(const Arena& arena);
  // mu_ is held.
  qrd_status CheckNoOverlap(const char* name, const Block& block);
  qrd_status InsertBlock(const char* name, Block block);
  qrd_status RemoveBlock(const char* what, void* ptr);
  qrd_status AcquireStaging(size_t bytes, std::unique_ptr<Arena>* arena);
  void DropExcessStaging();

  // comm_operations.cc
  qrd_status FindBuffer(const char* name, const void* ptr, size_t bytes, Buffer* buffer);
  qrd_status FindBuffers(const AllReduceCall& call, size_t bytes, Operation* operation);
  qrd_status StageBuffers(const AllReduceCall& call, size_t bytes, Operation* operation);
  qrd_status Publish(const AllReduceCall& call, uint32_t slot, qrd_operation* operation);
  qrd_status ReserveSlot(uint32_t* slot);
  // Publishes the slot's descriptor, whose sequence is filled in here. mu_ is held.
  qrd_status PublishSlot(uint32_t slot, qrd_operation* operation);

  // comm_rms_norm.cc
  qrd_status FindOperands(const RmsNormCall& call, RmsNormOperands* operands);
  qrd_status StageOperands(const RmsNormCall& call, RmsNormOperands* operands);
  // Takes the result of slot (posted, done or lost) and releases it. Called and returns without
  // locks.
  qrd_status Finish(uint32_t slot, uint64_t sequence, bool lost, qrd_op_stats* stats);
  qrd_status CopyResults(const Operation& operation);
  void GiveBack(uint32_t slot);
  // How long the daemon has not moved, counted from since_ns at the earliest.
  uint64_t StalledNs(uint64_t since_ns) const;

  // comm_device.cc: nothing of it is used by communicators with host memory, except the two checks
  // and copies of staged buffers
  qrd_status OpenDevice(const std::string& name);
  void CloseDevice();
  qrd_status CheckPointerKind(const char* name, const void* ptr);
  qrd_status CopyStaged(void* to, const void* from, size_t bytes);
  qrd_status AllocateDeviceBlock(size_t bytes, std::unique_ptr<Arena>* arena);
  qrd_status FreeDeviceBlock(const Arena& arena);
  qrd_status AllocateDeviceArena(uint64_t bytes, DeviceArena* arena) override;
  void FreeDeviceArena(const DeviceArena& arena) override;
  qrd_status CheckImport(const void* ptr, size_t bytes, gpu::DevicePtr* base);

  // comm_stream.cc
  struct StreamBuffers;
  qrd_status OpenStream();
  void CloseStream();
  qrd_status FindStreamBuffers(const AllReduceCall& call, size_t bytes, StreamBuffers* buffers);
  qrd_status StageOnStream(const AllReduceCall& call, size_t bytes, StreamBuffers* buffers);
  qrd_status TakeStreamEntry(const shm::Descriptor& descriptor, StreamBuffers* buffers);
  // Checks of a call on a stream, before its operation is put there.
  qrd_status PrepareStream(void* stream, bool* captured);
  qrd_status PutOnStream(const AllReduceCall& call, size_t bytes, void* stream, bool captured);
  qrd_status PutEntryOnStream(const shm::Descriptor& descriptor, void* stream, bool captured,
                              StreamBuffers* buffers);
  void Unpin(const StreamBuffers& buffers);
  // Takes back what ended operations held. The stream mutex is held.
  void RetireQueued();
  void RetireStreamOperations();
  // The first failure of an operation on a stream, as this thread's error.
  qrd_status FailedOnStream();
  qrd_status FailedOnStreamLocked();
  bool SessionLost() override { return CheckLost(); }
  uint64_t DaemonStalledNs(uint64_t since_ns) override { return StalledNs(since_ns); }
  void LoseSession(qrd_status status, const std::string& text) override { MarkLost(status, text); }

  uint32_t rank_ = 0;
  uint32_t world_size_ = 0;
  uint32_t operation_timeout_ms_ = 0;
  std::unique_ptr<DeviceSide> device_;  // null: host memory
  ForkGuard fork_guard_;
  NodeSegment node_;
  SessionSegment session_;
  UniqueFd doorbell_;
  std::unique_ptr<SpinBudget> spin_;

  std::mutex mu_;
  MemoryTable memory_;
  std::unique_ptr<OperationTable> operations_;
  RingProducer ring_;
  uint64_t next_sequence_ = 1;

  std::mutex call_mu_;
  UnixSocket socket_;

  std::mutex lost_mu_;
  std::atomic<bool> lost_{false};
  qrd_status lost_status_ = QRD_DAEMON_LOST;
  std::string lost_text_;
  // When Test last looked at the connection: not at every call.
  std::atomic<uint64_t> last_check_ns_{0};
};

}  // namespace qrd::client
