// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/communicator_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/names.h"
#include "daemon/base/text_format.h"
#include "daemon/control/status_convert.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A field that a newer client set must not be ignored: it would not get what it asked for.
absl::Status CheckKnown(const google::protobuf::Message& request) {
  const std::string unknown = UnknownFieldIn(request);
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("this version does not know ", unknown));
}

absl::Status CheckName(const std::string& name) {
  const std::string error = NameError(name);
  if (error.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("name ", error));
}

// Only what a caller may set.
bool HasOutputFields(const v1::Communicator& communicator) {
  v1::Communicator settings;
  settings.set_name(communicator.name());
  settings.set_world_size(communicator.world_size());
  settings.set_backend(communicator.backend());
  return settings.ByteSizeLong() != communicator.ByteSizeLong();
}

}  // namespace

absl::Status CommunicatorService::Create(const std::string& peer,
                                         const v1::CreateCommunicatorRequest& request,
                                         v1::Communicator* reply) {
  const absl::StatusOr<Peer> caller = peers_->Authorize(peer, "create a communicator");
  if (!caller.ok()) return caller.status();
  if (absl::Status status = CheckKnown(request); !status.ok()) return status;
  if (!request.has_communicator()) {
    return absl::InvalidArgumentError("communicator is unset; it is required");
  }
  if (HasOutputFields(request.communicator())) {
    return absl::InvalidArgumentError(
        "communicator: only name, world_size and backend can be set; the rest is output only");
  }
  absl::StatusOr<v1::Communicator> created =
      registry_->Create(request.communicator(), /*on_attach=*/false);
  if (!created.ok()) return created.status();
  spdlog::info("communicator {} created by uid {}, world size {}", created->name(), caller->uid,
               created->world_size());
  *reply = *std::move(created);
  return absl::OkStatus();
}

absl::Status CommunicatorService::Get(const v1::GetCommunicatorRequest& request,
                                      v1::Communicator* reply) const {
  if (absl::Status status = CheckName(request.name()); !status.ok()) return status;
  absl::StatusOr<v1::Communicator> found = registry_->Get(request.name());
  if (!found.ok()) return found.status();
  *reply = *std::move(found);
  return absl::OkStatus();
}

absl::Status CommunicatorService::Delete(const std::string& peer,
                                         const v1::DeleteCommunicatorRequest& request,
                                         v1::DeleteCommunicatorResponse* reply) {
  const absl::StatusOr<Peer> caller = peers_->Authorize(peer, "delete a communicator");
  if (!caller.ok()) return caller.status();
  if (absl::Status status = CheckKnown(request); !status.ok()) return status;
  if (absl::Status status = CheckName(request.name()); !status.ok()) return status;
  const absl::StatusOr<uint32_t> ended = registry_->Delete(request.name(), request.force());
  if (!ended.ok()) return ended.status();
  spdlog::info("communicator {} deleted by uid {}, {} sessions ended", request.name(), caller->uid,
               *ended);
  reply->set_sessions_ended(*ended);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* CommunicatorService::CreateCommunicator(
    grpc::CallbackServerContext* context, const v1::CreateCommunicatorRequest* request,
    v1::Communicator* reply) {
  return Finish(context, Create(context->peer(), *request, reply));
}

grpc::ServerUnaryReactor* CommunicatorService::GetCommunicator(
    grpc::CallbackServerContext* context, const v1::GetCommunicatorRequest* request,
    v1::Communicator* reply) {
  return Finish(context, Get(*request, reply));
}

grpc::ServerUnaryReactor* CommunicatorService::ListCommunicators(
    grpc::CallbackServerContext* context, const v1::ListCommunicatorsRequest*,
    v1::ListCommunicatorsResponse* reply) {
  for (v1::Communicator& communicator : registry_->List()) {
    *reply->add_communicators() = std::move(communicator);
  }
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CommunicatorService::DeleteCommunicator(
    grpc::CallbackServerContext* context, const v1::DeleteCommunicatorRequest* request,
    v1::DeleteCommunicatorResponse* reply) {
  return Finish(context, Delete(context->peer(), *request, reply));
}

}  // namespace qrd
