// SPDX-License-Identifier: Apache-2.0
// The command line of `qrd`. Every scalar field of Config has a flag of its name with dashes
// (--runtime-directory), so that the two cannot drift apart.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "qrd/v1/config.pb.h"

namespace qrd {

struct CommandLine {
  enum class Action { kRun, kHelp, kVersion, kCheckConfig, kPrintConfig };
  Action action = Action::kRun;
  std::string config_file;  // empty: none
  v1::Config overrides;     // only what flags set
};

// `arguments` without the program's name. INVALID_ARGUMENT names the flag, its value and what it
// wants.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

std::string HelpText();

}  // namespace qrd
