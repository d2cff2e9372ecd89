// SPDX-License-Identifier: Apache-2.0
// The operations of a communicator: post, wait, finish.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/src/comm.h"
#include "client/src/completion.h"

namespace qrd::client {
namespace {

// qrd_test is called in a loop: it asks the kernel about the connection once in this time only.
constexpr uint64_t kTestCheckNs = 1'000'000;
// A daemon shows that it moves at least every 100 ms, even on a very busy machine every second.
constexpr uint64_t kStallNsMax = 10'000'000'000;

}  // namespace

// Pins the block that holds the buffer. Neither block nor error: the buffer must be staged.
qrd_status Comm::FindBuffer(const char* name, const void* ptr, size_t bytes, Buffer* buffer) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(ptr);
  Block* block = memory_.FindOverlap(start, bytes);
  if (block == nullptr) return QRD_OK;
  const bool inside = start >= block->start && bytes <= block->bytes &&
                      start - block->start <= block->bytes - bytes;
  if (!inside || block->leaving) {
    // Registered ranges only save an allocation: a buffer that is partly in one is staged as a
    // whole.
    if (block->registered) return QRD_OK;
    return Fail(QRD_INVALID_ARGUMENT,
                "%s: [%p, +%zu) is not within its %s memory [0x%" PRIxPTR ", +%zu)%s", name, ptr,
                bytes, block->imported ? "imported" : "qrd_mem_alloc", block->start, block->bytes,
                block->leaving ? ", which is being freed" : "");
  }
  ++block->pins;
  buffer->block = block;
  const size_t offset = block->arena_offset + (start - block->start);
  buffer->tensor = {block->arena->id, block->arena->generation,
                    block->arena->offset_bytes + offset};
  if (block->registered) buffer->mirror = block->arena->data() + offset;
  return QRD_OK;
}

qrd_status Comm::FindBuffers(const AllReduceCall& call, size_t bytes, Operation* operation) {
  if (bytes == 0) return QRD_OK;
  qrd_status status = FindBuffer("input", call.input, bytes, &operation->input);
  if (status == QRD_OK && call.output != call.input) {
    status = FindBuffer("output", call.output, bytes, &operation->output);
  }
  return status;
}

qrd_status Comm::StageBuffers(const AllReduceCall& call, size_t bytes, Operation* operation) {
  const auto stage = [&](const char* name, const void* ptr, Buffer* buffer) {
    if (buffer->block != nullptr) return QRD_OK;
    qrd_status status = CheckPointerKind(name, ptr);
    if (status == QRD_OK) status = AcquireStaging(bytes, &buffer->staging);
    if (status != QRD_OK) return status;
    const Arena& arena = *buffer->staging;
    buffer->tensor = {arena.id, arena.generation, arena.offset_bytes};
    buffer->mirror = arena.data();
    return QRD_OK;
  };
  qrd_status status = stage("input", call.input, &operation->input);
  if (status == QRD_OK && call.output != call.input) {
    status = stage("output", call.output, &operation->output);
  }
  if (status != QRD_OK || operation->input.mirror == nullptr) return status;
  return CopyStaged(operation->input.mirror, call.input, bytes);
}

qrd_status Comm::Publish(const AllReduceCall& call, uint32_t slot, qrd_operation* token) {
  Operation& operation = (*operations_)[slot];
  const bool in_place = call.output == call.input;
  shm::Descriptor& descriptor = *session_.descriptor(slot);
  // What an operation with RMSNorm left in the slot.
  if (descriptor.epilogue != 0) std::memset(&descriptor.rms_norm, 0, sizeof(descriptor.rms_norm));
  descriptor.kind = shm::Kind::kAllReduce;
  descriptor.dtype = static_cast<shm::Dtype>(call.dtype);
  descriptor.op = static_cast<shm::ReduceOp>(call.op);
  descriptor.flags = 0;
  descriptor.count = call.count;
  descriptor.input = operation.input.tensor;
  descriptor.output = in_place ? operation.input.tensor : operation.output.tensor;
  descriptor.timeout_ms = 0;
  descriptor.epilogue = 0;
  return PublishSlot(slot, token);
}

qrd_status Comm::PublishSlot(uint32_t slot, qrd_operation* token) {
  session_.descriptor(slot)->sequence = next_sequence_;
  session_.completion(slot)->state.store(static_cast<uint32_t>(shm::CompletionState::kIdle),
                                         std::memory_order_relaxed);
  if (!ring_.Publish(slot)) {
    ring_.CountFull();
    // A daemon that is gone takes nothing: that is the reason then.
    if (CheckLost()) return FailLost();
    return Fail(QRD_RESOURCE_EXHAUSTED,
                "submission ring: the daemon has not yet taken %u operations, the ring's bound",
                session_.slot_count());
  }
  *token = operations_->Post(slot, next_sequence_++);
  return QRD_OK;
}

