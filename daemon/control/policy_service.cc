// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/policy_service.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/text_format.h"
#include "daemon/control/status_convert.h"
#include "google/protobuf/util/time_util.h"
#include "spdlog/spdlog.h"

namespace qrd {

grpc::ServerUnaryReactor* PolicyService::GetPolicy(grpc::CallbackServerContext* context,
                                                   const v1::GetPolicyRequest*,
                                                   v1::GetPolicyResponse* reply) {
  const PolicyStore::Snapshot snapshot = store_->snapshot();
  *reply->mutable_policy() = snapshot.policy->proto();
  reply->set_generation(snapshot.policy->generation());
  *reply->mutable_set_time() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      absl::ToUnixNanos(snapshot.set_time));
  if (snapshot.set_by_uid.has_value()) reply->set_set_by_uid(*snapshot.set_by_uid);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

absl::Status PolicyService::Set(const std::string& peer, const v1::SetPolicyRequest& request,
                                v1::SetPolicyResponse* reply) {
  const absl::StatusOr<Peer> caller = peers_->Authorize(peer, "set the policy");
  if (!caller.ok()) return caller.status();
  if (!request.has_policy()) {
    return absl::InvalidArgumentError("policy is unset; it is required (an empty one is valid)");
  }
  // Below the request itself the store looks, and names the rule.
  if (!request.GetReflection()->GetUnknownFields(request).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this version does not know ", UnknownFieldIn(request), " (was it set by a newer qrctl?)"));
  }
  const absl::StatusOr<uint64_t> generation = store_->Set(
      request.policy(), request.expected_generation(), request.validate_only(), caller->uid);
  if (!request.validate_only()) {
    metrics_->RecordPolicySet(generation.ok());
    if (generation.ok()) {
      spdlog::info("policy generation {} set by uid {} (pid {}), {} rules", *generation,
                   caller->uid, caller->pid, request.policy().rules_size());
    } else {
      spdlog::warn("policy of uid {} (pid {}) refused: {}", caller->uid, caller->pid,
                   std::string(generation.status().message()));
    }
  }
  if (!generation.ok()) return generation.status();
  reply->set_generation(*generation);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* PolicyService::SetPolicy(grpc::CallbackServerContext* context,
                                                   const v1::SetPolicyRequest* request,
                                                   v1::SetPolicyResponse* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(Set(context->peer(), *request, reply)));
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchPolicyResponse>* PolicyService::WatchPolicy(
    grpc::CallbackServerContext*, const v1::WatchPolicyRequest*) {
  return watchers_.Watch();
}

}  // namespace qrd
