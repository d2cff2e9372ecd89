// SPDX-License-Identifier: Apache-2.0
// The ranks of a run, wherever they are: forked processes in one or more groups, or this process as
// one rank of a group that others form (`--join`).
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/all_reduce.h"
#include "client/tools/qrbench/process_team.h"
#include "client/tools/qrbench/rank_runner.h"

namespace qrd::tools {

class RankSet {
 public:
  // Forks unless settings.join. `settings` must outlive the set; iterations_max bounds the samples.
  static absl::StatusOr<std::unique_ptr<RankSet>> Start(const AllReduceSettings& settings,
                                                        const std::string& runtime_directory,
                                                        uint32_t iterations_max);

  // One request to every rank. An error of any rank is the error of the call; the first rank that
  // says more than that its peers are lost is quoted.
  absl::StatusOr<std::vector<CaseReply>> Ask(const CaseRequest& request);

  // The time of each timed iteration of the last kRun: of the slowest rank of a group; all groups.
  std::vector<uint64_t> IterationTimes(uint32_t iterations) const;

 private:
  RankSet(uint32_t ranks, uint32_t groups, uint32_t iterations_max);

  const uint32_t ranks_, groups_, iterations_max_;
  SharedMemory samples_;
  SharedMemory barriers_;
  std::unique_ptr<ProcessTeam> team_;  // or
  std::unique_ptr<RankRunner> joined_;
};

}  // namespace qrd::tools
