// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/node_service.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "daemon/base/proto_convert.h"
#include "daemon/base/version.h"
#include "google/protobuf/util/time_util.h"

namespace qrd {
namespace {

// The lines of one codec, put together.
struct CodecLines {
  std::set<Dtype> dtypes;
  std::set<Algorithm> algorithms;
  uint32_t world_size_min = kWorldSizeMax, world_size_max = 0;
};

void AddInstances(const Backend& backend, v1::BackendCapability* out) {
  // Types with an epilogue and types without are lines of their own.
  std::map<std::pair<Codec, Epilogue>, CodecLines> by_kind;
  for (const KernelInstance& instance : backend.instances()) {
    CodecLines& lines = by_kind[{instance.codec, instance.epilogue}];
    lines.dtypes.insert(instance.dtype);
    lines.algorithms.insert(instance.algorithm);
    lines.world_size_min = std::min(lines.world_size_min, instance.world_size_min);
    lines.world_size_max = std::max(lines.world_size_max, instance.world_size_max);
  }
  for (const auto& [kind, lines] : by_kind) {
    const auto [codec, epilogue] = kind;
    v1::KernelInstance* instance = out->add_instances();
    instance->set_codec(ToProto(codec));
    for (const Dtype dtype : lines.dtypes) {
      instance->add_dtypes(ToProto(dtype));
      instance->add_wire_ratios(static_cast<double>(EncodedBytes(codec, dtype, kTileElements)) /
                                static_cast<double>(kTileElements * DtypeBytes(dtype)));
    }
    for (const Algorithm algorithm : lines.algorithms) {
      instance->add_algorithms(ToProto(algorithm));
    }
    if (epilogue != Epilogue::kNone) instance->add_epilogues(ToProto(epilogue));
    instance->set_world_size_min(lines.world_size_min);
    instance->set_world_size_max(lines.world_size_max);
  }
}

}  // namespace

v1::Capabilities DescribeCapabilities(std::span<const Backend* const> backends,
                                      const Config& config) {
  v1::Capabilities reply;
  for (const Backend* backend : backends) {
    v1::BackendCapability* capability = reply.add_backends();
    capability->set_backend(backend->name() == "gpu" ? v1::BACKEND_GPU : v1::BACKEND_HOST);
    capability->set_target(backend->target());
    for (const DeviceInfo& info : backend->devices()) {
      v1::Device* device = capability->add_devices();
      device->set_id(info.id);
      device->set_description(info.description);
      device->set_memory_bytes(info.memory_bytes);
    }
    AddInstances(*backend, capability);
    if (!backend->enqueued()) continue;
    const absl::StatusOr<std::string> library = backend->collective_library();
    if (library.ok()) capability->set_collective_library(*library);
    if (!library.ok()) {
      capability->set_collective_library_missing(std::string(library.status().message()));
    }
  }
  v1::Limits* limits = reply.mutable_limits();
  limits->set_world_size_max(kWorldSizeMax);
  limits->set_communicators_max(config.communicators_max);
  limits->set_sessions_max(config.sessions_max);
  limits->set_operations_in_flight_max(config.operations_in_flight_max);
  limits->set_arenas_per_session_max(config.arenas_per_session_max);
  limits->set_arena_bytes_per_session_max(config.arena_bytes_per_session_max);
  limits->set_arena_bytes_max(config.arena_bytes_max);
  limits->set_policy_rules_max(kPolicyRulesMax);
  reply.set_shm_layout_version_min(shm::kLayoutVersion);
  reply.set_shm_layout_version_max(shm::kLayoutVersion);
  return reply;
}

grpc::ServerUnaryReactor* NodeService::GetStatus(grpc::CallbackServerContext* context,
                                                 const v1::GetStatusRequest*,
                                                 v1::NodeStatus* reply) {
  reply->set_version(kVersion);
  reply->set_state(sources_.state());
  reply->set_pid(getpid());
  *reply->mutable_start_time() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      absl::ToUnixNanos(sources_.start_time));
  reply->set_runtime_directory(sources_.config->runtime_directory);
  reply->set_state_directory(sources_.config->state_directory);
  reply->set_metrics_address(sources_.metrics_address);
  reply->set_communicators(static_cast<uint32_t>(sources_.registry->communicator_count()));
  reply->set_sessions(static_cast<uint32_t>(sources_.sessions()));
  reply->set_arena_bytes(sources_.arena_bytes());
  reply->set_policy_generation(sources_.policy->current()->generation());
  reply->set_worker_threads(sources_.config->worker_threads);
  reply->set_operations_total(sources_.metrics->operations_total());
  reply->set_operations_failed_total(sources_.metrics->operations_failed_total());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::GetCapabilities(grpc::CallbackServerContext* context,
                                                       const v1::GetCapabilitiesRequest*,
                                                       v1::Capabilities* reply) {
  *reply = DescribeCapabilities(sources_.backends, *sources_.config);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace qrd
