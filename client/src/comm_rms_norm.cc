// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm: operands found or staged, the descriptor, the post. On streams:
// comm_stream.cc.
#include <cstring>
#include <utility>

#include "client/core/error.h"
#include "client/src/comm.h"
#include "client/src/rms_norm_call.h"

namespace qrd::client {

// Pins what lies in the communicator's memory. An operand that shares its memory with one before
// has its tensor and is pinned, too.
qrd_status Comm::FindOperands(const RmsNormCall& call, RmsNormOperands* operands) {
  const std::lock_guard<std::mutex> lock(mu_);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const RmsNormOperand& operand = call.operands[i];
    if (operand.bytes == 0) continue;
    const qrd_status status =
        FindBuffer(operand.name, operand.ptr, operand.bytes, &operands->buffers[i]);
    if (status != QRD_OK) return status;
  }
  return QRD_OK;
}

// Copies in what is read, and notes where what is written goes. Registered memory has its place;
// the rest is staged in arenas of its own.
qrd_status Comm::StageOperands(const RmsNormCall& call, RmsNormOperands* operands) {
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const RmsNormOperand& operand = call.operands[i];
    Buffer& buffer = operands->buffers[i];
    if (operand.bytes == 0 || (buffer.block != nullptr && buffer.mirror == nullptr)) continue;
    operands->staged = true;
    if (operand.same_as >= 0 && buffer.block == nullptr) {
      // The memory of the operand before, which owns the staging.
      const Buffer& same = operands->buffers[static_cast<size_t>(operand.same_as)];
      buffer.tensor = same.tensor;
      buffer.mirror = same.mirror;
    } else if (buffer.block == nullptr) {
      qrd_status status = CheckPointerKind(operand.name, operand.ptr);
      if (status == QRD_OK) status = AcquireStaging(operand.bytes, &buffer.staging);
      if (status != QRD_OK) return status;
      const Arena& arena = *buffer.staging;
      buffer.tensor = {arena.id, arena.generation, arena.offset_bytes};
      buffer.mirror = arena.data();
    }
    if (operand.read) {
      const qrd_status status = CopyStaged(buffer.mirror, operand.ptr, operand.bytes);
      if (status != QRD_OK) return status;
    }
    if (operand.written) {
      operands->copy_to[i] = operand.ptr;
      operands->bytes[i] = operand.bytes;
    }
  }
  return QRD_OK;
}

qrd_status Comm::AllReduceRmsNorm(const RmsNormCall& call, qrd_operation* token) {
  if (IsLost()) return FailLost();
  qrd_status status = device_ != nullptr ? FailedOnStream() : QRD_OK;
  if (status != QRD_OK) return status;
  auto operands = std::make_unique<RmsNormOperands>();
  uint32_t slot = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (status = ReserveSlot(&slot); status != QRD_OK) return status;
    Operation& operation = (*operations_)[slot];
    operation.payload_bytes = call.operands[RmsNormCall::kInput].bytes;
    operation.copy_to = nullptr;
    operation.rms_norm = std::move(operands);
  }
  RmsNormOperands* const mine = (*operations_)[slot].rms_norm.get();
  try {
    status = FindOperands(call, mine);
    if (status == QRD_OK) status = StageOperands(call, mine);
  } catch (...) {
    GiveBack(slot);
    throw;
  }
  if (status == QRD_OK) {
    FillDescriptor(call, *mine, session_.descriptor(slot));
    const std::lock_guard<std::mutex> lock(mu_);
    status = PublishSlot(slot, token);
    if (status == QRD_OK) return QRD_OK;
  }
  const SavedError error;
  GiveBack(slot);
  return error.Restore(status);
}

}  // namespace qrd::client
