// SPDX-License-Identifier: Apache-2.0
// From the rules of a v1::Policy to checked ones. Everything that SetPolicy can refuse is here.
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/policy/policy.h"

namespace qrd {

inline constexpr uint32_t DtypeBit(Dtype dtype) { return 1u << static_cast<uint32_t>(dtype); }

// See CompiledPolicy::Compile for the errors.
absl::StatusOr<std::vector<CompiledRule>> CompileRules(const v1::Policy& policy,
                                                       const Backend& backend);

// INVALID_ARGUMENT if earlier rules match all that a later one matches. Exact: decided for each
// dtype, world size and epilogue by the union of the earlier rules' payload ranges.
absl::Status CheckReachable(const v1::Policy& policy, const std::vector<CompiledRule>& rules);

// INVALID_ARGUMENT or UNIMPLEMENTED if the backend lacks what the rule asks for, for any dtype and
// world size that the rule matches.
absl::Status CheckAvailable(const std::string& rule_text, const CompiledRule& rule,
                            const Backend& backend);

// `rule 3 ("name")`, for error texts; rules count from 1 there, as qrctl shows them.
std::string RuleText(int index, const v1::Rule& rule);

}  // namespace qrd
