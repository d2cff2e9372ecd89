// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/flags.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "daemon/base/names.h"
#include "daemon/base/number_bounds.h"
#include "google/protobuf/descriptor.h"

namespace qrd {
namespace {

namespace pb = google::protobuf;

struct FieldHelp {
  const char* field;
  const char* value;
  const char* text;
};

// In the order of the help text. tests/daemon/base/flags_test.cc checks that no field is missing.
constexpr FieldHelp kFields[] = {
    {"runtime_directory", "DIR", "sockets and lock file (see below)"},
    {"state_directory", "DIR", "policy, communicators (see below)"},
    {"attach_group", "GROUP", "group that may connect (the daemon's)"},
    {"admin_group", "GROUP", "group that may change policy and communicators (none)"},
    {"metrics_address", "HOST:PORT", "/metrics, /livez, /readyz; \"\": off (127.0.0.1:9478)"},
    {"log_level", "LEVEL", "trace, debug, info, warning or error (info)"},
    {"create_on_attach", "BOOL", "an attach may create a communicator (true)"},
    {"communicators_max", "N", "1 to 4096 (256)"},
    {"sessions_max", "N", "1 to 4096 (512)"},
    {"operations_in_flight_max", "N", "per session; a power of two, 8 to 1024 (128)"},
    {"arenas_per_session_max", "N", "1 to 4096 (1024)"},
    {"arena_bytes_per_session_max", "BYTES", "1 MiB to 1 TiB (64 GiB)"},
    {"arena_bytes_max", "BYTES", "all sessions, 1 MiB to 16 TiB (80 % of the memory)"},
    {"gpu", "MODE", "auto, off or required (auto)"},
    {"collective_library", "NAME", "of algorithm library: auto, off or a path (auto)"},
    {"stream_entries_per_session", "N", "stream-ordered operations, 8 to 65536 (4096)"},
    {"device_arena_bytes_max", "BYTES", "all sessions (80 % of the devices' memory)"},
    {"worker_threads", "N", "threads that run collectives, 0 to 256; 0: one a core (0)"},
    {"spin_us_max", "US", "longest busy wait before a thread sleeps, 0 to 10000 (200)"},
    {"operation_timeout_ms", "MS", "1 to 3600000 (30000)"},
    {"attach_timeout_ms", "MS", "1 to 3600000 (30000)"},
    {"drain_timeout_ms", "MS", "how long SIGTERM lets operations finish, 0 to 600000 (10000)"},
};

std::string FlagName(const std::string& field) {
  return absl::StrCat("--", absl::StrReplaceAll(field, {{"_", "-"}}));
}

const pb::FieldDescriptor* FindField(const std::string& flag) {
  for (const FieldHelp& help : kFields) {
    if (FlagName(help.field) == flag) {
      return v1::Config::descriptor()->FindFieldByName(help.field);
    }
  }
  return nullptr;
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

absl::Status UnknownFlag(const std::string& flag) {
  std::vector<std::string> known = {"--config", "--help", "--version", "--check-config",
                                    "--print-config"};
  for (const FieldHelp& help : kFields) known.push_back(FlagName(help.field));
  const std::string shown = Quoted(flag, 64);
  const std::string cut = flag.substr(0, 64);
  const auto nearest = std::min_element(
      known.begin(), known.end(),
      [&](const auto& a, const auto& b) { return EditDistance(cut, a) < EditDistance(cut, b); });
  // Near: a third of the longer name, without its dashes, would have to change.
  const size_t distance_max = (std::max(cut.size(), nearest->size()) - 2) / 3;
  const std::string hint = EditDistance(cut, *nearest) <= distance_max
                               ? absl::StrCat("; did you mean ", *nearest, "?")
                               : "";
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ", shown, hint, " (qrd --help lists all)"));
}

absl::Status WantsError(const std::string& flag, const std::string& value,
                        const std::string& wants) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", Quoted(value), "; want ", wants));
}

std::string WholeNumberOf(const pb::FieldDescriptor& field, uint64_t type_max) {
  const NumberBounds bounds = BoundsOf(field.name()).value_or(NumberBounds{0, type_max});
  return absl::StrCat("a whole number of ", bounds.min, " to ", bounds.max);
}

bool IsNumber(const std::string& value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), absl::ascii_isdigit);
}

