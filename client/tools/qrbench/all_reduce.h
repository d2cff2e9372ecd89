// SPDX-License-Identifier: Apache-2.0
// `qrbench all_reduce`: forks the ranks (or is one), walks over dtypes, codecs, algorithms and
// sizes, checks every result and reports times.
//
// Thread safety: main thread, before anything else has started threads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/common/channel.h"
#include "client/tools/qrbench/tensors.h"
#include "kernels/types.h"

namespace qrd::tools {

struct AllReduceSettings {
  std::vector<uint64_t> sizes;  // bytes of one rank; empty with input files
  std::vector<Dtype> dtypes;
  std::vector<std::string> codecs;      // "auto": no rule of ours, the policy in force decides
  std::vector<std::string> algorithms;  // the same
  ReduceOp op = ReduceOp::kSum;
  uint32_t ranks = 2, groups = 1;
  bool join = false;
  uint32_t rank = 0;
  std::string communicator, group = "default";
  uint32_t iterations = 0, warmup = 0, buffers = 0;  // 0: by size
  bool in_place = false, staged = false;
  std::string backend = "host", order;  // order: host, stream, graph
  std::vector<std::string> devices;     // PCI addresses, one or one a rank; empty: by turns
  uint64_t check_bytes_max = uint64_t{4} << 20;
  uint32_t attach_timeout_ms = 30'000;
  TensorSource source;
  std::string output = "table", plot;
  bool start_daemon = false;
  std::string daemon_program;
  ConnectionFlags connection;
  std::string command;  // as typed, for the report
};

inline constexpr uint32_t kProcessesMax = 64;
inline constexpr uint32_t kIterationsMax = 100'000;

// Timed and warm-up iterations where the user names none: the same on all ranks.
uint32_t AutoIterations(uint64_t payload_bytes);
uint32_t AutoWarmup(uint32_t iterations);

// An exit code; prints the report to stdout and what went wrong to stderr.
int RunAllReduce(AllReduceSettings settings);

}  // namespace qrd::tools
