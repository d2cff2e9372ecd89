// SPDX-License-Identifier: Apache-2.0
// Operations in the order of a stream: buffers, entries, the stream's steps, failures. The steps
// themselves: stream_session.h.
#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/core/keep_forever.h"
#include "client/src/comm.h"
#include "client/src/completion.h"
#include "client/src/device_side.h"
#include "client/src/rms_norm_call.h"

namespace qrd::client {
namespace {

// The daemon ends every operation by its timeout; later than that it is stuck.
constexpr uint64_t kGraceMs = 10'000;
constexpr uint32_t kOperationTimeoutMsDefault = 30'000;
// How long the end of a session waits for streams that were released.
constexpr uint64_t kEndMs = 2'000;
constexpr size_t kStagingBytesMin = size_t{1} << 20;

uint64_t AddressOf(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

qrd_status FailNoDevice() {
  return Fail(QRD_FAILED_PRECONDITION,
              "comm: it has host memory, operations on streams need a device (config.device)");
}

}  // namespace

// Where an operation's bytes are. Without a block a buffer is staged.
struct Comm::StreamBuffers {
  shm::Tensor input{};
  shm::Tensor output{};
  Block* input_block = nullptr;  // pinned
  Block* output_block = nullptr;
  std::array<Block*, kRmsNormOperandsMax> blocks{};  // of operations with RMSNorm: these instead
  StreamSession::Copy copy_in;
  StreamSession::Copy copy_out;
  uint32_t entry = 0;
  bool shared_entry = false;  // of a captured operation like this one
};

qrd_status Comm::OpenStream() {
  if (device_->stream != nullptr) return QRD_OK;
  v1::ClientMessage request;
  request.mutable_stream_open();
  v1::ServerMessage reply;
  std::vector<UniqueFd> fds;
  qrd_status status =
      CallDaemon(request, "StreamOpen", v1::ServerMessage::kStreamOpened, 1, &reply, &fds);
  if (status != QRD_OK) return status;
  const v1::StreamOpened& opened = reply.stream_opened();
  const uint64_t timeout_ms =
      operation_timeout_ms_ != 0 ? operation_timeout_ms_ : kOperationTimeoutMsDefault;
  auto stream = std::make_unique<StreamSession>(device_->driver, device_->device);
  status = stream->Open(fds[0].get(), opened.stream_segment_bytes(), opened.entry_count(), this,
                        socket_.fd(), (timeout_ms + kGraceMs) * kNsPerMs);
  if (status == QRD_OK) {
    device_->stream = std::move(stream);
    return QRD_OK;
  }
  // The daemon gives a stream segment once a session: this one has none any more.
  const SavedError error;
  stream.reset();
  device_->stream_refusal = LastError();
  device_->stream_refusal_status = status;
  return error.Restore(status);
}

void Comm::CloseStream() {
  const std::lock_guard<std::mutex> lock(device_->stream_mu);
  StreamSession* const stream = device_->stream.get();
  if (stream == nullptr) return;
  const gpu::DeviceScope scope(device_->driver, device_->context);
  // A graph may still run, against the rules: what it comes to is released, too.
  if ((!stream->Quiet() || stream->entries().kept() > 0) && !IsLost()) {
    // As for operations that the host would wait for: they are given up, and the other ranks see
    // that this one is gone. The streams are let go.
    MarkLost(QRD_ABORTED, "it was finalized");
    socket_.Shutdown();
    stream->Wake();
  }
  if (stream->End(NowNs() + kEndMs * kNsPerMs)) {
    device_->stream.reset();
  } else {
    // Something may still come to them: their memory stays mapped, too.
    KeepForever(std::move(device_->stream));
    static_cast<void>(device_->memory.TakeAll());
  }
}

void Comm::Unpin(const StreamBuffers& buffers) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (buffers.input_block != nullptr) --buffers.input_block->pins;
  if (buffers.output_block != nullptr) --buffers.output_block->pins;
  for (Block* block : buffers.blocks) {
    if (block != nullptr) --block->pins;
  }
}

qrd_status Comm::FindStreamBuffers(const AllReduceCall& call, size_t bytes,
                                   StreamBuffers* buffers) {
  if (bytes == 0) return QRD_OK;
  const auto find = [&](const char* name, const void* ptr, shm::Tensor* tensor, Block** block) {
    Buffer buffer;
    const qrd_status status = FindBuffer(name, ptr, bytes, &buffer);
    if (status != QRD_OK || buffer.block == nullptr) return status;
    if (buffer.mirror != nullptr) {
      // A mirror can go away with its registration; the staging of streams cannot.
      --buffer.block->pins;
      return QRD_OK;
    }
    *tensor = buffer.tensor;
    *block = buffer.block;
    return QRD_OK;
  };
  qrd_status status;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    status = find("input", call.input, &buffers->input, &buffers->input_block);
    if (status == QRD_OK && call.output != call.input) {
      status = find("output", call.output, &buffers->output, &buffers->output_block);
    }
  }
  if (status == QRD_OK && buffers->input_block == nullptr) {
    status = CheckPointerKind("input", call.input);
  }
  if (call.output == call.input) {
    buffers->output = buffers->input;
  } else if (status == QRD_OK && buffers->output_block == nullptr) {
    status = CheckPointerKind("output", call.output);
  }
  return status;
}

