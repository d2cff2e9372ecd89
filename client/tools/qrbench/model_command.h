// SPDX-License-Identifier: Apache-2.0
// `qrbench model`: how the model (model.h) fares against published figures, and what it says about
// one machine.
//
// Thread safety: none; main thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/common/args.h"
#include "client/tools/qrbench/model.h"

namespace qrd::tools {

struct ModelFlags {
  std::string machine, bytes, codecs, algorithm, dtype, output = "table", plot;
  uint32_t ranks = 0;
  std::optional<double> link_gbps, latency_us, memory_gbps;
  bool all_figures = false;
};

struct ModelSettings {
  std::vector<ModelMachine> machines;  // overrides applied
  bool one_machine = false;            // named by the user
  std::vector<ModelCase> cases;        // empty: compare with published figures
  bool all_figures = false;
  uint32_t plot_ranks = 2;
  Dtype plot_dtype = Dtype::kFp16;
  std::string output = "table", plot;
};

void AddModelCommand(CommandLine& line);

// INVALID_ARGUMENT names the flag, its value and the bound.
absl::StatusOr<ModelSettings> MakeModelSettings(const ModelFlags& flags);
// An exit code; prints to stdout.
int RunModel(const ModelSettings& settings);

}  // namespace qrd::tools
