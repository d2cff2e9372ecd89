// SPDX-License-Identifier: Apache-2.0
// What a benchmark run found, and how it is written: table (rows as they come), CSV, JSON.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/tools/qrbench/machine.h"
#include "client/tools/qrbench/relay.h"
#include "kernels/types.h"

namespace qrd::tools {

// One line: one size, dtype and requested codec.
struct Row {
  uint64_t bytes = 0;  // payload of one rank
  uint64_t count = 0;
  Dtype dtype = Dtype::kFp32;
  ReduceOp op = ReduceOp::kSum;
  std::string codec_requested, algorithm_requested;  // "auto" or a name
  Codec codec = Codec::kNone;                        // really used
  Algorithm algorithm = Algorithm::kTwoShot;
  uint32_t ranks = 0, groups = 1;
  bool in_place = false, staged = false;
  uint32_t iterations = 0;
  double p50_us = 0, p99_us = 0, execute_us = 0;
  double algbw_gbps = 0, busbw_gbps = 0;  // 1e9 bytes/s, of all groups together
  std::optional<double> limit_gbps;       // algorithm bandwidth of the machine
  uint64_t wire_bytes = 0;                // what one rank sends (on the host: would send)
  double ratio = 1;                       // encoded bytes / payload bytes
  std::optional<double> sqnr_db;          // +inf: exact
  std::optional<double> max_error;
  uint64_t nonfinite = 0;
  uint64_t hash = 0;  // of the result
  // "bits": equal to the scalar reference and on all ranks; "ranks": equal on all ranks; "self":
  // only repeated runs were compared (--join); "FAILED".
  std::string check;
  std::string error;  // "" unless FAILED
};

struct RunInfo {
  std::string version;
  std::string daemon;    // where it is, what it says about itself
  std::string settings;  // one line for people
  std::string command;   // as typed
  Machine machine;
  std::optional<RelayTimes> relay;
};

// Bus factor 2(n-1)/n.
double BusFactor(uint32_t ranks);
// Served p50 of the smallest size of a 2-rank run over the relay's; nullopt where that makes no
// sense.
std::optional<double> RelayRatio(const RunInfo& info, const std::vector<Row>& rows);

class ReportWriter {
 public:
  virtual ~ReportWriter() = default;
  virtual void Begin(const RunInfo& info) = 0;
  virtual void Add(const Row& row) = 0;
  virtual void End(const RunInfo& info, const std::vector<Row>& rows) = 0;
};
// format: "table", "csv" or "json". `out` must outlive the writer.
std::unique_ptr<ReportWriter> MakeReportWriter(const std::string& format, std::FILE* out);

}  // namespace qrd::tools
