// SPDX-License-Identifier: Apache-2.0
// Command lines of both tools: CLI11 plus what it lacks, that is nearest matches for unknown
// subcommands and flags, and one place that decides about --help, --version and exit codes.
//
// Thread safety: none; main thread only.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qrd::tools {

// What a chosen subcommand does; returns an exit code. Set with OnRun.
using Command = std::function<int()>;

// A command line under construction: the CLI11 application and the function of each leaf
// subcommand.
class CommandLine {
 public:
  // `name` is what messages begin with ("qrctl"), `version` what --version prints.
  CommandLine(std::string name, std::string description, std::string version);

  CLI::App& root() { return root_; }
  // A subcommand that has subcommands of its own, or gets a function by `run`.
  CLI::App* Group(CLI::App* parent, const std::string& name, const std::string& description);
  CLI::App* Leaf(CLI::App* parent, const std::string& name, const std::string& description,
                 Command run);
  // Parses and runs. Messages about wrong arguments go to stderr, help to stdout; output that is
  // lost is an error.
  int Main(int argc, char** argv);

 private:
  int Run(int argc, char** argv);
  int Refuse(const CLI::App& app, const std::string& message) const;
  // The leaf that was asked for, or the group in which something is missing.
  CLI::App* Chosen();

  std::string name_;
  CLI::App root_;
  std::vector<std::pair<CLI::App*, Command>> commands_;
};

// Prints "<tool>: error: <message>" to stderr and returns `code`.
int Fail(absl::string_view tool, const absl::Status& status, int code);

// Splits "a,b,c"; refuses empty elements and repeated ones. `what` names the flag in errors.
absl::StatusOr<std::vector<std::string>> ParseNames(absl::string_view list, absl::string_view what);
// INVALID_ARGUMENT with the known words and the nearest match, unless `word` is one of them.
absl::Status CheckKnown(absl::string_view word, const std::vector<std::string>& known,
                        absl::string_view what);
// INVALID_ARGUMENT unless the daemon would take `name` for a communicator or a group.
absl::Status CheckName(absl::string_view name, absl::string_view what);
// Checks of a flag's text for CLI::Option::check: a whole number, or any, within the bounds.
// CLI11's own let "-1" and "nan" pass.
using FlagCheck = std::function<std::string(const std::string&)>;
FlagCheck WholeNumber(uint64_t low, uint64_t high);
FlagCheck Within(double low, double high);

absl::StatusOr<std::vector<uint64_t>> ParseByteList(absl::string_view list, absl::string_view what);

}  // namespace qrd::tools
