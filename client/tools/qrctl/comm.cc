// SPDX-License-Identifier: Apache-2.0
// qrctl comm list | describe | create | delete
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/tools/common/args.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrctl/commands.h"
#include "proto/shm/layout.h"

namespace qrd::tools {
namespace {

// Arguments of the subcommands; lives as long as the command line.
struct CommFlags {
  std::string name;
  uint32_t world_size = 0;
  bool force = false;
};

std::string StateName(v1::Group::State state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Group::State_Name(state), "STATE_"));
}

int SessionCount(const v1::Communicator& communicator) {
  int sessions = 0;
  for (const v1::Group& group : communicator.groups()) sessions += group.sessions_size();
  return sessions;
}

void PrintList(const v1::ListCommunicatorsResponse& reply) {
  if (reply.communicators().empty()) {
    Print(
        "no communicators; make one with 'qrctl comm create NAME --world-size N', or attach to "
        "it\n");
    return;
  }
  Table table({{"NAME"},
               {"RANKS", Align::kRight},
               {"BACKEND"},
               {"GROUPS", Align::kRight},
               {"SESSIONS", Align::kRight},
               {"OPERATIONS", Align::kRight},
               {"FAILED", Align::kRight},
               {"PAYLOAD/RANK", Align::kRight},
               {"WIRE, ALL", Align::kRight}});
  for (const v1::Communicator& c : reply.communicators()) {
    table.AddRow({c.name(), absl::StrCat(c.world_size()), ShortName(c.backend()),
                  absl::StrCat(c.groups_size()), absl::StrCat(SessionCount(c)),
                  GroupDigits(c.operations_total()), GroupDigits(c.operations_failed_total()),
                  HumanBytes(c.payload_bytes_total()), HumanBytes(c.wire_bytes_total())});
  }
  Print(table.ToString());
}

void PrintDescription(const v1::Communicator& c) {
  Print(KeyValues(
      {{"name", c.name()},
       {"ranks", absl::StrCat(c.world_size())},
       {"backend", ShortName(c.backend())},
       {"created",
        absl::StrCat(HumanTime(c.create_time()), c.created_on_attach() ? ", by an attach" : "")},
       {"operations", CountWithFailures(c.operations_total(), c.operations_failed_total())},
       {"payload of a rank", HumanBytes(c.payload_bytes_total())},
       {"wire, all ranks", HumanBytes(c.wire_bytes_total())},
       {"NaN or Inf elements", GroupDigits(c.nonfinite_elements_total())}}));
  for (const v1::Group& group : c.groups()) {
    Print(absl::StrCat("\ngroup ", group.name(), ": ", StateName(group.state()), ", incarnation ",
                       group.incarnation(), ", ", group.sessions_size(), " of ", c.world_size(),
                       " ranks, ", group.waiting_operations(), " operations waiting for ranks, ",
                       group.queued_operations(), " queued\n"));
    Table table({{"  RANK", Align::kRight},
                 {"SESSION", Align::kRight},
                 {"PID", Align::kRight},
                 {"UID", Align::kRight},
                 {"ARENAS", Align::kRight},
                 {"MEMORY", Align::kRight},
                 {"ATTACHED"}});
    for (const v1::Session& s : group.sessions()) {
      table.AddRow({absl::StrCat(s.rank()), absl::StrCat(s.session_id()), absl::StrCat(s.pid()),
                    absl::StrCat(s.uid()), absl::StrCat(s.arenas()), HumanBytes(s.arena_bytes()),
                    HumanTime(s.attach_time())});
    }
    if (!table.empty()) Print(table.ToString());
  }
  if (c.groups().empty()) Print("\nno group is attached\n");
}

absl::Status List(ControlClient& client, const Context& context) {
  v1::ListCommunicatorsResponse reply;
  const absl::Status result =
      client.Call(&v1::CommunicatorService::Stub::ListCommunicators, client.communicators(),
                  v1::ListCommunicatorsRequest(), &reply);
  if (!result.ok()) return result;
  if (context.output == "json") Print(ToJson(reply));
  if (context.output != "json") PrintList(reply);
  return absl::OkStatus();
}

