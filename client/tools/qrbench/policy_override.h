// SPDX-License-Identifier: Apache-2.0
// Gives one communicator a codec of its own for a while: a rule in front of the policy in force,
// and the old policy back afterwards. Other people's changes meanwhile are kept: every write
// expects the generation that was read.
//
// Thread safety: one thread. Ownership: the client must outlive it. The destructor restores.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/tools/common/channel.h"
#include "kernels/types.h"

namespace qrd::tools {

class PolicyOverride {
 public:
  // rule_name must be a valid rule name that nobody else uses.
  PolicyOverride(ControlClient* client, std::string communicator, std::string rule_name);
  ~PolicyOverride();
  PolicyOverride(const PolicyOverride&) = delete;
  PolicyOverride& operator=(const PolicyOverride&) = delete;

  // The rule is in force when this returns OK. Rules of the policy for the same communicator are
  // set aside until Restore (the daemon refuses rules that cannot be reached).
  absl::Status Set(v1::Codec codec, v1::Algorithm algorithm);
  // Back to the policy before the first Set. Nothing to do, OK, if there was no Set.
  absl::Status Restore();

 private:
  absl::Status Read(v1::GetPolicyResponse* reply);
  absl::Status Write(const v1::Policy& policy, uint64_t expected_generation);
  // The policy in force without the rule of this object.
  v1::Policy WithoutRule(const v1::Policy& policy) const;

  ControlClient* const client_;
  const std::string communicator_, rule_name_;
  bool active_ = false;
  v1::Policy before_;
  uint64_t our_generation_ = 0;  // of the last Write
};

// Deletes a communicator that an attach of this run has made, if the user is known to be an admin:
// a refusal would be a warning in the daemon's log, and the daemon itself removes what attaches
// have made when it needs the room.
void DeleteOwnCommunicator(ControlClient& client, const std::string& name);

}  // namespace qrd::tools
