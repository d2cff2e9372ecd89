// SPDX-License-Identifier: Apache-2.0
// The command groups of qrctl. Each Add function adds its subcommands to the command line; their
// functions print to stdout and return an exit code (exit_codes.h).
//
// Thread safety: main thread only.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/tools/common/args.h"
#include "client/tools/common/channel.h"

namespace qrd::tools {

// What every subcommand knows. Lives as long as the command line.
struct Context {
  ConnectionFlags connection;
  std::string output = "table";
};

void AddStatusCommand(CommandLine& line, Context& context);
void AddCapabilitiesCommand(CommandLine& line, Context& context);
void AddCommCommands(CommandLine& line, Context& context);
void AddPolicyCommands(CommandLine& line, Context& context);

// --runtime-directory, --timeout and --output {formats}.
void AddContextFlags(CLI::App* app, Context& context,
                     const std::vector<std::string>& formats = {"table", "json"});
// Connects, runs `body`, reports its error; the whole of a subcommand.
int WithClient(const Context& context, const std::function<absl::Status(ControlClient&)>& body);
// proto3 JSON with the names of the .proto files and defaults spelled out; one line if `compact`.
std::string ToJson(const google::protobuf::Message& message, bool compact = false);
// "2026-01-31 17:03:05 UTC (3m 20s ago)"; "-" if unset.
std::string HumanTime(const google::protobuf::Timestamp& time);

}  // namespace qrd::tools
