// SPDX-License-Identifier: Apache-2.0
// What this node is, can do and does.
// Thread safety: as gRPC calls it, from any of its threads.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/base/config.h"
#include "daemon/policy/policy_store.h"
#include "daemon/registry/communicator_registry.h"
#include "daemon/telemetry/metrics.h"
#include "kernels/backend.h"
#include "qrd/v1/node.grpc.pb.h"

namespace qrd {

// Where the answers come from. All must outlive the service.
struct NodeSources {
  const Config* config = nullptr;
  std::vector<const Backend*> backends;  // host first
  const PolicyStore* policy = nullptr;
  const CommunicatorRegistry* registry = nullptr;
  const Metrics* metrics = nullptr;
  std::function<uint64_t()> sessions, arena_bytes;
  std::function<v1::NodeStatus::State()> state;
  std::string metrics_address;  // with the port that it got; empty: off
  absl::Time start_time;
};

// From the backends' instance lists and the configuration.
v1::Capabilities DescribeCapabilities(std::span<const Backend* const> backends,
                                      const Config& config);

class NodeService final : public v1::NodeService::CallbackService {
 public:
  explicit NodeService(NodeSources sources) : sources_(std::move(sources)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::NodeStatus* reply) override;
  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::Capabilities* reply) override;

 private:
  const NodeSources sources_;
};

}  // namespace qrd
