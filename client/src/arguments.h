// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller passes in. Each failure names the argument, its value and the bound, and
// is QRD_INVALID_ARGUMENT.
//
// Thread safety: pure functions (apart from the thread's last error).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "qrd/qrd.h"

namespace qrd::client {

// qrd_comm_config after the checks, with defaults filled in.
struct AttachOptions {
  std::string communicator;
  std::string group;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string attach_path;
  uint32_t timeout_ms = 0;
  bool create_if_absent = true;
  std::string device;  // as the caller names it; empty: host memory
};

// Also finds the runtime directory (QRD_UNAVAILABLE if the environment names none).
qrd_status CheckConfig(const qrd_comm_config* config, AttachOptions* options);

struct AllReduceCall {
  const void* input;
  void* output;
  size_t count;
  qrd_dtype dtype;
  qrd_reduce_op op;
};
// bytes = count * element size, 0 if count is 0 (pointers are not looked at then).
qrd_status CheckAllReduce(const AllReduceCall& call, size_t* bytes);

// A range of the caller's memory: not NULL, not empty, not past the end of the address space.
qrd_status CheckRange(const char* name, const void* ptr, size_t bytes);

// struct_bytes is one of this library's versions of the struct, or a later one whose further bytes
// are 0.
qrd_status CheckStruct(const char* name, const void* data, size_t struct_bytes, size_t bytes_min,
                       size_t bytes_known);

// NULL is allowed; struct_bytes must cover the first version of the struct.
qrd_status CheckStats(const qrd_op_stats* stats);

// NULL is "". Bytes that are not UTF-8 become '?', since the message travels as text.
qrd_status CheckReason(const char* reason, std::string* text);

}  // namespace qrd::client
