// SPDX-License-Identifier: Apache-2.0
// Times for `qrbench tune` from a daemon: forked ranks for every world size asked, a policy rule
// for their communicator that names the plan. The policy in force comes back at the end.
//
// Thread safety: main thread, before anything else has started threads. Ownership: the destructor
// ends the ranks, restores the policy, deletes the communicators and stops a private daemon.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/common/channel.h"
#include "client/tools/qrbench/all_reduce.h"
#include "client/tools/qrbench/policy_override.h"
#include "client/tools/qrbench/private_daemon.h"
#include "client/tools/qrbench/rank_set.h"
#include "client/tools/qrbench/tune_measure.h"

namespace qrd::tools {

struct TuneDaemonSettings {
  std::vector<uint32_t> ranks;  // one team of processes each
  std::vector<uint64_t> sizes;
  std::string backend = "host", order;  // as AllReduceSettings
  std::vector<std::string> devices;
  std::string communicator;  // "": one of our own for each world size, deleted afterwards
  bool start_daemon = false;
  std::string daemon_program;
  ConnectionFlags connection;
};

class TuneDaemon : public TuneSource {
 public:
  static absl::StatusOr<std::unique_ptr<TuneDaemon>> Start(const TuneDaemonSettings& settings);
  ~TuneDaemon() override;

  absl::Status Open(uint32_t ranks, Dtype dtype, uint64_t payload_bytes_max) override;
  absl::StatusOr<std::vector<double>> Batch(const TunePlan& plan, uint64_t payload_bytes) override;
  double Seconds() override;
  void Report(const std::string& progress) override;

  // The policy as it was, the ranks gone. Again by the destructor if it was not called.
  absl::Status Finish();
  // OK if the daemon would accept the policy.
  absl::Status Validate(const v1::Policy& policy);

  const std::string& daemon() const { return daemon_text_; }
  const std::string& backend() const { return backend_; }  // of the communicators; "" before Open

 private:
  struct Team {
    AllReduceSettings settings;
    std::unique_ptr<RankSet> ranks;
    bool attached = false;
  };
  explicit TuneDaemon(TuneDaemonSettings settings) : settings_(std::move(settings)) {}
  absl::Status Prepare();
  absl::Status ForkTeams();
  absl::Status Connect();
  absl::Status CloseTeam();
  absl::Status ReadBackend();
  void DeleteCommunicators();

  const TuneDaemonSettings settings_;
  std::string runtime_directory_, daemon_text_, backend_;
  std::unique_ptr<PrivateDaemon> private_daemon_;
  std::deque<Team> teams_;
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<PolicyOverride> policy_;
  Team* open_ = nullptr;
  Dtype dtype_ = Dtype::kBf16;
  uint64_t filled_bytes_ = 0;  // the buffers hold inputs of this payload and dtype_
};

}  // namespace qrd::tools
