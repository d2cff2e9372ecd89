// SPDX-License-Identifier: Apache-2.0
#include "client/src/operation_table.h"

namespace qrd::client {

OperationTable::OperationTable(uint32_t slot_count) : operations_(slot_count) {
  free_.reserve(slot_count);
  for (uint32_t slot = slot_count; slot > 0; --slot) free_.push_back(slot - 1);
}

bool OperationTable::Reserve(uint32_t* slot) {
  if (free_.empty()) return false;
  *slot = free_.back();
  free_.pop_back();
  return true;
}

void OperationTable::Release(uint32_t slot) {
  Operation& operation = operations_[slot];
  operation.sequence = 0;
  if (operation.waiters > 0) {
    operation.finished = true;
    return;
  }
  operation.finished = false;
  free_.push_back(slot);
}

qrd_operation OperationTable::Post(uint32_t slot, uint64_t sequence) {
  operations_[slot].sequence = sequence;
  return sequence << kSlotBits | slot;
}

bool OperationTable::Find(qrd_operation token, uint32_t* slot) const {
  const uint32_t candidate = static_cast<uint32_t>(token & ((1u << kSlotBits) - 1));
  const uint64_t sequence = token >> kSlotBits;
  if (candidate >= operations_.size() || sequence == 0) return false;
  if (operations_[candidate].sequence != sequence) return false;
  *slot = candidate;
  return true;
}

void OperationTable::RemoveWaiter(uint32_t slot) {
  Operation& operation = operations_[slot];
  if (--operation.waiters == 0 && operation.finished) Release(slot);
}

}  // namespace qrd::client
