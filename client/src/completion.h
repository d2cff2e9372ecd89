// SPDX-License-Identifier: Apache-2.0
// The daemon's completion of an operation after the checks: what is shown to the caller.
//
// Thread safety: pure functions; the completion must not be written meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

struct Result {
  qrd_status status = QRD_INTERNAL;
  char message[shm::kMessageBytes] = {};
};

// `sequence` is the operation that the completion must be of.
Result ReadResult(const shm::Completion& completion, uint64_t sequence);

// All fields of the stats that the daemon fills; the rest is left alone.
void CopyStats(const shm::Completion& completion, qrd_op_stats* stats);

// The text of a failure: names the operation once.
std::string ResultText(const Result& result, uint64_t sequence);

}  // namespace qrd::client