qrd_status Comm::ReserveSlot(uint32_t* slot) {
  if (operations_->Reserve(slot)) return QRD_OK;
  ring_.CountFull();
  if (CheckLost()) return FailLost();
  return Fail(
      QRD_RESOURCE_EXHAUSTED,
      "operations in flight: %u, the daemon's bound (operations_in_flight_max); wait for one",
      operations_->slot_count());
}

qrd_status Comm::AllReduce(const AllReduceCall& call, qrd_operation* token) {
  size_t bytes = 0;
  if (qrd_status status = CheckAllReduce(call, &bytes); status != QRD_OK) return status;
  if (IsLost()) return FailLost();
  uint32_t slot = 0;
  qrd_status status = device_ != nullptr ? FailedOnStream() : QRD_OK;
  if (status != QRD_OK) return status;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (status = ReserveSlot(&slot); status != QRD_OK) return status;
    Operation& operation = (*operations_)[slot];
    operation.payload_bytes = bytes;
    operation.copy_to = nullptr;
    status = FindBuffers(call, bytes, &operation);
    // The common case ends here, under one lock.
    const bool reachable =
        bytes == 0 || (operation.input.block != nullptr && !operation.input.block->registered &&
                       (call.output == call.input || (operation.output.block != nullptr &&
                                                      !operation.output.block->registered)));
    if (status == QRD_OK && reachable) {
      status = Publish(call, slot, token);
      if (status == QRD_OK) return QRD_OK;
    }
  }
  // The slot is reserved: nobody else touches the operation while the copies are made.
  Operation& operation = (*operations_)[slot];
  if (status == QRD_OK) {
    try {
      status = StageBuffers(call, bytes, &operation);
    } catch (...) {
      GiveBack(slot);
      throw;
    }
  }
  if (status == QRD_OK) {
    const Buffer& target = call.output == call.input ? operation.input : operation.output;
    if (target.mirror != nullptr) operation.copy_to = call.output;
    const std::lock_guard<std::mutex> lock(mu_);
    status = Publish(call, slot, token);
    if (status == QRD_OK) return QRD_OK;
  }
  const SavedError error;
  GiveBack(slot);
  return error.Restore(status);
}

// Unpins, returns staging to the cache, frees the slot.
void Comm::GiveBack(uint32_t slot) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Operation& operation = (*operations_)[slot];
    const auto give_back = [this](Buffer* buffer) {
      if (buffer->block != nullptr) --buffer->block->pins;
      if (buffer->staging != nullptr) memory_.PutIdle(std::move(buffer->staging));
      *buffer = Buffer{};
    };
    give_back(&operation.input);
    give_back(&operation.output);
    if (operation.rms_norm != nullptr) {
      for (Buffer& buffer : operation.rms_norm->buffers) give_back(&buffer);
      operation.rms_norm.reset();
    }
    operations_->Release(slot);
  }
  DropExcessStaging();
}

// Staged results to where the caller wants them.
qrd_status Comm::CopyResults(const Operation& operation) {
  if (operation.rms_norm != nullptr) {
    const RmsNormOperands& operands = *operation.rms_norm;
    for (size_t i = 0; i < operands.buffers.size(); ++i) {
      if (operands.copy_to[i] == nullptr) continue;
      const qrd_status status =
          CopyStaged(operands.copy_to[i], operands.buffers[i].mirror, operands.bytes[i]);
      if (status != QRD_OK) return status;
    }
    return QRD_OK;
  }
  if (operation.copy_to == nullptr) return QRD_OK;
  const Buffer& target = operation.output.mirror != nullptr ? operation.output : operation.input;
  return CopyStaged(operation.copy_to, target.mirror, operation.payload_bytes);
}

qrd_status Comm::Finish(uint32_t slot, uint64_t sequence, bool lost, qrd_op_stats* stats) {
  Operation& operation = (*operations_)[slot];
  const shm::Completion& completion = *session_.completion(slot);
  Result result;
  if (lost) {
    result.status = FailLost();
    std::snprintf(result.message, sizeof(result.message), "%.380s", LastError());
  } else {
    result = ReadResult(completion, sequence);
  }
  if (result.status == QRD_OK) {
    result.status = CopyResults(operation);
    if (result.status != QRD_OK) {
      std::snprintf(result.message, sizeof(result.message), "%.380s", LastError());
    }
  }
  const bool staged = operation.rms_norm != nullptr
                          ? operation.rms_norm->staged
                          : operation.input.mirror != nullptr || operation.output.mirror != nullptr;
  if (stats != nullptr) {
    qrd_op_stats filled = QRD_OP_STATS_INIT;
    filled.struct_bytes = stats->struct_bytes;
    filled.status = result.status;
    filled.sequence = sequence;
    filled.payload_bytes = operation.payload_bytes;
    filled.staged = staged ? 1 : 0;
    if (!lost) CopyStats(completion, &filled);
    // A caller built against another version has a smaller or a larger struct.
    std::memcpy(stats, &filled, std::min(stats->struct_bytes, sizeof(filled)));
  }
  GiveBack(slot);
  if (result.status == QRD_OK) return QRD_OK;
  return Fail(result.status, "%s", ResultText(result, sequence).c_str());
}

