// SPDX-License-Identifier: Apache-2.0
// What `qrbench tune` found, as a policy, and as the text of one with the figures as comments.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/tools/qrbench/tune_decide.h"
#include "qrd/v1/policy.pb.h"

namespace qrd::tools {

struct TuneReport {
  std::string version, machine, daemon, backend;  // for people
  std::string input;                              // what the accuracy was computed on
  double margin = 0.05, floor_db = 20, budget_s = 0, used_s = 0;
  std::vector<TuneTable> tables;
};

// A rule for each segment of each table: its world size, dtype, payloads. Other world sizes and
// dtypes get no rule, that is auto.
v1::Policy TunePolicy(const TuneReport& report);
// The same with comments; ParsePolicyText reads it.
std::string TunePolicyText(const TuneReport& report);

}  // namespace qrd::tools
