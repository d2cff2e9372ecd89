// SPDX-License-Identifier: Apache-2.0
// qrctl policy get | set | watch
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/qrctl/commands.h"
#include "client/tools/qrctl/policy_watch.h"

namespace qrd::tools {
namespace {

// Arguments of the subcommands; lives as long as the command line.
struct PolicyFlags {
  std::string file;
  std::string codec, algorithm;
  uint64_t expected_generation = 0;
  bool validate_only = false, allow_empty = false;
  uint32_t count = 0;
};

absl::Status Get(ControlClient& client, const Context& context) {
  v1::GetPolicyResponse reply;
  const absl::Status result = client.Call(&v1::PolicyService::Stub::GetPolicy, client.policy(),
                                          v1::GetPolicyRequest(), &reply);
  if (!result.ok()) return result;
  if (context.output == "json") {
    Print(ToJson(reply));
    return absl::OkStatus();
  }
  const std::string by =
      reply.has_set_by_uid() ? absl::StrCat(" by uid ", reply.set_by_uid()) : ", built in";
  const std::string head =
      absl::StrCat("generation ", reply.generation(), ", set ", HumanTime(reply.set_time()), by);
  if (context.output == "text") Print(absl::StrCat("# ", head, "\n", PolicyToText(reply.policy())));
  if (context.output == "table") Print(absl::StrCat(head, "\n\n", PolicyToTable(reply.policy())));
  return absl::OkStatus();
}

// The policy of the arguments: a file, or the one rule of --codec.
absl::StatusOr<v1::Policy> PolicyOf(const PolicyFlags& flags) {
  if (!flags.file.empty()) return ReadPolicyFile(flags.file);
  v1::Policy policy;
  v1::Rule* rule = policy.add_rules();
  rule->set_name("all");
  absl::StatusOr<v1::Codec> codec = ParseCodecFlag(flags.codec, "--codec");
  if (!codec.ok()) return codec.status();
  rule->mutable_action()->set_codec(*codec);
  if (flags.algorithm.empty()) return policy;
  absl::StatusOr<v1::Algorithm> algorithm = ParseAlgorithmFlag(flags.algorithm, "--algorithm");
  if (!algorithm.ok()) return algorithm.status();
  rule->mutable_action()->set_algorithm(*algorithm);
  return policy;
}

absl::Status Send(ControlClient& client, const Context& context, const PolicyFlags& flags,
                  const v1::Policy& policy) {
  v1::SetPolicyRequest request;
  *request.mutable_policy() = policy;
  request.set_expected_generation(flags.expected_generation);
  request.set_validate_only(flags.validate_only);
  v1::SetPolicyResponse reply;
  absl::Status result =
      client.Call(&v1::PolicyService::Stub::SetPolicy, client.policy(), request, &reply);
  if (absl::IsAborted(result)) {
    result = absl::AbortedError(absl::StrCat(result.message(),
                                             " (someone else changed it: 'qrctl "
                                             "policy get', then set again with its generation)"));
  }
  if (!result.ok()) return result;
  const std::string rules =
      absl::StrCat(policy.rules_size(), policy.rules_size() == 1 ? " rule" : " rules");
  if (context.output == "json") {
    Print(ToJson(reply));
  } else if (flags.validate_only) {
    Print(absl::StrCat("valid, ", rules, "; nothing changed, generation ", reply.generation(),
                       " stays in force\n"));
  } else {
    Print(absl::StrCat("set, ", rules, "; generation ", reply.generation(), " is in force\n"));
  }
  return absl::OkStatus();
}

int Set(const Context& context, const PolicyFlags& flags) {
  if (flags.file.empty() == flags.codec.empty()) {
    return Fail("qrctl",
                absl::InvalidArgumentError("policy set: give either FILE (- is standard input) or "
                                           "--codec, and not both"),
                kExitUsage);
  }
  if (flags.codec.empty() && !flags.algorithm.empty()) {
    return Fail("qrctl", absl::InvalidArgumentError("--algorithm goes with --codec only"),
                kExitUsage);
  }
  // Mistakes in the text are found without a daemon; those in a flag are usage errors.
  const absl::StatusOr<v1::Policy> policy = PolicyOf(flags);
  if (!policy.ok()) {
    return Fail("qrctl", policy.status(), flags.file.empty() ? kExitUsage : kExitFailed);
  }
  if (policy->rules_size() == 0 && !flags.allow_empty) {
    return Fail("qrctl",
                absl::InvalidArgumentError(absl::StrCat(
                    flags.file, " has no rules; --allow-empty sets a policy without any")),
                kExitFailed);
  }
  return WithClient(context,
                    [&](ControlClient& client) { return Send(client, context, flags, *policy); });
}

absl::Status Watch(ControlClient& client, const Context& context, const PolicyFlags& flags) {
  return WatchPolicy(client, context.connection.timeout_s, flags.count,
                     [&](const v1::WatchPolicyResponse& reply) {
                       PrintNow(stdout, context.output == "json"
                                            ? ToJson(reply, /*compact=*/true)
                                            : absl::StrCat("generation ", reply.generation(), "\n",
                                                           PolicyToTable(reply.policy()), "\n"));
                       return !OutputIsLost();
                     });
}

void AddSet(CommandLine& line, CLI::App* policy, Context& context, PolicyFlags& flags) {
  CLI::App* set = line.Leaf(policy, "set", "Replace the whole policy (needs admin rights)",
                            [&context, &flags] { return Set(context, flags); });
  set->add_option("FILE", flags.file, "Policy in protobuf text form; - is standard input");
  set->add_option("--codec", flags.codec,
                  "Instead of FILE: one rule for everything with this codec")
      ->type_name("CODEC");
  set->add_option("--algorithm", flags.algorithm,
                  "With --codec: one_shot, two_shot, library (codec none) or auto (default)")
      ->type_name("NAME");
  set->add_option("--expected-generation", flags.expected_generation,
                  "Refuse unless this generation is in force; 0 (default): replace any")
      ->type_name("N")
      ->check(WholeNumber(0, UINT64_MAX));
  set->add_flag("--allow-empty", flags.allow_empty,
                "Take a FILE without rules: every operation is then decided by auto");
  set->add_flag("--validate-only,--dry-run", flags.validate_only, "Check only, change nothing");
  AddContextFlags(set, context);
  set->footer(
      "Example of a FILE. The first rule that matches decides; 'qrctl policy get --output text' "
      "prints\n"
      "the policy in force in this form.\n"
      "  rules {\n"
      "    name: \"large-bf16\"\n"
      "    match { dtypes: DTYPE_BF16 payload_bytes_min: 1048576 }\n"
      "    action { codec: CODEC_INT8 algorithm: ALGORITHM_TWO_SHOT }\n"
      "  }");
}

}  // namespace

void AddPolicyCommands(CommandLine& line, Context& context) {
  static PolicyFlags flags;
  CLI::App* policy = line.Group(&line.root(), "policy", "Codec policy: get, set, watch");
  CLI::App* get = line.Leaf(policy, "get", "The policy in force", [&context] {
    return WithClient(context, [&](ControlClient& client) { return Get(client, context); });
  });
  get->footer("The table cuts long names to fit 100 columns; text and json have them whole.");
  AddContextFlags(get, context, {"table", "json", "text"});
  AddSet(line, policy, context, flags);
  CLI::App* watch =
      line.Leaf(policy, "watch", "Print the policy now and whenever it changes", [&context] {
        return WithClient(context,
                          [&](ControlClient& client) { return Watch(client, context, flags); });
      });
  watch->add_option("--count", flags.count, "Stop after N policies; 0 (default): never")
      ->type_name("N")
      ->check(WholeNumber(0, UINT32_MAX));
  AddContextFlags(watch, context);
}

}  // namespace qrd::tools
