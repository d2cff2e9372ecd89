// SPDX-License-Identifier: Apache-2.0
// Measures plans against each other within a budget of time: rounds of short batches, every plan
// once a round, forwards and backwards in turn, so that a slow minute hits all plans alike.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/qrbench/tune_decide.h"

namespace qrd::tools {

// Where times come from: a daemon, or a script in tests.
class TuneSource {
 public:
  virtual ~TuneSource() = default;
  // Ranks of one world size become ready; the ones before go. `payload_bytes_max` is the largest
  // of the batches to come.
  virtual absl::Status Open(uint32_t ranks, Dtype dtype, uint64_t payload_bytes_max) = 0;
  // One batch of operations under a plan: microseconds of each.
  virtual absl::StatusOr<std::vector<double>> Batch(const TunePlan& plan,
                                                    uint64_t payload_bytes) = 0;
  virtual double Seconds() = 0;
  virtual void Report(const std::string& progress) = 0;
};

inline constexpr int kTuneRoundsMin = 3, kTuneRoundsMax = 15;

struct TuneSearch {
  std::vector<TuneTable> tables;  // ranks, dtype, plans, excluded filled in
  std::vector<uint64_t> sizes;    // ascending
  double budget_s = 120;
};

// Fills in points and skipped. Every table gets an equal share of the time that is left, every
// payload an equal share of that; where three rounds of the next payload would not fit, it and the
// larger ones are skipped. Ends at the latest one batch after the budget. An error of the source
// is the error of the call.
absl::StatusOr<std::vector<TuneTable>> MeasureTables(const TuneSearch& search, TuneSource& source);

}  // namespace qrd::tools
