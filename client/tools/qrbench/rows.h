// SPDX-License-Identifier: Apache-2.0
// From the replies of the ranks to a line of the report: are they right, what do they amount to.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/tools/qrbench/all_reduce.h"
#include "client/tools/qrbench/rank_runner.h"
#include "client/tools/qrbench/report.h"

namespace qrd::tools {

struct BenchCase {
  uint64_t count;
  Dtype dtype;
  std::string codec, algorithm;  // as asked for: "auto" or a name
};

// What is known before anything ran.
Row BaseRow(const AllReduceSettings& settings, const BenchCase& c);
// The rest. `times`: nanoseconds of each iteration of each group.
void FillRow(const AllReduceSettings& settings, const BenchCase& c,
             const std::vector<CaseReply>& replies, std::vector<uint64_t> times,
             std::optional<double> limit_gbps, Row& row);
// "" or what is wrong with the results; `check` is Row.check of right ones.
std::string CheckReplies(const AllReduceSettings& settings, const BenchCase& c,
                         const std::vector<CaseReply>& replies, std::string* check);

}  // namespace qrd::tools
