// SPDX-License-Identifier: Apache-2.0
#include "daemon/policy/rule_check.h"

#include <cstdint>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/names.h"
#include "daemon/base/proto_convert.h"
#include "daemon/base/text_format.h"

namespace qrd {
namespace {

constexpr uint32_t kAnyDtype =
    DtypeBit(Dtype::kFp16) | DtypeBit(Dtype::kBf16) | DtypeBit(Dtype::kFp32);

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status ReadNames(const std::string& rule_text, const v1::Match& match, CompiledRule* out) {
  if (!match.communicator().empty()) {
    const std::string error = NameError(match.communicator());
    if (!error.empty()) return Invalid(rule_text, ": match.communicator ", error);
  }
  if (!match.group().empty()) {
    const std::string error = NameError(match.group());
    if (!error.empty()) return Invalid(rule_text, ": match.group ", error);
  }
  out->communicator = match.communicator();
  out->group = match.group();
  return absl::OkStatus();
}

absl::Status ReadDtypes(const std::string& rule_text, const v1::Match& match, CompiledRule* out) {
  for (int i = 0; i < match.dtypes_size(); ++i) {
    const std::optional<Dtype> dtype = FromProto(match.dtypes(i));
    if (!dtype.has_value()) {
      return Invalid(rule_text, ": match.dtypes[", i, "] is ", match.dtypes(i), "; want one of ",
                     DtypeNames());
    }
    if ((out->dtype_mask & DtypeBit(*dtype)) != 0) {
      return Invalid(rule_text, ": match.dtypes names ", v1::Dtype_Name(match.dtypes(i)), " twice");
    }
    out->dtype_mask |= DtypeBit(*dtype);
  }
  if (match.dtypes().empty()) out->dtype_mask = kAnyDtype;
  return absl::OkStatus();
}

absl::Status ReadRanges(const std::string& rule_text, const v1::Match& match, CompiledRule* out) {
  if (match.payload_bytes_max() != 0 && match.payload_bytes_min() >= match.payload_bytes_max()) {
    return Invalid(rule_text, ": match.payload_bytes_min is ", match.payload_bytes_min(),
                   " and payload_bytes_max (exclusive) is ", match.payload_bytes_max(),
                   "; min must be below max");
  }
  out->payload_bytes_min = match.payload_bytes_min();
  out->payload_bytes_last = match.payload_bytes_max() == 0 ? std::numeric_limits<uint64_t>::max()
                                                           : match.payload_bytes_max() - 1;
  if (match.world_size_min() > kWorldSizeMax) {
    return Invalid(rule_text, ": match.world_size_min is ", match.world_size_min(), "; at most ",
                   kWorldSizeMax);
  }
  if (match.world_size_max() > kWorldSizeMax) {
    return Invalid(rule_text, ": match.world_size_max is ", match.world_size_max(), "; at most ",
                   kWorldSizeMax);
  }
  out->world_size_min = match.world_size_min() == 0 ? 1 : match.world_size_min();
  out->world_size_max = match.world_size_max() == 0 ? kWorldSizeMax : match.world_size_max();
  if (out->world_size_min > out->world_size_max) {
    return Invalid(rule_text, ": match.world_size_min is ", match.world_size_min(),
                   " and world_size_max is ", match.world_size_max(),
                   "; min must not be above max");
  }
  return absl::OkStatus();
}

absl::Status ReadEpilogue(const std::string& rule_text, const v1::Match& match, CompiledRule* out) {
  out->epilogue = FromProto(match.epilogue());
  if (out->epilogue.has_value() || match.epilogue() == v1::EPILOGUE_UNSPECIFIED) {
    return absl::OkStatus();
  }
  return Invalid(rule_text, ": match.epilogue is ", match.epilogue(), "; want one of ",
                 EpilogueNames());
}

absl::Status ReadAction(const std::string& rule_text, const v1::Action& action, CompiledRule* out) {
  out->codec = FromProto(action.codec());
  if (!out->codec.has_value() && action.codec() != v1::CODEC_AUTO) {
    const std::string value =
        action.codec() == v1::CODEC_UNSPECIFIED ? "unset" : absl::StrCat(action.codec());
    return Invalid(rule_text, ": action.codec is ", value, "; want one of ", CodecNames());
  }
  out->algorithm = FromProto(action.algorithm());
  if (!out->algorithm.has_value() && action.algorithm() != v1::ALGORITHM_AUTO &&
      action.algorithm() != v1::ALGORITHM_UNSPECIFIED) {
    return Invalid(rule_text, ": action.algorithm is ", action.algorithm(), "; want one of ",
                   AlgorithmNames());
  }
  if (out->algorithm == Algorithm::kLibrary && out->codec.value_or(Codec::kNone) != Codec::kNone) {
    return Invalid(rule_text, ": action.codec is ", v1::Codec_Name(action.codec()),
                   " with ALGORITHM_LIBRARY, which has no codecs; want CODEC_NONE or CODEC_AUTO");
  }
  return absl::OkStatus();
}

absl::StatusOr<CompiledRule> ReadRule(const std::string& rule_text, const v1::Rule& rule) {
  CompiledRule out;
  const std::string name_error = RuleNameError(rule.name());
  if (!name_error.empty()) return Invalid(rule_text, ": name ", name_error);
  for (const absl::Status& status :
       {ReadNames(rule_text, rule.match(), &out), ReadDtypes(rule_text, rule.match(), &out),
        ReadRanges(rule_text, rule.match(), &out), ReadEpilogue(rule_text, rule.match(), &out),
        ReadAction(rule_text, rule.action(), &out)}) {
    if (!status.ok()) return status;
  }
  return out;
}

}  // namespace

std::string RuleText(int index, const v1::Rule& rule) {
  return absl::StrCat("rule ", index + 1, " (", Quoted(rule.name(), kNameBytesMax), ")");
}

absl::StatusOr<std::vector<CompiledRule>> CompileRules(const v1::Policy& policy,
                                                       const Backend& backend) {
  if (policy.rules_size() > kPolicyRulesMax) {
    return Invalid("rules: ", policy.rules_size(), " rules; at most ", kPolicyRulesMax);
  }
  std::vector<CompiledRule> rules;
  std::map<std::string, int> index_by_name;
  for (int i = 0; i < policy.rules_size(); ++i) {
    const v1::Rule& rule = policy.rules(i);
    const std::string rule_text = RuleText(i, rule);
    const std::string unknown = UnknownFieldIn(rule);
    if (!unknown.empty()) {
      return Invalid(rule_text, ": this version does not know ", unknown,
                     " (was it written for a newer qrd?)");
    }
    absl::StatusOr<CompiledRule> compiled = ReadRule(rule_text, rule);
    if (!compiled.ok()) return compiled.status();
    const auto [first, is_new] = index_by_name.emplace(rule.name(), i);
    if (!is_new) {
      return Invalid(rule_text, ": name ", Quoted(rule.name()), " is also that of rule ",
                     first->second + 1, "; names must be unique");
    }
    if (absl::Status status = CheckAvailable(rule_text, *compiled, backend); !status.ok()) {
      return status;
    }
    rules.push_back(*std::move(compiled));
  }
  if (!UnknownFieldIn(policy).empty()) {
    return Invalid("this version does not know ", UnknownFieldIn(policy),
                   " (was it written for a newer qrd?)");
  }
  if (absl::Status status = CheckReachable(policy, rules); !status.ok()) return status;
  return rules;
}

}  // namespace qrd