// One range serves every operation, since one of a session is on its way at a time: what is staged
// is reduced in place.
qrd_status Comm::StageOnStream(const AllReduceCall& call, size_t bytes, StreamBuffers* buffers) {
  const bool stage_input = buffers->input_block == nullptr;
  const bool stage_output =
      call.output == call.input ? stage_input : buffers->output_block == nullptr;
  if (bytes == 0 || !(stage_input || stage_output)) return QRD_OK;
  auto& staging = device_->stream->staging;
  if (staging.empty() || staging.back()->bytes() < bytes) {
    std::unique_ptr<Arena> arena;
    const size_t wanted =
        bytes > SIZE_MAX / 4 ? bytes : std::max(kStagingBytesMin, std::bit_ceil(bytes));
    qrd_status status = AllocateArena(wanted, &arena);
    if (status == QRD_RESOURCE_EXHAUSTED && wanted > bytes && !IsLost()) {
      status = AllocateArena(bytes, &arena);
    }
    if (status != QRD_OK) return status;
    staging.push_back(std::move(arena));
  }
  const Arena& arena = *staging.back();
  const shm::Tensor tensor{arena.id, arena.generation, arena.offset_bytes};
  if (stage_input) {
    buffers->input = tensor;
    buffers->copy_in = {AddressOf(arena.data()), AddressOf(call.input), bytes};
  }
  if (stage_output) {
    buffers->output = tensor;
    buffers->copy_out = {AddressOf(call.output), AddressOf(arena.data()), bytes};
  }
  return QRD_OK;
}

qrd_status Comm::TakeStreamEntry(const shm::Descriptor& descriptor, StreamBuffers* buffers) {
  StreamEntries& entries = device_->stream->entries();
  if (!entries.Take(&buffers->entry)) {
    return Fail(QRD_RESOURCE_EXHAUSTED,
                "operations on streams: %u, the daemon's bound (stream_entries_per_session), %u of "
                "them captured in graphs",
                entries.count(), entries.kept());
  }
  entries.SetStaged(buffers->entry, buffers->copy_in.bytes > 0 || buffers->copy_out.bytes > 0);
  shm::StreamEntry& entry = *device_->stream->segment().entry(buffers->entry);
  std::memcpy(&entry.descriptor, &descriptor, sizeof(descriptor));
  entry.completion.state.store(static_cast<uint32_t>(shm::CompletionState::kIdle),
                               std::memory_order_release);
  return QRD_OK;
}

// The stream mutex is held, the device's context is current.
qrd_status Comm::PutOnStream(const AllReduceCall& call, size_t bytes, void* stream, bool captured) {
  StreamBuffers buffers;
  qrd_status status = FindStreamBuffers(call, bytes, &buffers);
  if (status == QRD_OK) status = StageOnStream(call, bytes, &buffers);
  if (status != QRD_OK) {
    const SavedError error;
    Unpin(buffers);
    return error.Restore(status);
  }
  shm::Descriptor descriptor;
  std::memset(&descriptor, 0, sizeof(descriptor));
  descriptor.kind = shm::Kind::kAllReduce;
  descriptor.dtype = static_cast<shm::Dtype>(call.dtype);
  descriptor.op = static_cast<shm::ReduceOp>(call.op);
  descriptor.count = call.count;
  descriptor.input = buffers.input;
  descriptor.output = buffers.output;
  return PutEntryOnStream(descriptor, stream, captured, &buffers);
}

