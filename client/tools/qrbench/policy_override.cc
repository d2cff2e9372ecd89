// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/policy_override.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace qrd::tools {
namespace {

// Each failed try means that someone else changed the policy in between.
constexpr int kTries = 20;

}  // namespace

PolicyOverride::PolicyOverride(ControlClient* client, std::string communicator,
                               std::string rule_name)
    : client_(client), communicator_(std::move(communicator)), rule_name_(std::move(rule_name)) {}

PolicyOverride::~PolicyOverride() {
  const absl::Status status = Restore();
  if (!status.ok()) {
    std::fprintf(stderr, "qrbench: warning: the policy could not be put back: %s\n",
                 std::string(status.message()).c_str());
  }
}

absl::Status PolicyOverride::Read(v1::GetPolicyResponse* reply) {
  return client_->Call(&v1::PolicyService::Stub::GetPolicy, client_->policy(),
                       v1::GetPolicyRequest(), reply);
}

absl::Status PolicyOverride::Write(const v1::Policy& policy, uint64_t expected_generation) {
  v1::SetPolicyRequest request;
  *request.mutable_policy() = policy;
  request.set_expected_generation(expected_generation);
  v1::SetPolicyResponse reply;
  const absl::Status status =
      client_->Call(&v1::PolicyService::Stub::SetPolicy, client_->policy(), request, &reply);
  if (!status.ok()) return status;
  our_generation_ = reply.generation();
  client_->SawAdminCall();
  return status;
}

v1::Policy PolicyOverride::WithoutRule(const v1::Policy& policy) const {
  v1::Policy rest;
  for (const v1::Rule& rule : policy.rules()) {
    if (rule.name() != rule_name_) *rest.add_rules() = rule;
  }
  return rest;
}

absl::Status PolicyOverride::Set(v1::Codec codec, v1::Algorithm algorithm) {
  for (int tries = 0; tries < kTries; ++tries) {
    v1::GetPolicyResponse current;
    if (absl::Status status = Read(&current); !status.ok()) return status;
    // Ours is still in force: what was before it is known. Else start from what is there now.
    if (!active_ || current.generation() != our_generation_) {
      before_ = WithoutRule(current.policy());
    }
    v1::Policy policy;
    v1::Rule* rule = policy.add_rules();
    rule->set_name(rule_name_);
    rule->mutable_match()->set_communicator(communicator_);
    rule->mutable_action()->set_codec(codec);
    rule->mutable_action()->set_algorithm(algorithm);
    for (const v1::Rule& other : before_.rules()) {
      if (other.match().communicator() != communicator_) *policy.add_rules() = other;
    }
    const absl::Status status = Write(policy, current.generation());
    if (status.ok()) active_ = true;
    if (!absl::IsAborted(status)) return status;
  }
  return absl::AbortedError(absl::StrCat("the policy was changed by others ", kTries,
                                         " times while a rule was to be added"));
}

void DeleteOwnCommunicator(ControlClient& client, const std::string& name) {
  if (!client.user_is_admin()) return;
  v1::DeleteCommunicatorRequest request;
  request.set_name(name);
  request.set_force(true);
  v1::DeleteCommunicatorResponse reply;
  // Not an error: it may never have been made.
  (void)client.Call(&v1::CommunicatorService::Stub::DeleteCommunicator, client.communicators(),
                    request, &reply);
}

absl::Status PolicyOverride::Restore() {
  if (!active_) return absl::OkStatus();
  active_ = false;  // one try only, also from the destructor
  for (int tries = 0; tries < kTries; ++tries) {
    v1::GetPolicyResponse current;
    if (absl::Status status = Read(&current); !status.ok()) return status;
    const bool ours = current.generation() == our_generation_;
    const absl::Status status =
        Write(ours ? before_ : WithoutRule(current.policy()), current.generation());
    if (!absl::IsAborted(status)) return status;
  }
  return absl::AbortedError(absl::StrCat("the policy was changed by others ", kTries,
                                         " times; remove the rule \"", rule_name_, "\" by hand"));
}

}  // namespace qrd::tools