absl::Status Describe(ControlClient& client, const Context& context, const CommFlags& flags) {
  v1::GetCommunicatorRequest request;
  request.set_name(flags.name);
  v1::Communicator reply;
  const absl::Status result = client.Call(&v1::CommunicatorService::Stub::GetCommunicator,
                                          client.communicators(), request, &reply);
  if (!result.ok()) return result;
  if (context.output == "json") Print(ToJson(reply));
  if (context.output != "json") PrintDescription(reply);
  return absl::OkStatus();
}

absl::Status Create(ControlClient& client, const Context& context, const CommFlags& flags) {
  v1::CreateCommunicatorRequest request;
  request.mutable_communicator()->set_name(flags.name);
  request.mutable_communicator()->set_world_size(flags.world_size);
  v1::Communicator reply;
  const absl::Status result = client.Call(&v1::CommunicatorService::Stub::CreateCommunicator,
                                          client.communicators(), request, &reply);
  if (!result.ok()) return result;
  if (context.output == "json") Print(ToJson(reply));
  if (context.output != "json") {
    Print(absl::StrCat("created ", reply.name(), " with ", reply.world_size(), " ranks\n"));
  }
  return absl::OkStatus();
}

absl::Status Delete(ControlClient& client, const Context& context, const CommFlags& flags) {
  v1::DeleteCommunicatorRequest request;
  request.set_name(flags.name);
  request.set_force(flags.force);
  v1::DeleteCommunicatorResponse reply;
  absl::Status result = client.Call(&v1::CommunicatorService::Stub::DeleteCommunicator,
                                    client.communicators(), request, &reply);
  if (absl::IsFailedPrecondition(result) && !flags.force) {
    result = absl::FailedPreconditionError(
        absl::StrCat(result.message(), " (--force ends the sessions)"));
  }
  if (!result.ok()) return result;
  if (context.output == "json") Print(ToJson(reply));
  if (context.output != "json") {
    Print(absl::StrCat("deleted ", flags.name, ", ", reply.sessions_ended(), " sessions ended\n"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCommCommands(CommandLine& line, Context& context) {
  static CommFlags flags;
  CLI::App* comm =
      line.Group(&line.root(), "comm", "Communicators: list, describe, create, delete");
  const auto leaf = [&](const std::string& name, const std::string& description,
                        absl::Status (*run)(ControlClient&, const Context&, const CommFlags&)) {
    CLI::App* app = line.Leaf(comm, name, description, [&context, run] {
      return WithClient(context,
                        [&](ControlClient& client) { return run(client, context, flags); });
    });
    AddContextFlags(app, context);
    return app;
  };
  const auto name_argument = [](CLI::App* app) {
    app->add_option("NAME", flags.name, "Name of the communicator")->required();
  };
  leaf("list", "All communicators with their counters",
       [](ControlClient& client, const Context& c, const CommFlags&) { return List(client, c); })
      ->footer(
          "PAYLOAD/RANK counts the tensor of one rank, WIRE what all ranks send together: without "
          "a\n"
          "codec twice as much at 2 ranks. On the host they would send it: ranks share memory.");
  name_argument(leaf("describe", "One communicator: its groups and sessions", Describe));
  CLI::App* create = leaf("create", "Make a communicator (needs admin rights)", Create);
  name_argument(create);
  create->add_option("--world-size", flags.world_size, "Number of ranks, 1 to 16")
      ->required()
      ->type_name("N")
      ->check(WholeNumber(1, shm::kWorldSizeMax));
  CLI::App* remove = leaf("delete", "Delete a communicator (needs admin rights)", Delete);
  name_argument(remove);
  remove->add_flag(
      "--force", flags.force,
      "Also while sessions are attached: they end, their operations fail with ABORTED");
}

}  // namespace qrd::tools