// `buffers` are pinned; here they are unpinned, or that is left to the operation's end.
qrd_status Comm::PutEntryOnStream(const shm::Descriptor& descriptor, void* stream, bool captured,
                                  StreamBuffers* buffers) {
  StreamSession& session = *device_->stream;
  StreamEntries& entries = session.entries();
  qrd_status status = QRD_OK;
  if (captured) buffers->shared_entry = entries.FindKept(descriptor, &buffers->entry);
  bool has_entry = false;
  if (!buffers->shared_entry) {
    status = TakeStreamEntry(descriptor, buffers);
    has_entry = status == QRD_OK;
  }
  bool begun = false;
  if (status == QRD_OK) {
    if (captured && has_entry) entries.Keep(buffers->entry, descriptor);
    if (!captured) {
      StreamEntries::Queued queued = {buffers->entry, session.NextTicket(), buffers->blocks};
      if (buffers->input_block != nullptr) queued.blocks[0] = buffers->input_block;
      if (buffers->output_block != nullptr) queued.blocks[1] = buffers->output_block;
      entries.Queue(queued);
    }
    status =
        session.Put(stream, buffers->entry, captured, buffers->copy_in, buffers->copy_out, &begun);
  }
  // A graph may outlive any use of the memory that can be known here: see qrd_all_reduce_on_stream.
  const bool keeps_pins = !captured && (status == QRD_OK || begun);
  if (keeps_pins && status == QRD_OK) return QRD_OK;
  const SavedError error;
  if (!keeps_pins) Unpin(*buffers);
  if (status == QRD_OK) return QRD_OK;
  if (has_entry && !captured && !begun) entries.UnqueueNewest();
  if (begun && !captured) {
    // The daemon may have been told of an operation that the stream does not wait for.
    MarkLost(status, std::string("an operation is on its stream in part: ") + LastError());
    session.Wake();
  }
  return error.Restore(status);
}

qrd_status Comm::PrepareStream(void* stream, bool* captured) {
  if (device_->stream_refusal_status != QRD_OK) {
    return Fail(device_->stream_refusal_status, "%s", device_->stream_refusal.c_str());
  }
  if (qrd_status status = FailedOnStreamLocked(); status != QRD_OK) return status;
  if (IsLost()) return FailLost();
  gpu::Capture capture = gpu::Capture::kNone;
  qrd_status status = device_->driver->CaptureState(stream, &capture);
  if (status != QRD_OK) return status;
  if (capture == gpu::Capture::kInvalidated) {
    return Fail(QRD_FAILED_PRECONDITION, "stream: %p is in a capture that has become invalid",
                stream);
  }
  if (status = OpenStream(); status != QRD_OK) return status;
  *captured = capture == gpu::Capture::kActive;
  if (*captured && !device_->stream->capture_refusal().empty()) {
    return Fail(QRD_UNIMPLEMENTED, "stream: %p is capturing: %s", stream,
                device_->stream->capture_refusal().c_str());
  }
  RetireQueued();
  return QRD_OK;
}

qrd_status Comm::AllReduceOnStream(const AllReduceCall& call, void* stream) {
  size_t bytes = 0;
  if (qrd_status status = CheckAllReduce(call, &bytes); status != QRD_OK) return status;
  if (device_ == nullptr) return FailNoDevice();
  const std::lock_guard<std::mutex> lock(device_->stream_mu);
  const gpu::DeviceScope scope(device_->driver, device_->context);
  if (scope.status() != QRD_OK) return scope.status();
  bool captured = false;
  if (qrd_status status = PrepareStream(stream, &captured); status != QRD_OK) return status;
  return PutOnStream(call, bytes, stream, captured);
}

