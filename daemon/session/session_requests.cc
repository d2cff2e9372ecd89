// SPDX-License-Identifier: Apache-2.0
// SessionServer: what each message of a client does.
#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/base/names.h"
#include "daemon/base/version.h"
#include "daemon/session/session_server.h"
#include "daemon/session/status_codes.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint32_t kAttachTimeoutMsMax = 3'600'000;
constexpr size_t kAbortReasonBytesMax = 128;
constexpr size_t kClientVersionBytesMax = 64;
constexpr size_t kDeviceBytesMax = 64;

absl::Status NoDevice() {
  return absl::FailedPreconditionError(
      "this session's tensors are in host memory: it joined without a device");
}

}  // namespace

void SessionServer::HandleMessage(Connection* connection, const v1::ClientMessage& message) {
  using State = Connection::State;
  const bool is_hello = message.message_case() == v1::ClientMessage::kHello;
  if (is_hello != (connection->state == State::kNew)) {
    ProtocolError(connection, absl::FailedPreconditionError(
                                  is_hello ? "a second Hello" : "the first message must be Hello"));
    return;
  }
  if (connection->state == State::kJoining) {
    ProtocolError(connection, absl::FailedPreconditionError("a message before the reply to Join"));
    return;
  }
  const bool is_join = message.message_case() == v1::ClientMessage::kJoin;
  if (!is_hello && is_join == (connection->state == State::kJoined)) {
    SendError(connection,
              absl::FailedPreconditionError(is_join ? "this connection has joined already"
                                                    : "this connection has not joined"));
    return;
  }
  switch (message.message_case()) {
    case v1::ClientMessage::kHello:
      return HandleHello(connection, message.hello());
    case v1::ClientMessage::kJoin:
      return HandleJoin(connection, message.join());
    case v1::ClientMessage::kArenaAlloc:
      return HandleArenaAlloc(connection, message.arena_alloc());
    case v1::ClientMessage::kArenaFree:
      return HandleArenaFree(connection, message.arena_free());
    case v1::ClientMessage::kAbort:
      return HandleAbort(connection, message.abort());
    case v1::ClientMessage::kArenaImport:
      return HandleArenaImport(connection, message.arena_import());
    case v1::ClientMessage::kStreamOpen:
      return HandleStreamOpen(connection);
    case v1::ClientMessage::MESSAGE_NOT_SET:
      return;
  }
}

void SessionServer::HandleHello(Connection* connection, const v1::Hello& hello) {
  if (hello.layout_version() != shm::kLayoutVersion) {
    ProtocolError(connection,
                  absl::FailedPreconditionError(absl::StrFormat(
                      "layout_version is %d: daemon %s speaks %d; client and daemon must be of one "
                      "version",
                      hello.layout_version(), kVersion, shm::kLayoutVersion)));
    return;
  }
  if (hello.client_version().size() > kClientVersionBytesMax) {
    ProtocolError(connection, absl::InvalidArgumentError(absl::StrFormat(
                                  "client_version has %d bytes: at most %d",
                                  hello.client_version().size(), kClientVersionBytesMax)));
    return;
  }
  spdlog::debug("process {} (uid {}) says hello, version {}", connection->pid, connection->uid,
                Quoted(hello.client_version()));
  connection->state = Connection::State::kGreeted;
  connection->deadline_ns = MonotonicNs() + kHandshakeTimeoutMs * kNsPerMs;
  v1::ServerMessage reply;
  reply.mutable_welcome()->set_layout_version(shm::kLayoutVersion);
  reply.mutable_welcome()->set_daemon_version(kVersion);
  reply.mutable_welcome()->set_attach_timeout_ms(config_.attach_timeout_ms);
  Send(connection, reply);
}

absl::StatusOr<std::string> SessionServer::FindDevice(const v1::Join& join) const {
  if (join.device().empty()) return std::string();
  if (join.device().size() > kDeviceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device has %d bytes: at most %d", join.device().size(), kDeviceBytesMax));
  }
  absl::StatusOr<Backend*> gpu = backends_->Get(v1::BACKEND_GPU);
  if (!gpu.ok()) {
    return absl::FailedPreconditionError(absl::StrFormat("device is %s: %s", Quoted(join.device()),
                                                         backends_->gpu_status.message()));
  }
  absl::StatusOr<std::string> id = (*gpu)->FindDevice(join.device());
  if (!id.ok()) {
    return absl::Status(id.status().code(), absl::StrFormat("device: %s", id.status().message()));
  }
  return id;
}

