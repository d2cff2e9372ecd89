// SPDX-License-Identifier: Apache-2.0
// From measured times to crossovers: which plan from which payload on, for one world size and
// dtype.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace qrd::tools {

struct TunePlan {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  double sqnr_db = 0;  // of a whole all-reduce; what a choice between equally fast plans goes by
};

// Medians of one payload, microseconds, in the order of the table's plans.
struct TunePoint {
  uint64_t payload_bytes = 0;
  std::vector<double> us;
};

struct TuneTable {
  uint32_t ranks = 0;
  Dtype dtype = Dtype::kBf16;
  std::vector<TunePlan> plans;     // measured; some have codec none
  std::vector<TunePlan> excluded;  // under the floor of accuracy: never measured, never chosen
  std::vector<TunePoint> points;   // by payload, ascending
  std::vector<uint64_t> skipped;   // payloads for which there was no time
};

// A plan from payload_bytes on (0: the first), to the next segment's.
struct TuneSegment {
  uint64_t payload_bytes = 0;
  size_t plan = 0;
  size_t point = 0;      // of the table: where it won
  size_t loser = 0;      // plan in force before; for the first the fastest other one
  bool no_gain = false;  // only the codec in force before no longer gained anything
};

// A plan replaces the one in force at the first payload where it takes at most (1 - margin) of its
// time. Of the plans that do and are within the margin of the fastest, the most accurate is taken,
// so the first segment has a codec only if that wins by the margin over none. A codec that is no
// longer faster than none goes, without a margin. Empty if there are no points.
std::vector<TuneSegment> DecideSegments(const TuneTable& table, double margin);

}  // namespace qrd::tools
