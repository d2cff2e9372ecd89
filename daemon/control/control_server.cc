// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/control_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/directories.h"
#include "daemon/base/file.h"
#include "daemon/base/groups.h"
#include "daemon/base/log_limit.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr char kSocketName[] = "control.sock";
constexpr int kGrpcThreadsMax = 16;

// Both are switches of the whole process.
void InitPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

absl::StatusOr<std::optional<gid_t>> OptionalGroup(const std::string& name) {
  if (name.empty()) return std::optional<gid_t>();
  const absl::StatusOr<gid_t> group = FindGroup(name);
  if (!group.ok()) return group.status();
  return std::optional<gid_t>(*group);
}

}  // namespace

ControlServer::ControlServer(NodeSources node, PolicyStore* policy, CommunicatorRegistry* registry,
                             Metrics* metrics)
    : peers_(metrics),
      communicator_service_(registry, &peers_),
      policy_service_(policy, metrics, &peers_),
      node_service_(std::move(node)) {}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const Config& config, NodeSources node, PolicyStore* policy, CommunicatorRegistry* registry,
    Metrics* metrics, absl::Duration connection_idle) {
  std::unique_ptr<ControlServer> server(
      new ControlServer(std::move(node), policy, registry, metrics));
  const auto attach_group = OptionalGroup(config.attach_group);
  if (!attach_group.ok()) return attach_group.status();
  const auto admin_group = OptionalGroup(config.admin_group);
  if (!admin_group.ok()) return admin_group.status();
  server->admin_group_ = *admin_group;
  server->stop_event_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->stop_event_.valid()) return ErrnoError(errno, "cannot create an eventfd");
  if (absl::Status status = server->Build(connection_idle); !status.ok()) return status;
  const std::string path = absl::StrCat(config.runtime_directory, "/", kSocketName);
  absl::StatusOr<UniqueFd> listener = ListenUnix(path, SOCK_STREAM, *attach_group);
  if (!listener.ok()) return listener.status();
  server->path_ = path;
  server->listener_ = *std::move(listener);
  server->thread_ = std::thread([raw = server.get()] { raw->AcceptLoop(); });
  return server;
}

absl::Status ControlServer::Build(absl::Duration connection_idle) {
  InitPlugins();
  grpc::ServerBuilder builder;
  builder.RegisterService(&communicator_service_);
  builder.RegisterService(&policy_service_);
  builder.RegisterService(&node_service_);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(connection_idle)));
  // Only reflection uses the synchronous API.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("qrd-control");
  quota.SetMaxThreads(kGrpcThreadsMax);
  builder.SetResourceQuota(quota);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("cannot start the gRPC server");
  SetServing(false);
  return absl::OkStatus();
}

void ControlServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
  for (const char* name :
       {"qrd.v1.CommunicatorService", "qrd.v1.PolicyService", "qrd.v1.NodeService"}) {
    server_->GetHealthCheckService()->SetServingStatus(name, serving);
  }
}

void ControlServer::AcceptLoop() {
  while (true) {
    pollfd fds[2] = {{stop_event_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) {
      spdlog::error("control socket: poll: {}", strerror(errno));
      return;
    }
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0) AcceptOne();
  }
}

void ControlServer::AcceptOne() {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the backlog and poll() would return at once: wait for descriptors.
      static LogLimit limit;
      WarnLimited(&limit, absl::StrCat("control socket: cannot accept: ", strerror(errno)));
      pollfd stop = {stop_event_.get(), POLLIN, 0};
      poll(&stop, 1, /*timeout_ms=*/100);
    }
    return;
  }
  const absl::StatusOr<Peer> peer = IdentifyPeer(fd.get(), admin_group_);
  absl::Status status = peer.status();
  if (status.ok()) status = peers_.Add(fd.get(), *peer);
  if (!status.ok()) {
    static LogLimit limit;
    WarnLimited(&limit, absl::StrCat("control socket: connection refused: ", status.message()));
    return;
  }
  grpc::AddInsecureChannelFromFd(server_.get(), fd.release());
}

void ControlServer::Stop(absl::Duration timeout) {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    if (write(stop_event_.get(), &one, sizeof(one)) < 0) {
      spdlog::error("control socket: cannot stop the accept thread: {}", strerror(errno));
    }
    thread_.join();
    unlink(path_.c_str());
    listener_.reset();
  }
  policy_service_.EndWatches();
  if (server_ != nullptr) {
    server_->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
    server_->Wait();
    server_.reset();
  }
}

ControlServer::~ControlServer() { Stop(absl::ZeroDuration()); }

}  // namespace qrd