absl::Status SessionServer::PrepareJoin(Connection* connection, const v1::Join& join) {
  if (!accepting_.load()) return absl::UnavailableError("the daemon is draining");
  if (join.timeout_ms() > kAttachTimeoutMsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("timeout_ms is %d: want 0 to %d", join.timeout_ms(), kAttachTimeoutMsMax));
  }
  if (sessions_.size() >= config_.sessions_max) ReapDead(AllConnections());
  if (sessions_.size() >= config_.sessions_max) {
    return absl::ResourceExhaustedError(absl::StrFormat("there are %d sessions: sessions_max is %d",
                                                        sessions_.size(), config_.sessions_max));
  }
  if (join.world_size() < 1 || join.world_size() > shm::kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("world_size is %d: want 1 to %d", join.world_size(), shm::kWorldSizeMax));
  }
  absl::StatusOr<std::string> device = FindDevice(join);
  if (!device.ok()) return device.status();
  ArenaCounters counters;
  auto arenas = std::make_shared<ArenaTable>(
      device->empty() ? backends_->host.get() : backends_->gpu.get(), *device,
      ArenaTable::Limits{config_.arenas_per_session_max, config_.arena_bytes_per_session_max},
      device->empty() ? budget_ : device_budget_, memory_, counters);
  const uint64_t session_id = next_session_id_++;
  absl::StatusOr<std::shared_ptr<SessionChannel>> channel =
      SessionChannel::Create(session_id, join.rank(), join.world_size(),
                             config_.operations_in_flight_max, connection->pid, arenas);
  if (!channel.ok()) return channel.status();

  const std::string group = join.group().empty() ? "default" : join.group();
  Member member;
  member.session_id = session_id;
  member.rank = join.rank();
  member.pid = connection->pid;
  member.uid = connection->uid;
  member.attach_time = absl::Now();
  member.arenas = counters.arenas;
  member.arena_bytes = counters.bytes;
  member.backend = device->empty() ? v1::BACKEND_HOST : v1::BACKEND_GPU;
  // Killed clients whose end epoll has yet to report must not hold a rank.
  ReapDead(registry_->GroupSessions(join.communicator(), group));
  absl::StatusOr<CommunicatorRegistry::JoinResult> joined = registry_->Join(
      join.communicator(), group, join.world_size(), join.create_if_absent(), member);
  if (!joined.ok()) return joined.status();

  connection->state = Connection::State::kJoining;
  connection->session_id = session_id;
  connection->communicator = join.communicator();
  connection->group = group;
  connection->device = *std::move(device);
  connection->rank = join.rank();
  connection->world_size = join.world_size();
  connection->incarnation = joined->incarnation;
  connection->join_timeout_ms =
      join.timeout_ms() != 0 ? join.timeout_ms() : config_.attach_timeout_ms;
  connection->deadline_ns = MonotonicNs() + connection->join_timeout_ms * kNsPerMs;
  connection->arenas = std::move(arenas);
  connection->channel = *std::move(channel);
  sessions_[session_id] = connection;
  session_count_.store(sessions_.size(), std::memory_order_relaxed);
  if (joined->complete) CompleteGroup(*joined);
  return absl::OkStatus();
}

void SessionServer::HandleJoin(Connection* connection, const v1::Join& join) {
  const absl::Status status = PrepareJoin(connection, join);
  if (status.ok()) return;
  if (metrics_ != nullptr) metrics_->RecordAttach(ToShmStatus(status.code()));
  SendError(connection, status);
}

void SessionServer::RunOnMemoryThread(Connection* connection, std::function<void(Request*)> task) {
  // One request at a time: replies keep their order.
  connection->memory_pending = true;
  Watch(connection);
  memory_->Post([this, task = std::move(task), session_id = connection->session_id] {
    Request done;
    done.session_ids = {session_id};
    task(&done);
    Post(std::move(done));
  });
}

