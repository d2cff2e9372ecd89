// SPDX-License-Identifier: Apache-2.0
// `qrbench tune`: measures from which payload on which plan is worth it here, and prints a policy.
//
// Thread safety: main thread, before anything else has started threads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/common/args.h"
#include "client/tools/qrbench/flags.h"
#include "client/tools/qrbench/tune_daemon.h"
#include "client/tools/qrbench/tune_measure.h"

namespace qrd::tools {

struct TuneFlags {
  AllReduceFlags run;  // sizes, dtypes, codecs, input, seed, communicator, daemon
  std::string ranks = "2", output;
  double floor_db = 20, margin_percent = 5, budget_s = 120;
};

struct TuneSettings {
  TuneDaemonSettings daemon;
  std::vector<Dtype> dtypes;
  std::vector<Codec> codecs;  // none first
  TensorSource source;        // for accuracy; times do not depend on values
  std::string output;         // "": standard output
  double floor_db = 20, margin = 0.05, budget_s = 120;
};

// INVALID_ARGUMENT names the flag, its value and the bound; other codes are about input files.
absl::StatusOr<TuneSettings> MakeTuneSettings(const TuneFlags& flags, bool sizes_given);

// Every plan of a world size and dtype: those under the floor are excluded. Codec none never is.
absl::StatusOr<TuneTable> PlansOf(const TuneSettings& settings, uint32_t ranks, Dtype dtype);

void AddTuneCommand(CommandLine& line);

}  // namespace qrd::tools