// As above; nothing is staged.
qrd_status Comm::AllReduceRmsNormOnStream(const RmsNormCall& call, void* stream) {
  if (device_ == nullptr) return FailNoDevice();
  const std::lock_guard<std::mutex> lock(device_->stream_mu);
  const gpu::DeviceScope scope(device_->driver, device_->context);
  if (scope.status() != QRD_OK) return scope.status();
  bool captured = false;
  if (qrd_status status = PrepareStream(stream, &captured); status != QRD_OK) return status;
  RmsNormOperands operands;
  qrd_status status = FindOperands(call, &operands);
  StreamBuffers buffers;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Buffer& buffer = operands.buffers[i];
    buffers.blocks[i] = buffer.block;
    if (status != QRD_OK || call.operands[i].bytes == 0) continue;
    if (buffer.block == nullptr || buffer.mirror != nullptr) {
      status = Fail(QRD_FAILED_PRECONDITION,
                    "%s: %p is not in memory of qrd_mem_alloc or qrd_mem_import, which operations "
                    "with RMSNorm on a stream need; allocate or import it",
                    call.operands[i].name, call.operands[i].ptr);
    }
  }
  if (status != QRD_OK) {
    const SavedError error;
    Unpin(buffers);
    return error.Restore(status);
  }
  shm::Descriptor descriptor;
  FillDescriptor(call, operands, &descriptor);
  return PutEntryOnStream(descriptor, stream, captured, &buffers);
}

void Comm::RetireQueued() {
  StreamSession* const stream = device_->stream.get();
  if (stream == nullptr) return;
  const auto done = static_cast<uint32_t>(shm::CompletionState::kDone);
  for (const StreamEntries::Queued* oldest = stream->entries().Oldest(); oldest != nullptr;
       oldest = stream->entries().Oldest()) {
    if (!stream->Passed(oldest->ticket)) return;
    // The stream goes on before the daemon has written what happened.
    const shm::Completion& completion = stream->segment().entry(oldest->entry)->completion;
    if (completion.state.load(std::memory_order_acquire) != done && !IsLost()) return;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      for (Block* block : oldest->blocks) {
        if (block != nullptr) --block->pins;
      }
    }
    stream->entries().RetireOldest();
  }
}

void Comm::RetireStreamOperations() {
  const std::lock_guard<std::mutex> lock(device_->stream_mu);
  RetireQueued();
}

qrd_status Comm::FailedOnStreamLocked() {
  if (device_->stream == nullptr) return QRD_OK;
  const StreamSession::Failure& failure = device_->stream->CheckFailure();
  if (failure.status == QRD_OK) return QRD_OK;
  return Fail(failure.status, "%.700s", failure.text.c_str());
}

qrd_status Comm::FailedOnStream() {
  const std::lock_guard<std::mutex> lock(device_->stream_mu);
  return FailedOnStreamLocked();
}

qrd_status Comm::AsyncError(qrd_status* result, qrd_op_stats* stats) {
  if (qrd_status status = CheckStats(stats); status != QRD_OK) return status;
  qrd_op_stats filled = QRD_OP_STATS_INIT;
  qrd_status failed = QRD_OK;
  if (device_ != nullptr) {
    const std::lock_guard<std::mutex> lock(device_->stream_mu);
    failed = FailedOnStreamLocked();
    if (failed != QRD_OK) filled = device_->stream->CheckFailure().stats;
  }
  if (failed == QRD_OK && CheckLost()) {
    failed = FailLost();
    filled.status = failed;
  }
  *result = failed;
  if (stats != nullptr) {
    filled.struct_bytes = stats->struct_bytes;
    std::memcpy(stats, &filled, std::min(stats->struct_bytes, sizeof(filled)));
  }
  return QRD_OK;
}

qrd_status Comm::StreamStats(uint64_t* operations, qrd_op_stats* last) {
  if (qrd_status status = CheckStats(last); status != QRD_OK) return status;
  qrd_op_stats filled = QRD_OP_STATS_INIT;
  uint64_t count = 0;
  if (device_ != nullptr) {
    const std::lock_guard<std::mutex> lock(device_->stream_mu);
    if (device_->stream != nullptr) {
      count = device_->stream->segment().header()->operations.load(std::memory_order_acquire);
      if (last != nullptr && count > 0 && !device_->stream->LastStats(&filled)) {
        return Fail(QRD_UNAVAILABLE,
                    "last: operations end faster than they can be read; try again");
      }
    }
  }
  *operations = count;
  if (last != nullptr) {
    filled.struct_bytes = last->struct_bytes;
    std::memcpy(last, &filled, std::min(last->struct_bytes, sizeof(filled)));
  }
  return QRD_OK;
}

}  // namespace qrd::client
