// SPDX-License-Identifier: Apache-2.0
// Results of `qrbench all_reduce -o json` against those of another run: speedups by payload, as a
// table and as a plot. A base of the vendor's library shows where qrd wins and where it loses.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/common/args.h"

namespace qrd::tools {

// One line of a result file that was measured.
struct Timing {
  uint64_t bytes = 0;
  std::string dtype, codec, algorithm;
  uint32_t ranks = 0, groups = 0;
  double p50_us = 0;
};

// A result file. Those of one label belong together.
struct TimingFile {
  std::string label, machine, settings;
  std::vector<Timing> timings;
  size_t failed = 0;  // lines with an error, left out
};

// INVALID_ARGUMENT names file, line and field; NOT_FOUND.
absl::StatusOr<TimingFile> ReadTimings(const std::string& path, const std::string& label);

// A payload of a type, ranks and groups that both sides have.
struct ComparedCase {
  std::string dtype;
  uint32_t ranks = 0, groups = 0;
  uint64_t bytes = 0;
  Timing base;  // the fastest of the base's lines
  struct Entry {
    std::string series;  // codec, before it the file's label if they differ
    Timing best;         // the fastest algorithm
    double speedup = 0;  // base / best
  };
  std::vector<Entry> entries;  // by series; a series may lack
};

struct Comparison {
  std::vector<std::string> series;  // in the order in which they first occur
  std::vector<ComparedCase> cases;  // by dtype, ranks, groups, bytes
};

// FAILED_PRECONDITION if the sides have no payload in common.
absl::StatusOr<Comparison> Compare(const TimingFile& base, const std::vector<TimingFile>& others);

std::string ComparisonTable(const Comparison& comparison, bool markdown);
std::string ComparisonCsv(const Comparison& comparison);
std::string ComparisonPlot(const Comparison& comparison, const TimingFile& base,
                           const std::string& machine);

void AddCompareCommand(CommandLine& line);

}  // namespace qrd::tools