absl::Status SetField(const std::string& flag, const std::string& value,
                      const pb::FieldDescriptor& field, v1::Config* config) {
  const pb::Reflection& reflection = *config->GetReflection();
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(config, &field, value);
      return absl::OkStatus();
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      if (value != "true" && value != "false") return WantsError(flag, value, "true or false");
      reflection.SetBool(config, &field, value == "true");
      return absl::OkStatus();
    case pb::FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t number = 0;
      if (!IsNumber(value) || !absl::SimpleAtoi(value, &number)) {
        return WantsError(flag, value, WholeNumberOf(field, std::numeric_limits<uint32_t>::max()));
      }
      reflection.SetUInt32(config, &field, number);
      return absl::OkStatus();
    }
    case pb::FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t number = 0;
      if (!IsNumber(value) || !absl::SimpleAtoi(value, &number)) {
        return WantsError(flag, value, WholeNumberOf(field, std::numeric_limits<uint64_t>::max()));
      }
      reflection.SetUInt64(config, &field, number);
      return absl::OkStatus();
    }
    default:
      return absl::InternalError(absl::StrCat(flag, " has no parser"));
  }
}

std::optional<CommandLine::Action> FindAction(const std::string& flag) {
  if (flag == "--help" || flag == "-h") return CommandLine::Action::kHelp;
  if (flag == "--version") return CommandLine::Action::kVersion;
  if (flag == "--check-config") return CommandLine::Action::kCheckConfig;
  if (flag == "--print-config") return CommandLine::Action::kPrintConfig;
  return std::nullopt;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine out;
  std::set<std::string> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.empty() || argument[0] != '-') {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument ", Quoted(argument), " (qrd --help lists the flags)"));
    }
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    if (const auto action = FindAction(flag); action.has_value()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(flag, " takes no value"));
      }
      // Help wins over everything else on the line.
      if (out.action != CommandLine::Action::kHelp) out.action = *action;
      continue;
    }
    const pb::FieldDescriptor* field = FindField(flag);
    if (field == nullptr && flag != "--config") return UnknownFlag(flag);
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value (", flag, "=VALUE)"));
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    // Which one is meant is a guess.
    if (!given.insert(flag).second) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is there twice; want it once"));
    }
    if (field == nullptr) {
      if (value.empty()) return WantsError(flag, value, "the name of a file");
      out.config_file = value;
    } else if (absl::Status status = SetField(flag, value, *field, &out.overrides); !status.ok()) {
      return status;
    }
  }
  return out;
}

std::string HelpText() {
  std::string text =
      "qrd, the per-node daemon for quantized collective communication.\n"
      "\n"
      "Usage: qrd [--config FILE] [FLAG...]\n"
      "\n"
      "Runs in the foreground and logs to stderr. Processes attach at "
      "RUNTIME_DIRECTORY/attach.sock,\n"
      "qrctl talks to RUNTIME_DIRECTORY/control.sock. SIGTERM or SIGINT drains: no new work, "
      "operations\n"
      "in flight finish, exit status 0; a second one does not wait for them.\n"
      "\n"
      "  --config FILE           protobuf text; every field is optional (see "
      "deploy/qrd.textproto)\n"
      "  --check-config          check file and flags, then exit\n"
      "  --print-config          print the configuration that would be in force, then exit\n"
      "  --version               print the version, then exit\n"
      "  --help                  print this, then exit\n"
      "\n"
      "These override the file (defaults in parentheses; for those that depend on the user and "
      "the\n"
      "machine see --print-config):\n"
      "\n";
  for (const FieldHelp& help : kFields) {
    const std::string left = absl::StrCat("  ", FlagName(help.field), " ", help.value);
    absl::StrAppend(&text, absl::StrFormat("%-38s %s\n", left, help.text));
  }
  absl::StrAppend(
      &text,
      "\nWithout a runtime directory: $RUNTIME_DIRECTORY, else /run/qrd if that can be written, "
      "else\n"
      "$XDG_RUNTIME_DIR/qrd. Without a state directory: $STATE_DIRECTORY, else /var/lib/qrd for "
      "uid "
      "0,\n"
      "else $XDG_STATE_HOME/qrd, else $HOME/.local/state/qrd.\n"
      "\nExit status: 0 after a drain or a successful check; 1 if the daemon cannot start or\n"
      "fails; 2 for a wrong command line or configuration.\n");
  return text;
}

}  // namespace qrd
