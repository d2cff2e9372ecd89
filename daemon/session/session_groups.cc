// SPDX-License-Identifier: Apache-2.0
// SessionServer: how the sessions of a complete group start.
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/session/session_server.h"
#include "daemon/session/status_codes.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
// Pools on the devices are made in this time, or the ranks are told.
constexpr uint64_t kPlaceTimeoutMs = 60'000;

}  // namespace

void SessionServer::CompleteGroup(const CommunicatorRegistry::JoinResult& result) {
  std::vector<Connection*> members;
  for (const uint64_t session_id : result.session_ids) members.push_back(FindSession(session_id));
  if (members[0]->device.empty()) {
    StartGroup(result, members, nullptr);
  } else {
    PlaceGroup(result, members);
  }
}

// Allocates on the devices, so not on this thread. The sessions are joining until it is done.
void SessionServer::PlaceGroup(const CommunicatorRegistry::JoinResult& result,
                               const std::vector<Connection*>& members) {
  std::vector<std::string> devices;
  for (Connection* member : members) {
    devices.push_back(member->device);
    member->deadline_ns = MonotonicNs() + kPlaceTimeoutMs * kNsPerMs;
  }
  memory_->Post(
      [this, result, devices = std::move(devices), communicator = members[0]->communicator] {
        Request done;
        done.kind = Request::Kind::kPlaced;
        done.joined = result;
        absl::StatusOr<std::unique_ptr<DeviceGroup>> placed =
            backends_->gpu->PlaceGroup(communicator, devices);
        if (placed.ok()) {
          done.device_group = std::shared_ptr<DeviceGroup>(*std::move(placed));
        } else {
          done.device_group = std::move(placed).status();
        }
        Post(std::move(done));
      });
}

void SessionServer::FinishPlacing(const Request& request) {
  std::vector<Connection*> members;
  for (const uint64_t session_id : request.joined.session_ids) {
    Connection* member = FindSession(session_id);
    if (member != nullptr && member->state == Connection::State::kJoining) {
      members.push_back(member);
    }
  }
  if (request.device_group.ok() && members.size() == request.joined.session_ids.size()) {
    return StartGroup(request.joined, members, *request.device_group);
  }
  // Somebody left meanwhile, or the devices have no room: nobody can go on.
  const absl::Status status =
      request.device_group.ok()
          ? absl::AbortedError("a rank of the group left while it was placed on its devices")
          : request.device_group.status();
  for (Connection* member : members) {
    if (metrics_ != nullptr) metrics_->RecordAttach(ToShmStatus(status.code()));
    LeaveSession(member, ToShmStatus(status.code()), "");
    SendError(member, status);
  }
  if (request.device_group.ok())
    memory_->Post([group = *request.device_group]() mutable { group.reset(); });
}

void SessionServer::StartGroup(const CommunicatorRegistry::JoinResult& result,
                               const std::vector<Connection*>& members,
                               std::shared_ptr<DeviceGroup> device_group) {
  GroupSpec spec;
  spec.incarnation = result.incarnation;
  spec.counters = result.counters;
  for (Connection* member : members) spec.channels.push_back(member->channel);
  if (device_group != nullptr) {
    spec.backend = backends_->gpu.get();
    spec.device_group = std::move(device_group);
    spec.dispose = [memory = memory_](std::shared_ptr<DeviceGroup> group) {
      memory->Post([group = std::move(group)]() mutable { group.reset(); });
    };
  } else {
    spec.backend = backends_->host.get();
  }
  spec.communicator = members[0]->communicator;
  spec.group = members[0]->group;
  const auto weight = config_.communicator_weights.find(spec.communicator);
  if (weight != config_.communicator_weights.end()) spec.weight = weight->second;
  spdlog::info("group '{}' of communicator '{}' is complete: {} ranks, incarnation {}", spec.group,
               spec.communicator, members.size(), spec.incarnation);
  // The engine first: a client may post as soon as it has its reply.
  engine_->AddGroup(std::move(spec));
  for (Connection* member : members) {
    member->state = Connection::State::kJoined;
    member->deadline_ns = UINT64_MAX;
  }
  for (Connection* member : members) SendJoined(member, result.incarnation);
}

void SessionServer::SendJoined(Connection* member, uint64_t incarnation) {
  const std::shared_ptr<SessionChannel> channel = member->channel;
  v1::ServerMessage reply;
  v1::Joined* joined = reply.mutable_joined();
  joined->set_session_id(member->session_id);
  joined->set_node_segment_bytes(node_->segment_bytes());
  joined->set_session_segment_bytes(channel->segment_bytes());
  joined->set_incarnation(incarnation);
  joined->set_operation_timeout_ms(config_.operation_timeout_ms);
  joined->set_spin_us_max(config_.spin_us_max);
  joined->set_device(member->device);
  if (metrics_ != nullptr) metrics_->RecordAttach(shm::Status::kOk);
  Send(member, reply, {node_->fd(), channel->segment_fd(), channel->doorbell_fd()});
  channel->CloseSegmentFd();
}

}  // namespace qrd
