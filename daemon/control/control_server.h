// SPDX-License-Identifier: Apache-2.0
// <runtime_directory>/control.sock: gRPC for qrctl and operators, with health and reflection.
//
// The listener is the daemon's own, since gRPC shows no credentials of a unix socket: one thread
// accepts, asks the kernel who it is (peer.h) and hands the descriptor to gRPC.
//
// Thread safety: all functions from any thread, Stop() from one.
// Ownership: everything passed to Start() must outlive the server.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/unique_fd.h"
#include "daemon/control/communicator_service.h"
#include "daemon/control/node_service.h"
#include "daemon/control/peer.h"
#include "daemon/control/policy_service.h"
#include "grpcpp/server.h"

namespace qrd {

class ControlServer {
 public:
  static constexpr int kMessageBytesMax = 1 << 20;
  // Above kWatchersMax: a watcher too many gets an error; a stream too many would wait silently.
  static constexpr int kStreamsPerConnectionMax = 128;
  // A connection without a call (a watch is one) for this long is closed.
  static constexpr absl::Duration kConnectionIdle = absl::Minutes(10);
  static_assert(kStreamsPerConnectionMax > PolicyWatchHub::kWatchersMax);

  // Binds and serves. Health is NOT_SERVING until SetServing(true). The caller holds the LockFile.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const Config& config, NodeSources node, PolicyStore* policy, CommunicatorRegistry* registry,
      Metrics* metrics, absl::Duration connection_idle = kConnectionIdle);
  ~ControlServer();  // stops

  void SetServing(bool serving);
  // Ends the watch streams, cancels what is left at the deadline, removes the socket. Idempotent.
  void Stop(absl::Duration timeout);

  const PolicyService& policy_service() const { return policy_service_; }

 private:
  ControlServer(NodeSources node, PolicyStore* policy, CommunicatorRegistry* registry,
                Metrics* metrics);
  absl::Status Build(absl::Duration connection_idle);
  void AcceptLoop();
  void AcceptOne();

  PeerTable peers_;
  CommunicatorService communicator_service_;
  PolicyService policy_service_;
  NodeService node_service_;
  std::optional<gid_t> admin_group_;
  std::string path_;
  UniqueFd listener_, stop_event_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;
};

}  // namespace qrd
