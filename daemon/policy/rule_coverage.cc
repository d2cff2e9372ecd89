// SPDX-License-Identifier: Apache-2.0
// The two checks of rule_check.h that look at more than one rule or at the backend.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/proto_convert.h"
#include "daemon/policy/rule_check.h"

namespace qrd {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

// Whether `earlier` matches every name that `later` matches.
bool CoversNames(const CompiledRule& earlier, const CompiledRule& later) {
  return (earlier.communicator.empty() || earlier.communicator == later.communicator) &&
         (earlier.group.empty() || earlier.group == later.group);
}

// Adds to `used` the rules of `candidates` (sorted by payload_bytes_min) whose ranges together
// contain the range of rule `later` for one dtype, world size and epilogue; false if there is a
// hole.
bool Covered(const std::vector<CompiledRule>& rules, const std::vector<int>& candidates,
             const CompiledRule& later, Dtype dtype, uint32_t world_size, Epilogue epilogue,
             std::set<int>* used) {
  uint64_t next = later.payload_bytes_min;  // all below is covered
  for (const int i : candidates) {
    const CompiledRule& rule = rules[i];
    if ((rule.dtype_mask & DtypeBit(dtype)) == 0 || world_size < rule.world_size_min ||
        world_size > rule.world_size_max || rule.payload_bytes_last < next ||
        (rule.epilogue.has_value() && rule.epilogue != epilogue)) {
      continue;
    }
    if (rule.payload_bytes_min > next) return false;
    used->insert(i);
    if (rule.payload_bytes_last >= later.payload_bytes_last) return true;
    next = rule.payload_bytes_last + 1;
  }
  return false;
}

// The earlier rules that leave nothing to rule `index`; empty if it can decide something.
std::set<int> CoveringRules(const std::vector<CompiledRule>& rules, int index) {
  const CompiledRule& later = rules[index];
  std::vector<int> candidates;
  for (int i = 0; i < index; ++i) {
    if (CoversNames(rules[i], later)) candidates.push_back(i);
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&rules](int a, int b) {
    return rules[a].payload_bytes_min < rules[b].payload_bytes_min;
  });
  std::set<int> used;
  for (const Dtype dtype : kDtypes) {
    if ((later.dtype_mask & DtypeBit(dtype)) == 0) continue;
    for (uint32_t w = later.world_size_min; w <= later.world_size_max; ++w) {
      for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kRmsNorm}) {
        if (later.epilogue.has_value() && later.epilogue != epilogue) continue;
        if (!Covered(rules, candidates, later, dtype, w, epilogue, &used)) return {};
      }
    }
  }
  return used;
}

// Every instance works without an epilogue, and with the one that it names.
bool Offers(const KernelInstance& instance, const CompiledRule& rule) {
  const Epilogue epilogue = rule.epilogue.value_or(Epilogue::kNone);
  return epilogue == Epilogue::kNone || instance.epilogue == epilogue;
}

// Whether the rule's epilogue exists for the type at all.
bool HasEpilogue(const CompiledRule& rule, const Backend& backend, Dtype dtype) {
  const auto instances = backend.instances();
  return std::any_of(instances.begin(), instances.end(), [&](const KernelInstance& instance) {
    return instance.dtype == dtype && Offers(instance, rule);
  });
}

bool HasInstance(const CompiledRule& rule, const Backend& backend, Dtype dtype,
                 uint32_t world_size) {
  for (const KernelInstance& instance : backend.instances()) {
    if (Offers(instance, rule) && (!rule.codec.has_value() || instance.codec == *rule.codec) &&
        (!rule.algorithm.has_value() || instance.algorithm == *rule.algorithm) &&
        instance.dtype == dtype && world_size >= instance.world_size_min &&
        world_size <= instance.world_size_max) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckReachable(const v1::Policy& policy, const std::vector<CompiledRule>& rules) {
  for (int i = 1; i < static_cast<int>(rules.size()); ++i) {
    const std::set<int> covering = CoveringRules(rules, i);
    if (covering.empty()) continue;
    std::vector<std::string> texts;
    for (const int c : covering) texts.push_back(RuleText(c, policy.rules(c)));
    if (texts.size() > 4) {
      const size_t more = texts.size() - 4;
      texts.resize(4);
      texts.push_back(absl::StrCat(more, " more"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(RuleText(i, policy.rules(i)),
                     " can never decide: all that it matches is matched before by ",
                     absl::StrJoin(texts, ", "), "; move it up or remove it"));
  }
  return absl::OkStatus();
}

absl::Status CheckAvailable(const std::string& rule_text, const CompiledRule& rule,
                            const Backend& backend) {
  // Where there is no library the backend's own kernels serve.
  if (rule.algorithm == Algorithm::kLibrary) return absl::OkStatus();
  std::set<std::string> have;
  for (const KernelInstance& instance : backend.instances()) {
    have.insert(absl::StrCat(std::string(Name(instance.codec)), " ",
                             std::string(Name(instance.algorithm))));
  }
  bool any_dtype = false;
  for (const Dtype dtype : kDtypes) {
    if ((rule.dtype_mask & DtypeBit(dtype)) == 0) continue;
    if (rule.epilogue.has_value() && !HasEpilogue(rule, backend, dtype)) continue;
    any_dtype = true;
    for (uint32_t w = rule.world_size_min; w <= rule.world_size_max; ++w) {
      if (HasInstance(rule, backend, dtype, w)) continue;
      const v1::Codec codec = rule.codec.has_value() ? ToProto(*rule.codec) : v1::CODEC_AUTO;
      const v1::Algorithm algorithm =
          rule.algorithm.has_value() ? ToProto(*rule.algorithm) : v1::ALGORITHM_AUTO;
      return absl::UnimplementedError(absl::StrCat(
          rule_text, ": action.codec ", v1::Codec_Name(codec), " with action.algorithm ",
          v1::Algorithm_Name(algorithm), " does not exist for ", v1::Dtype_Name(ToProto(dtype)),
          " and world size ", w, " on backend ", std::string(backend.name()), "; it has ",
          absl::StrJoin(have, ", ")));
    }
  }
  if (any_dtype) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      rule_text, ": match.epilogue ", v1::Epilogue_Name(ToProto(*rule.epilogue)),
      " does not exist for any of match.dtypes on backend ", std::string(backend.name())));
}

}  // namespace qrd
