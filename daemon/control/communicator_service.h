// SPDX-License-Identifier: Apache-2.0
// gRPC face of the registry: authorise, call, convert.
// Thread safety: as gRPC calls it, from any of its threads.
#pragma once

#include "daemon/control/peer.h"
#include "daemon/registry/communicator_registry.h"
#include "qrd/v1/communicator.grpc.pb.h"

namespace qrd {

class CommunicatorService final : public v1::CommunicatorService::CallbackService {
 public:
  CommunicatorService(CommunicatorRegistry* registry, const PeerTable* peers)
      : registry_(registry), peers_(peers) {}

  grpc::ServerUnaryReactor* CreateCommunicator(grpc::CallbackServerContext* context,
                                               const v1::CreateCommunicatorRequest* request,
                                               v1::Communicator* reply) override;
  grpc::ServerUnaryReactor* GetCommunicator(grpc::CallbackServerContext* context,
                                            const v1::GetCommunicatorRequest* request,
                                            v1::Communicator* reply) override;
  grpc::ServerUnaryReactor* ListCommunicators(grpc::CallbackServerContext* context,
                                              const v1::ListCommunicatorsRequest* request,
                                              v1::ListCommunicatorsResponse* reply) override;
  grpc::ServerUnaryReactor* DeleteCommunicator(grpc::CallbackServerContext* context,
                                               const v1::DeleteCommunicatorRequest* request,
                                               v1::DeleteCommunicatorResponse* reply) override;

 private:
  absl::Status Create(const std::string& peer, const v1::CreateCommunicatorRequest& request,
                      v1::Communicator* reply);
  absl::Status Get(const v1::GetCommunicatorRequest& request, v1::Communicator* reply) const;
  absl::Status Delete(const std::string& peer, const v1::DeleteCommunicatorRequest& request,
                      v1::DeleteCommunicatorResponse* reply);

  CommunicatorRegistry* const registry_;
  const PeerTable* const peers_;
};

}  // namespace qrd
