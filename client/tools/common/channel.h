// SPDX-License-Identifier: Apache-2.0
// The control plane as the tools see it: one gRPC connection over the daemon's unix socket, a
// deadline on every call, errors with the next step in their text.
//
// The connection is made before gRPC sees it: errno of connect() tells "no daemon" from "may not",
// which gRPC's UNAVAILABLE does not, and a path needs no escaping.
//
// Thread safety: one thread at a time.
// Ownership: a ControlClient owns its connection.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "qrd/v1/communicator.grpc.pb.h"
#include "qrd/v1/node.grpc.pb.h"
#include "qrd/v1/policy.grpc.pb.h"

namespace CLI {
class App;
}

namespace qrd::tools {

struct ConnectionFlags {
  std::string runtime_directory;
  double timeout_s = 5;
};
// Adds --runtime-directory and --timeout to a subcommand.
void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags);

class ControlClient {
 public:
  // Errors: see runtime_directory.h.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const ConnectionFlags& flags);

  const std::string& runtime_directory() const { return runtime_directory_; }
  // Surely has admin rights: by uid 0 or the daemon's, or because a call that needs them went well.
  // A member of admin_group is known by the latter only: no call asks without a warning in the log.
  bool user_is_admin() const { return user_is_admin_; }
  void SawAdminCall() { user_is_admin_ = true; }
  v1::CommunicatorService::Stub& communicators() { return Refreshed(communicators_); }
  v1::PolicyService::Stub& policy() { return Refreshed(policy_); }
  v1::NodeService::Stub& node() { return Refreshed(node_); }

  // One call with the deadline: Call(&NodeService::Stub::GetStatus, node(), request, &reply).
  template <typename Stub, typename Request, typename Reply>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                    Stub& stub, const Request& request, Reply* reply) {
    grpc::ClientContext context;
    SetDeadline(context);
    return Explain((stub.*method)(&context, request, reply));
  }

  void SetDeadline(grpc::ClientContext& context) const;
  // The status with a hint about what to do next where one helps.
  absl::Status Explain(const grpc::Status& status) const;

 private:
  // The daemon closes connections that idle for minutes, and gRPC cannot open one again that it was
  // given: after a pause a call gets a new one.
  static constexpr std::chrono::seconds kFreshFor{60};

  ControlClient(std::string runtime_directory, double timeout_s, int fd);
  void Use(int fd);
  void Refresh();
  template <typename Stub>
  Stub& Refreshed(const std::unique_ptr<Stub>& stub) {
    Refresh();
    return *stub;
  }

  const std::string runtime_directory_;
  const double timeout_s_;
  bool user_is_admin_;
  std::chrono::steady_clock::time_point used_;
  std::unique_ptr<v1::CommunicatorService::Stub> communicators_;
  std::unique_ptr<v1::PolicyService::Stub> policy_;
  std::unique_ptr<v1::NodeService::Stub> node_;
};

// kExitUnreachable where no daemon answered, else kExitFailed.
int ExitCodeOf(const absl::Status& status);

}  // namespace qrd::tools
