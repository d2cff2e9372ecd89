// SPDX-License-Identifier: Apache-2.0
// The policy as a pure function: (facts, rules) -> plan. No clock, no I/O, no state.
// Thread safety: CompiledPolicy is immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/auto_plan.h"
#include "kernels/backend.h"
#include "kernels/types.h"
#include "qrd/v1/policy.pb.h"

namespace qrd {

inline constexpr int kPolicyRulesMax = 256;

// What a rule can look at. Fixed for an operation.
struct PlanFacts {
  std::string_view communicator;
  std::string_view group;
  Dtype dtype = Dtype::kFp32;
  uint64_t payload_bytes = 0;  // of one rank
  uint32_t world_size = 1;
  Epilogue epilogue = Epilogue::kNone;
  std::optional<LinkKind> link;    // of ranks on devices
  bool library_available = false;  // the vendor's collective library can serve these ranks
};

// How one operation runs: the same on all ranks, latched when the last rank posted.
struct Plan {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  uint64_t policy_generation = 0;
  int rule_index = -1;  // -1: no rule matched
};

// A rule whose defaults are filled in and whose bounds are checked.
struct CompiledRule {
  std::string communicator, group;                         // empty: any
  uint32_t dtype_mask = 0;                                 // bit = numeric Dtype
  uint64_t payload_bytes_min = 0, payload_bytes_last = 0;  // both inclusive
  uint32_t world_size_min = 0, world_size_max = 0;         // both inclusive
  std::optional<Epilogue> epilogue;                        // nullopt: any
  std::optional<Codec> codec;                              // nullopt: auto
  std::optional<Algorithm> algorithm;                      // nullopt: auto

  bool Matches(const PlanFacts& facts) const;
};

class CompiledPolicy {
 public:
  // Checks the rules (INVALID_ARGUMENT naming rule, field, value and bound; UNIMPLEMENTED for a
  // codec or algorithm that `backend` lacks, with the list of what exists) and prepares them.
  // Refuses min >= max, duplicate names, fields of a newer version, and a rule that can never
  // decide because earlier ones, alone or together, match all that it matches (naming them).
  static absl::StatusOr<std::shared_ptr<const CompiledPolicy>> Compile(const v1::Policy& policy,
                                                                       const Backend& backend,
                                                                       uint64_t generation);

  // Total: every fact has exactly one plan.
  Plan Evaluate(const PlanFacts& facts, const Backend& backend) const;

  const v1::Policy& proto() const { return proto_; }
  uint64_t generation() const { return generation_; }

 private:
  CompiledPolicy() = default;

  v1::Policy proto_;
  uint64_t generation_ = 0;
  std::vector<CompiledRule> rules_;
};

}  // namespace qrd