uint64_t Comm::StalledNs(uint64_t since_ns) const {
  const uint64_t now_ns = NowNs();
  const uint64_t last_ns = std::max(since_ns, std::min(node_.progress_ns(), now_ns));
  return now_ns - last_ns;
}

qrd_status Comm::Wait(qrd_operation token, uint32_t timeout_ms, qrd_op_stats* stats) {
  if (qrd_status status = CheckStats(stats); status != QRD_OK) return status;
  uint32_t slot = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!operations_->Find(token, &slot)) {
      return Fail(QRD_NOT_FOUND,
                  "operation: %" PRIu64 " is not in flight (never posted, or released)", token);
    }
    operations_->AddWaiter(slot);
  }
  shm::Completion& completion = *session_.completion(slot);
  WaitResult waited = WaitResult::kDone;
  const auto done = static_cast<uint32_t>(shm::CompletionState::kDone);
  if (completion.state.load(std::memory_order_acquire) != done) {
    const uint64_t start_ns = NowNs();
    const uint64_t deadline_ns = timeout_ms == 0 ? kNever : start_ns + timeout_ms * kNsPerMs;
    // Without a time limit of the caller's, a daemon that does not move ends the wait.
    struct Watch {
      Comm* comm;
      uint64_t start_ns;
      bool unlimited;
    } watch{this, start_ns, timeout_ms == 0};
    waited = WaitForDone(
        &completion.state, spin_->Get(start_ns), spin_->guard(), deadline_ns,
        [](void* context) {
          const auto* w = static_cast<Watch*>(context);
          return w->comm->CheckLost() ||
                 (w->unlimited && w->comm->StalledNs(w->start_ns) > kStallNsMax);
        },
        &watch);
    // The daemon's end time, if it makes sense: how long a spin would have had to be.
    const uint64_t elapsed_ns = NowNs() - start_ns;
    const uint64_t end_ns = waited == WaitResult::kDone ? completion.end_ns : 0;
    spin_->Learn(end_ns > start_ns ? std::min(end_ns - start_ns, elapsed_ns) : elapsed_ns);
  }
  const bool lost = waited == WaitResult::kGaveUp && IsLost();
  bool mine;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    uint32_t same = 0;
    mine = operations_->Find(token, &same) && (lost || waited == WaitResult::kDone);
    const bool gone = !operations_->Find(token, &same);
    // The token dies before the result is taken: only one thread takes it.
    if (mine) (*operations_)[slot].sequence = 0;
    operations_->RemoveWaiter(slot);
    if (gone) {
      return Fail(QRD_NOT_FOUND, "operation: %" PRIu64 " was released by another thread meanwhile",
                  token);
    }
  }
  if (!mine && waited == WaitResult::kGaveUp) {
    return Fail(QRD_IN_PROGRESS,
                "operation %" PRIu64
                ": the daemon has not moved for %d s (is it stopped?); the operation is still "
                "posted: wait again, or finalize",
                token >> OperationTable::kSlotBits, static_cast<int>(kStallNsMax / 1'000'000'000));
  }
  if (!mine) {
    return Fail(QRD_IN_PROGRESS, "operation %" PRIu64 " is not done after %u ms",
                token >> OperationTable::kSlotBits, timeout_ms);
  }
  return Finish(slot, token >> OperationTable::kSlotBits, lost, stats);
}

qrd_status Comm::Test(qrd_operation token, qrd_op_stats* stats) {
  if (qrd_status status = CheckStats(stats); status != QRD_OK) return status;
  uint32_t slot = 0;
  bool lost = false;
  {
    const uint64_t now_ns = NowNs();
    if (now_ns - last_check_ns_.load(std::memory_order_relaxed) >= kTestCheckNs) {
      last_check_ns_.store(now_ns, std::memory_order_relaxed);
      lost = CheckLost();
    } else {
      lost = IsLost();
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!operations_->Find(token, &slot)) {
      return Fail(QRD_NOT_FOUND,
                  "operation: %" PRIu64 " is not in flight (never posted, or released)", token);
    }
    const auto done = static_cast<uint32_t>(shm::CompletionState::kDone);
    if (session_.completion(slot)->state.load(std::memory_order_acquire) == done) {
      lost = false;
    } else if (!lost) {
      return Fail(QRD_IN_PROGRESS, "operation %" PRIu64 " is not done",
                  token >> OperationTable::kSlotBits);
    }
    (*operations_)[slot].sequence = 0;
  }
  return Finish(slot, token >> OperationTable::kSlotBits, lost, stats);
}

}  // namespace qrd::client
