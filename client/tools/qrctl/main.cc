// SPDX-License-Identifier: Apache-2.0
// qrctl: looks at and steers a running qrd daemon.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/units.h"
#include "client/tools/qrctl/commands.h"
#include "qrd/qrd.h"

namespace qrd::tools {

void AddContextFlags(CLI::App* app, Context& context, const std::vector<std::string>& formats) {
  AddConnectionFlags(app, &context.connection);
  const bool has_text = std::find(formats.begin(), formats.end(), "text") != formats.end();
  app->add_option("-o,--output", context.output,
                  absl::StrCat("table for people (default), json for programs (names as in the "
                               ".proto files)",
                               has_text ? ", text (policy get only): what policy set reads" : ""))
      ->check(CLI::IsMember(formats));
  // One given before the subcommand has passed the check of the program's own flag only.
  if (app->get_parent() == nullptr) return;
  app->final_callback([&context, formats] {
    if (std::string wrong = CLI::IsMember(formats)(context.output); !wrong.empty()) {
      throw CLI::ValidationError("--output", wrong);
    }
  });
}

int WithClient(const Context& context, const std::function<absl::Status(ControlClient&)>& body) {
  absl::StatusOr<std::unique_ptr<ControlClient>> client =
      ControlClient::Connect(context.connection);
  const absl::Status status = client.ok() ? body(**client) : client.status();
  return status.ok() ? kExitOk : Fail("qrctl", status, ExitCodeOf(status));
}

std::string ToJson(const google::protobuf::Message& message, bool compact) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = !compact;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return "{}\n";  // cannot happen: no Any fields, strings are checked UTF-8
  return json.ends_with('\n') ? json : json + "\n";
}

std::string HumanTime(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  const time_t seconds = static_cast<time_t>(time.seconds());
  tm utc = {};
  char text[32] = "";
  if (gmtime_r(&seconds, &utc) == nullptr ||
      std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc) == 0) {
    return absl::StrCat("@", time.seconds());
  }
  return absl::StrFormat("%s UTC (%s ago)", text,
                         HumanSeconds(std::difftime(std::time(nullptr), seconds)));
}

}  // namespace qrd::tools

int main(int argc, char** argv) {
  using namespace qrd::tools;
  CommandLine line("qrctl", "Looks at and steers the qrd daemon of this node.",
                   absl::StrCat("qrctl ", qrd_version()));
  Context context;
  AddContextFlags(&line.root(), context, {"table", "json", "text"});
  AddStatusCommand(line, context);
  AddCapabilitiesCommand(line, context);
  AddCommCommands(line, context);
  AddPolicyCommands(line, context);
  return line.Main(argc, argv);
}
