// SPDX-License-Identifier: Apache-2.0
// qrctl status, qrctl capabilities
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrctl/commands.h"

namespace qrd::tools {
namespace {

void PrintStatus(const v1::NodeStatus& status) {
  const std::string state = absl::AsciiStrToLower(
      absl::StripPrefix(v1::NodeStatus::State_Name(status.state()), "STATE_"));
  Print(KeyValues({{"state", state},
                   {"version", status.version()},
                   {"pid", absl::StrCat(status.pid())},
                   {"started", HumanTime(status.start_time())},
                   {"runtime directory", status.runtime_directory()},
                   {"state directory", status.state_directory()},
                   {"metrics", status.metrics_address().empty()
                                   ? "off"
                                   : absl::StrCat("http://", status.metrics_address(), "/metrics")},
                   {"worker threads", absl::StrCat(status.worker_threads())},
                   {"communicators", absl::StrCat(status.communicators())},
                   {"sessions", absl::StrCat(status.sessions())},
                   {"arena memory", HumanBytes(status.arena_bytes())},
                   {"policy generation", absl::StrCat(status.policy_generation())},
                   {"operations", CountWithFailures(status.operations_total(),
                                                    status.operations_failed_total())}}));
}

std::string Ratios(const v1::KernelInstance& instance) {
  std::string text;
  for (const double ratio : instance.wire_ratios()) {
    absl::StrAppendFormat(&text, "%s%.3f", text.empty() ? "" : " ", ratio);
  }
  return text;
}

void PrintBackend(const v1::BackendCapability& backend) {
  Print(
      absl::StrCat("backend ", ShortName(backend.backend()), ", target ", backend.target(), "\n"));
  for (const v1::Device& device : backend.devices()) {
    Print(absl::StrCat("  device ", device.id(), ": ", device.description(), ", ",
                       HumanBytes(device.memory_bytes()), "\n"));
  }
  if (backend.devices().empty()) Print("  no device\n");
  if (!backend.collective_library().empty()) {
    Print(absl::StrCat("  collective library: ", backend.collective_library(), "\n"));
  }
  if (!backend.collective_library_missing().empty()) {
    Print(absl::StrCat("  no collective library: ", backend.collective_library_missing(), "\n"));
  }
  Print("\n");
  Table table({{"CODEC"},
               {"DTYPES"},
               {"WIRE / PAYLOAD", Align::kRight},
               {"ALGORITHMS"},
               {"EPILOGUES"},
               {"RANKS", Align::kRight}});
  for (const v1::KernelInstance& instance : backend.instances()) {
    std::vector<std::string> dtypes, algorithms, epilogues = {"none"};
    for (const int dtype : instance.dtypes()) {
      dtypes.push_back(ShortName(static_cast<v1::Dtype>(dtype)));
    }
    for (const int algorithm : instance.algorithms()) {
      algorithms.push_back(ShortName(static_cast<v1::Algorithm>(algorithm)));
    }
    for (const int epilogue : instance.epilogues()) {
      epilogues.push_back(ShortName(static_cast<v1::Epilogue>(epilogue)));
    }
    table.AddRow({ShortName(instance.codec()), absl::StrJoin(dtypes, ","), Ratios(instance),
                  absl::StrJoin(algorithms, ","), absl::StrJoin(epilogues, ","),
                  absl::StrCat(instance.world_size_min(), "-", instance.world_size_max())});
  }
  Print(table.ToString());
}

void PrintCapabilities(const v1::Capabilities& reply) {
  for (const v1::BackendCapability& backend : reply.backends()) {
    PrintBackend(backend);
    Print("\n");
  }
  const v1::Limits& limits = reply.limits();
  Print("limits\n");
  Table table({{"  NAME"}, {"AT MOST", Align::kRight}});
  table.AddRow({"  ranks of a communicator", absl::StrCat(limits.world_size_max())});
  table.AddRow({"  communicators", absl::StrCat(limits.communicators_max())});
  table.AddRow({"  sessions", absl::StrCat(limits.sessions_max())});
  table.AddRow(
      {"  operations in flight per session", absl::StrCat(limits.operations_in_flight_max())});
  table.AddRow({"  arenas per session", absl::StrCat(limits.arenas_per_session_max())});
  table.AddRow({"  arena memory per session", HumanBytes(limits.arena_bytes_per_session_max())});
  table.AddRow({"  arena memory", HumanBytes(limits.arena_bytes_max())});
  table.AddRow({"  policy rules", absl::StrCat(limits.policy_rules_max())});
  Print(table.ToString());
  Print(absl::StrCat("\nshared-memory layout versions ", reply.shm_layout_version_min(), " to ",
                     reply.shm_layout_version_max(), "\n"));
}

}  // namespace

void AddStatusCommand(CommandLine& line, Context& context) {
  CLI::App* status = line.Leaf(&line.root(), "status", "State of the daemon", [&context] {
    return WithClient(context, [&](ControlClient& client) {
      v1::NodeStatus reply;
      const absl::Status result = client.Call(&v1::NodeService::Stub::GetStatus, client.node(),
                                              v1::GetStatusRequest(), &reply);
      if (!result.ok()) return result;
      if (context.output == "json") Print(ToJson(reply));
      if (context.output != "json") PrintStatus(reply);
      return absl::OkStatus();
    });
  });
  AddContextFlags(status, context);
}

void AddCapabilitiesCommand(CommandLine& line, Context& context) {
  CLI::App* capabilities = line.Leaf(
      &line.root(), "capabilities", "Backends, devices, codecs, algorithms and limits", [&context] {
        return WithClient(context, [&](ControlClient& client) {
          v1::Capabilities reply;
          const absl::Status result =
              client.Call(&v1::NodeService::Stub::GetCapabilities, client.node(),
                          v1::GetCapabilitiesRequest(), &reply);
          if (!result.ok()) return result;
          if (context.output == "json") Print(ToJson(reply));
          if (context.output != "json") PrintCapabilities(reply);
          return absl::OkStatus();
        });
      });
  AddContextFlags(capabilities, context);
}

}  // namespace qrd::tools
