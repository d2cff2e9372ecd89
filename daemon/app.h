// SPDX-License-Identifier: Apache-2.0
// The daemon: its components in start order. Each uses only those above it; they stop in reverse.
//
//   lock file -> policy store -> registry -> engine -> session server -> metrics endpoint ->
//   control
//
// Thread safety: Start(), Drain() and Stop() from one thread; the rest from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/backends.h"
#include "daemon/base/config.h"
#include "daemon/base/directories.h"
#include "daemon/control/control_server.h"
#include "daemon/engine/engine.h"
#include "daemon/policy/policy_store.h"
#include "daemon/registry/communicator_registry.h"
#include "daemon/session/node_segment.h"
#include "daemon/session/session_server.h"
#include "daemon/telemetry/exposer.h"
#include "daemon/telemetry/metrics.h"

namespace qrd {

class App {
 public:
  // An engine whose loop has not turned for this long counts as stuck (/livez, watchdog).
  static constexpr absl::Duration kStuckAfter = absl::Seconds(5);

  explicit App(Config config, Backends backends = Backends::HostOnly());
  ~App();  // stops without a drain

  // Starts everything; sessions are accepted when it returns OK. An error says what to do about it.
  absl::Status Start();
  // New sessions are refused and operations that nobody has posted yet fail with UNAVAILABLE; waits
  // for the others, at most for drain_timeout_ms or until `give_up()`, which is asked often. True
  // if all are done.
  bool Drain(const std::function<bool()>& give_up);
  // Ends sessions, streams and threads. Idempotent.
  void Stop();

  // "" while the engine makes progress, else what is wrong.
  std::string LiveError() const;
  const std::string& metrics_address() const;
  v1::NodeStatus::State state() const { return state_.load(); }

 private:
  absl::Status LockState();
  absl::Status StartDataPath();
  absl::Status StartControl();
  std::string ReadyError() const;

  const Config config_;
  const absl::Time start_time_ = absl::Now();
  std::atomic<v1::NodeStatus::State> state_{v1::NodeStatus::STATE_STARTING};

  std::unique_ptr<LockFile> lock_, state_lock_;
  const Backends backends_;
  std::unique_ptr<PolicyStore> policy_;
  std::unique_ptr<CommunicatorRegistry> registry_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<NodeSegment> node_segment_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SessionServer> sessions_;
  std::unique_ptr<Exposer> exposer_;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace qrd
