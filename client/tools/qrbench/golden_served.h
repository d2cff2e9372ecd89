// SPDX-License-Identifier: Apache-2.0
// All-reduce cases of a golden folder through a running daemon: one process a rank, memory of
// qrd_mem_alloc, codec and algorithm set by the policy.
//
// Thread safety: one thread; Start forks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/tools/common/channel.h"
#include "client/tools/qrbench/golden_check.h"
#include "client/tools/qrbench/policy_override.h"
#include "client/tools/qrbench/process_team.h"

namespace qrd::tools {

class GoldenServer {
 public:
  // Forks as many processes as the largest case has ranks. `folder` must outlive the object.
  static absl::StatusOr<std::unique_ptr<GoldenServer>> Start(const GoldenFolder& folder,
                                                             const std::string& runtime_directory,
                                                             bool on_gpu);
  ~GoldenServer();

  // After Start, when no more forks are to come.
  absl::Status Connect(const ConnectionFlags& flags);
  // Cases of equal ranks in a row share one attach, those of equal codec and algorithm one policy.
  // An error status ends the run; what is wrong with the case alone is in the result.
  absl::StatusOr<CaseResult> Check(const GoldenCase& c);
  // Puts the policy back and deletes the communicators.
  absl::Status Finish();

 private:
  GoldenServer(const GoldenFolder& folder, std::string runtime_directory);
  absl::Status AttachRanks(uint32_t ranks);
  absl::Status DetachRanks();
  absl::Status SetPlan(Codec codec, Algorithm algorithm);
  std::string CommunicatorOf(uint32_t ranks) const;

  const GoldenFolder& folder_;
  const std::string runtime_directory_;
  uint64_t result_bytes_max_ = 1;
  std::unique_ptr<SharedMemory> results_;  // one slot a rank
  std::unique_ptr<ProcessTeam> team_;
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<PolicyOverride> policy_;
  uint32_t attached_ = 0;                            // ranks
  std::optional<std::pair<Codec, Algorithm>> plan_;  // set by policy_
};

}  // namespace qrd::tools
