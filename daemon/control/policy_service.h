// SPDX-License-Identifier: Apache-2.0
// gRPC face of the policy store: authorise, call, convert.
// Thread safety: as gRPC calls it, from any of its threads. SetPolicy blocks its thread on the
// disk.
#pragma once

#include "daemon/control/peer.h"
#include "daemon/control/policy_watch.h"
#include "daemon/policy/policy_store.h"
#include "daemon/telemetry/metrics.h"
#include "qrd/v1/policy.grpc.pb.h"

namespace qrd {

class PolicyService final : public v1::PolicyService::CallbackService {
 public:
  PolicyService(PolicyStore* store, Metrics* metrics, const PeerTable* peers)
      : store_(store), metrics_(metrics), peers_(peers), watchers_(store) {}

  grpc::ServerUnaryReactor* GetPolicy(grpc::CallbackServerContext* context,
                                      const v1::GetPolicyRequest* request,
                                      v1::GetPolicyResponse* reply) override;
  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse* reply) override;
  grpc::ServerWriteReactor<v1::WatchPolicyResponse>* WatchPolicy(
      grpc::CallbackServerContext* context, const v1::WatchPolicyRequest* request) override;

  // Drain: ends the watch streams.
  void EndWatches() { watchers_.EndAll(); }

 private:
  absl::Status Set(const std::string& peer, const v1::SetPolicyRequest& request,
                   v1::SetPolicyResponse* reply);

  PolicyStore* const store_;
  Metrics* const metrics_;
  const PeerTable* const peers_;
  PolicyWatchHub watchers_;
};

}  // namespace qrd
