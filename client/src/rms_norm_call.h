// SPDX-License-Identifier: Apache-2.0
// An all-reduce with RMSNorm as the caller wants it, checked (the contract of epilogues, section 5)
// and turned into a list of operands; and the descriptor made of it.
//
// Thread safety: pure functions (apart from the thread's last error).
#pragma once

#include <array>
#include <cstddef>

#include "client/src/operation_table.h"
#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

// A tensor of the call. bytes is 0 if it is not there.
struct RmsNormOperand {
  const char* name = "";
  void* ptr = nullptr;
  size_t bytes = 0;
  bool read = false;
  bool written = false;
  int same_as = -1;  // an operand before this one with the same memory
};

struct RmsNormCall {
  enum Index { kInput, kResidual, kWeight, kResidualOut, kOut, kOut8, kScales, kMirror };
  qrd_dtype dtype = QRD_BF16;
  qrd_rms_norm norm = QRD_RMS_NORM_INIT;
  bool has_rows = true;  // of residual and residual_out: false only with a sharded residual
  std::array<RmsNormOperand, kRmsNormOperandsMax> operands;
};

struct RankPlace {
  uint32_t rank;
  uint32_t world_size;
};
// The rows of a sharded residual that a rank has (proto/shm/layout.h).
struct OwnedRows {
  uint64_t first;
  uint64_t count;
};
OwnedRows OwnedRowsOf(uint64_t tokens, const RankPlace& place);

// QRD_INVALID_ARGUMENT names the argument, its value and the bound.
qrd_status CheckRmsNorm(const void* input, qrd_dtype dtype, const qrd_rms_norm* norm,
                        const RankPlace& place, RmsNormCall* call);

// All of the descriptor but sequence and timeout_ms, which are 0.
void FillDescriptor(const RmsNormCall& call, const RmsNormOperands& operands,
                    shm::Descriptor* descriptor);

}  // namespace qrd::client
