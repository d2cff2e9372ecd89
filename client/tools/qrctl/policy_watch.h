// SPDX-License-Identifier: Apache-2.0
// The stream of policies of a daemon.
//
// Thread safety: one call at a time; `on_policy` is called on the calling thread.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "client/tools/common/channel.h"

namespace qrd::tools {

// Calls `on_policy` for the policy in force and each later one, until it returns false or `count`
// of them came (0: until the daemon ends the stream, which is UNAVAILABLE). DEADLINE_EXCEEDED if
// the first takes longer than first_timeout_s; between policies there is no deadline.
absl::Status WatchPolicy(ControlClient& client, double first_timeout_s, uint32_t count,
                         const std::function<bool(const v1::WatchPolicyResponse&)>& on_policy);

}  // namespace qrd::tools
