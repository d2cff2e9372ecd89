// SPDX-License-Identifier: Apache-2.0
#include "daemon/policy/policy.h"

#include <algorithm>

#include "daemon/policy/rule_check.h"

namespace qrd {

bool CompiledRule::Matches(const PlanFacts& facts) const {
  if (!communicator.empty() && communicator != facts.communicator) return false;
  if (!group.empty() && group != facts.group) return false;
  if ((dtype_mask & DtypeBit(facts.dtype)) == 0) return false;
  if (epilogue.has_value() && epilogue != facts.epilogue) return false;
  return facts.payload_bytes >= payload_bytes_min && facts.payload_bytes <= payload_bytes_last &&
         facts.world_size >= world_size_min && facts.world_size <= world_size_max;
}

absl::StatusOr<std::shared_ptr<const CompiledPolicy>> CompiledPolicy::Compile(
    const v1::Policy& policy, const Backend& backend, uint64_t generation) {
  absl::StatusOr<std::vector<CompiledRule>> rules = CompileRules(policy, backend);
  if (!rules.ok()) return rules.status();
  std::shared_ptr<CompiledPolicy> compiled(new CompiledPolicy);
  compiled->proto_ = policy;
  compiled->generation_ = generation;
  compiled->rules_ = *std::move(rules);
  return compiled;
}

Plan CompiledPolicy::Evaluate(const PlanFacts& facts, const Backend& backend) const {
  const auto rule = std::find_if(rules_.begin(), rules_.end(),
                                 [&facts](const CompiledRule& r) { return r.Matches(facts); });
  Plan plan;
  plan.policy_generation = generation_;
  std::optional<Algorithm> algorithm;
  std::optional<Codec> codec;
  if (rule != rules_.end()) {
    plan.rule_index = static_cast<int>(rule - rules_.begin());
    codec = rule->codec;
    algorithm = rule->algorithm;
  }
  const bool library_wanted = algorithm == Algorithm::kLibrary;
  if (library_wanted) {
    codec = Codec::kNone;
    algorithm.reset();
  }
  if (facts.link.has_value()) {
    AutoFacts automatic;
    automatic.dtype = facts.dtype;
    automatic.payload_bytes = facts.payload_bytes;
    automatic.world_size = facts.world_size;
    automatic.link = *facts.link;
    automatic.codec = codec;
    automatic.library_available = facts.library_available;
    const AutoPlan chosen = PlanAuto(automatic);
    plan.codec = codec.value_or(chosen.codec);
    plan.algorithm = algorithm.value_or(chosen.algorithm);
    const bool library =
        library_wanted ? facts.library_available : chosen.library && !algorithm.has_value();
    if (library) plan.algorithm = Algorithm::kLibrary;
    return plan;
  }
  plan.codec = codec.has_value()
                   ? *codec
                   : backend.AutoCodec(facts.dtype, facts.payload_bytes, facts.world_size);
  plan.algorithm =
      algorithm.has_value()
          ? *algorithm
          : backend.AutoAlgorithm(plan.codec, facts.dtype, facts.payload_bytes, facts.world_size);
  return plan;
}

}  // namespace qrd