void SessionServer::HandleArenaAlloc(Connection* connection, const v1::ArenaAlloc& request) {
  RunOnMemoryThread(connection, [arenas = connection->arenas, bytes = request.bytes()](Request* r) {
    r->kind = Request::Kind::kArenaDone;
    r->arena = arenas->Allocate(bytes);
  });
}

void SessionServer::HandleArenaImport(Connection* connection, const v1::ArenaImport& request) {
  if (connection->device.empty()) return SendError(connection, NoDevice());
  RunOnMemoryThread(connection, [arenas = connection->arenas, request](Request* r) {
    r->kind = Request::Kind::kArenaDone;
    r->arena = arenas->Import(request.ipc_handle(), request.offset_bytes(), request.bytes());
  });
}

void SessionServer::HandleStreamOpen(Connection* connection) {
  if (connection->device.empty()) return SendError(connection, NoDevice());
  if (connection->stream_opened) {
    return SendError(connection,
                     absl::FailedPreconditionError("the stream segment is open already"));
  }
  connection->stream_opened = true;
  RunOnMemoryThread(connection, [this, session_id = connection->session_id](Request* r) {
    r->kind = Request::Kind::kStreamDone;
    r->stream =
        std::make_shared<absl::StatusOr<std::unique_ptr<StreamChannel>>>(StreamChannel::Create(
            session_id, config_.stream_entries_per_session, backends_->gpu.get()));
  });
}

void SessionServer::FinishStreamOpen(Connection* connection, const Request& request) {
  connection->memory_pending = false;
  Watch(connection);
  if (!request.stream->ok()) {
    connection->stream_opened = false;
    return SendError(connection, request.stream->status());
  }
  std::unique_ptr<StreamChannel> stream = std::move(**request.stream);
  v1::ServerMessage reply;
  reply.mutable_stream_opened()->set_stream_segment_bytes(stream->segment_bytes());
  reply.mutable_stream_opened()->set_entry_count(stream->entry_count());
  const int fd = fcntl(stream->segment_fd(), F_DUPFD_CLOEXEC, 0);
  const UniqueFd copy(fd);
  stream->CloseSegmentFd();
  if (!copy.valid()) {
    return SendError(connection,
                     absl::ResourceExhaustedError("the daemon has no descriptors left"));
  }
  // The engine first: the client's streams may announce something as soon as it has the reply.
  engine_->AddStream(connection->session_id, std::move(stream));
  Send(connection, reply, {copy.get()});
}

void SessionServer::FinishArenaAlloc(Connection* connection,
                                     const absl::StatusOr<ArenaTable::Allocated>& arena) {
  connection->memory_pending = false;
  Watch(connection);
  if (!arena.ok()) {
    SendError(connection, arena.status());
    return;
  }
  v1::ServerMessage reply;
  reply.mutable_arena_allocated()->set_arena_id(arena->arena_id);
  reply.mutable_arena_allocated()->set_generation(arena->generation);
  reply.mutable_arena_allocated()->set_bytes(arena->bytes);
  reply.mutable_arena_allocated()->set_ipc_handle(arena->ipc_handle);
  const std::shared_ptr<ArenaTable> arenas = connection->arenas;  // Send() may close
  Send(connection, reply, arena->fd >= 0 ? std::vector<int>{arena->fd} : std::vector<int>{});
  arenas->CloseFd(arena->arena_id, arena->generation);
}

void SessionServer::HandleArenaFree(Connection* connection, const v1::ArenaFree& request) {
  const absl::Status status = connection->arenas->Free(request.arena_id(), request.generation());
  if (!status.ok()) {
    SendError(connection, status);
    return;
  }
  v1::ServerMessage reply;
  reply.mutable_arena_freed();
  Send(connection, reply);
}

void SessionServer::HandleAbort(Connection* connection, const v1::Abort& request) {
  if (request.reason().size() > kAbortReasonBytesMax) {
    SendError(connection, absl::InvalidArgumentError(
                              absl::StrFormat("reason has %d bytes: at most %d",
                                              request.reason().size(), kAbortReasonBytesMax)));
    return;
  }
  registry_->MarkBroken(connection->session_id);
  engine_->AbortGroup(connection->session_id, request.reason());
  v1::ServerMessage reply;
  reply.mutable_aborted();
  Send(connection, reply);
}

}  // namespace qrd
