// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/session_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/base/directories.h"
#include "daemon/base/file.h"
#include "daemon/base/groups.h"
#include "daemon/engine/operation.h"
#include "daemon/session/attach_protocol.h"
#include "daemon/session/status_codes.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr int kBacklog = 128;
constexpr int kAcceptBurst = 16;
constexpr int kMessageBurst = 8;
constexpr uint64_t kNsPerMs = 1'000'000;

// A session takes a few descriptors: all that the system allows, if it does.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("RLIMIT_NOFILE: {}", std::strerror(errno));
}

// Removes a socket that a dead daemon left. The caller holds the directory's lock.
absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoError(errno, path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrFormat("%s exists and is not a socket", path));
  }
  if (unlink(path.c_str()) != 0) return ErrnoError(errno, "unlink " + path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Open(const Config& config,
                                                                   CommunicatorRegistry* registry,
                                                                   Engine* engine, Metrics* metrics,
                                                                   const Backends* backends,
                                                                   NodeSegment* node) {
  std::unique_ptr<SessionServer> server(
      new SessionServer(config, registry, engine, metrics, backends, node));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

SessionServer::SessionServer(const Config& config, CommunicatorRegistry* registry, Engine* engine,
                             Metrics* metrics, const Backends* backends, NodeSegment* node)
    : config_(config),
      registry_(registry),
      engine_(engine),
      metrics_(metrics),
      backends_(backends),
      node_(node),
      budget_(std::make_shared<ArenaBudget>(config.arena_bytes_max)),
      device_budget_(std::make_shared<ArenaBudget>(config.device_arena_bytes_max != 0
                                                       ? config.device_arena_bytes_max
                                                       : backends->device_memory_bytes() / 10 * 8)),
      memory_(std::make_shared<MemoryThread>()),
      path_(config.runtime_directory + "/attach.sock") {
  engine_->SetSessionEndHook([this](uint64_t session_id, bool protocol_error, std::string reason) {
    Request request;
    request.kind = Request::Kind::kClose;
    request.session_ids = {session_id};
    request.status = protocol_error ? shm::Status::kInvalidArgument : shm::Status::kAborted;
    request.reason = std::move(reason);
    Post(std::move(request));
  });
  engine_->SetReportHook([this](bool warning, std::string line) {
    Request request;
    request.kind = Request::Kind::kLog;
    request.status = warning ? shm::Status::kAborted : shm::Status::kOk;
    request.reason = std::move(line);
    Post(std::move(request));
  });
}

SessionServer::~SessionServer() { Stop(); }

absl::Status SessionServer::Listen() {
  RaiseDescriptorLimit();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("runtime_directory: path %s has %d bytes, at most %d", path_, path_.size(),
                        sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  if (absl::Status status = RemoveStaleSocket(path_); !status.ok()) return status;
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid()) return ErrnoError(errno, "socket");
  // On Linux bind() takes the mode of the new file from the socket: no moment with a wider one.
  fchmod(listener_.get(), 0660);
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, "bind " + path_);
  }
  if (!config_.attach_group.empty()) {
    const absl::StatusOr<gid_t> group = FindGroup(config_.attach_group);
    if (!group.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("attach_group is '%s': no such group", config_.attach_group));
    }
    if (absl::Status status = GiveToGroup(path_, *group); !status.ok()) return status;
  }
  if (chmod(path_.c_str(), 0660) != 0) return ErrnoError(errno, "chmod " + path_);
  if (listen(listener_.get(), kBacklog) != 0) return ErrnoError(errno, "listen " + path_);
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = listener_.get();
  bool ok = epoll_.valid() && wake_.valid() && spare_.valid() &&
            epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0;
  event.data.fd = wake_.get();
  ok = ok && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0;
  return ok ? absl::OkStatus() : ErrnoError(errno, "attach socket: epoll");
}

absl::Status SessionServer::Start() {
  try {
    memory_->Start();
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    memory_->Stop();
    return absl::ResourceExhaustedError(absl::StrFormat("attach thread: %s", error.what()));
  }
  pthread_setname_np(thread_.native_handle(), "qrd-attach");
  return absl::OkStatus();
}

void SessionServer::StopAccepting() { accepting_.store(false); }

void SessionServer::Stop() {
  stop_.store(true);
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  if (listener_.valid()) {
    listener_.reset();
    unlink(path_.c_str());
  }
  for (const auto& [fd, connection] : connections_) {
    SayGoodbye(connection.get(), shm::Status::kDaemonLost, "the daemon stopped");
  }
  sessions_.clear();
  connections_.clear();
  session_count_.store(0, std::memory_order_relaxed);
  memory_->Stop();
}

void SessionServer::EndSessions(const std::vector<uint64_t>& session_ids, shm::Status status,
                                std::string reason) {
  Request request;
  request.session_ids = session_ids;
  request.status = status;
  request.reason = std::move(reason);
  Post(std::move(request));
}

void SessionServer::Post(Request request) {
  {
    MutexLock lock(&mu_);
    requests_.push_back(std::move(request));
  }
  Wake();
}

void SessionServer::Wake() {
  if (wake_.valid()) eventfd_write(wake_.get(), 1);
}

void SessionServer::Loop() {
  while (!stop_.load()) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_.get(), events, 64, TimeoutMs(MonotonicNs()));
    // Ends before beginnings: a client that was killed makes room for its successor.
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == wake_.get()) {
        eventfd_t ignored;
        eventfd_read(wake_.get(), &ignored);
      } else if (events[i].data.fd != listener_.get()) {
        OnEvent(events[i].data.fd, events[i].events);
      }
    }
    RunRequests();
    Expire(MonotonicNs());
    DestroyClosed();
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == listener_.get()) Accept();
    }
  }
}

int SessionServer::TimeoutMs(uint64_t now_ns) const {
  uint64_t earliest_ns = UINT64_MAX;
  for (const auto& [fd, connection] : connections_) {
    earliest_ns = std::min(earliest_ns, connection->deadline_ns);
  }
  if (earliest_ns == UINT64_MAX) return -1;
  if (earliest_ns <= now_ns) return 0;
  return static_cast<int>(std::min<uint64_t>((earliest_ns - now_ns) / kNsPerMs + 1, 60'000));
}

void SessionServer::Accept() {
  for (int i = 0; i < kAcceptBurst; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno != EMFILE && errno != ENFILE) return;
      // Out of descriptors: use the spare one to turn the client away, or epoll would report for
      // ever.
      spare_.reset();
      fd.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd.valid()) {
        RefuseConnection(std::move(fd), absl::ResourceExhaustedError(
                                            "the daemon has no descriptors left (RLIMIT_NOFILE)"));
      }
      spare_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
      continue;
    }
    if (!accepting_.load()) {
      RefuseConnection(std::move(fd), absl::UnavailableError("the daemon is draining"));
      continue;
    }
    const size_t connections_max = size_t{config_.sessions_max} + kHandshakesMax;
    if (connections_.size() >= connections_max) {
      ReapDead(AllConnections());
      DestroyClosed();
    }
    if (connections_.size() >= connections_max) {
      RefuseConnection(std::move(fd),
                       absl::ResourceExhaustedError(absl::StrFormat(
                           "there are %d connections: sessions_max is %d (and %d handshakes)",
                           connections_.size(), config_.sessions_max, kHandshakesMax)));
      continue;
    }
    ucred peer = {};
    socklen_t peer_bytes = sizeof(peer);
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.fd = fd.get();
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) != 0 ||
        epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
      RefuseConnection(std::move(fd), absl::ResourceExhaustedError(std::strerror(errno)));
      continue;
    }
    auto connection = std::make_unique<Connection>();
    connection->watched = event.events;
    connection->pid = peer.pid;
    connection->uid = peer.uid;
    connection->deadline_ns = MonotonicNs() + kHandshakeTimeoutMs * kNsPerMs;
    const int number = fd.get();
    connection->fd = std::move(fd);
    connections_.emplace(number, std::move(connection));
  }
}

void SessionServer::RefuseConnection(UniqueFd fd, const absl::Status& why) {
  v1::ServerMessage message;
  message.mutable_error()->set_status(static_cast<uint32_t>(ToShmStatus(why.code())));
  message.mutable_error()->set_message(std::string(why.message()));
  SendPacket(fd.get(), message.SerializeAsString(), {});
  DiscardReceived(fd.get());
  if (metrics_ != nullptr) metrics_->RecordAttach(ToShmStatus(why.code()));
}

void SessionServer::RunRequests() {
  std::vector<Request> requests;
  {
    MutexLock lock(&mu_);
    requests.swap(requests_);
  }
  for (const Request& request : requests) {
    if (request.kind == Request::Kind::kPlaced) {
      FinishPlacing(request);
      continue;
    }
    if (request.kind == Request::Kind::kLog) {
      const bool warning = request.status != shm::Status::kOk;
      spdlog::log(warning ? spdlog::level::warn : spdlog::level::info, "{}", request.reason);
      continue;
    }
    for (const uint64_t session_id : request.session_ids) {
      Connection* connection = FindSession(session_id);
      if (connection != nullptr) RunRequest(request, connection);
    }
  }
}

void SessionServer::RunRequest(const Request& request, Connection* connection) {
  if (request.kind == Request::Kind::kArenaDone) {
    FinishArenaAlloc(connection, request.arena);
  } else if (request.kind == Request::Kind::kStreamDone) {
    FinishStreamOpen(connection, request);
  } else if (connection->state == Connection::State::kJoining) {
    SendError(connection, absl::AbortedError(request.reason));
    CloseConnection(connection, "deleted");
  } else if (request.kind == Request::Kind::kEnd) {
    registry_->MarkBroken(connection->session_id);
    engine_->EndSession(connection->session_id, request.status, request.reason, /*close=*/true);
  } else {
    const bool broke_rules = request.status == shm::Status::kInvalidArgument;
    if (broke_rules) {
      WarnLimited(&protocol_errors_,
                  absl::StrFormat("session %d (process %d) closed: %s", connection->session_id,
                                  connection->pid, request.reason));
    }
    SayGoodbye(connection, request.status, request.reason);
    CloseConnection(connection, broke_rules ? "protocol_error" : "deleted");
  }
}

void SessionServer::Expire(uint64_t now_ns) {
  for (const auto& [fd, owned] : connections_) {
    Connection* connection = owned.get();
    if (connection->closed || connection->deadline_ns > now_ns) continue;
    if (connection->state == Connection::State::kJoining) {
      uint32_t missing_mask = 0;
      for (const uint32_t rank : registry_->MissingRanks(
               connection->communicator, connection->group, connection->incarnation)) {
        missing_mask |= uint32_t{1} << rank;
      }
      const absl::Status status = absl::DeadlineExceededError(
          absl::StrFormat("%s of group '%s' of communicator '%s' did not attach within %d ms",
                          RanksText(missing_mask), connection->group, connection->communicator,
                          connection->join_timeout_ms));
      if (metrics_ != nullptr) metrics_->RecordAttach(shm::Status::kTimeout);
      LeaveSession(connection, shm::Status::kTimeout, "");
      SendError(connection, status);
    } else {
      ProtocolError(connection, absl::DeadlineExceededError(absl::StrFormat(
                                    "no %s within %d ms",
                                    connection->state == Connection::State::kNew ? "Hello" : "Join",
                                    kHandshakeTimeoutMs)));
    }
  }
}

void SessionServer::OnEvent(int fd, uint32_t events) {
  const auto it = connections_.find(fd);
  if (it == connections_.end() || it->second->closed) return;
  Connection* connection = it->second.get();
  if ((events & EPOLLOUT) != 0) FlushOutbox(connection);
  if ((events & EPOLLIN) != 0 && !connection->closed) OnReadable(connection);
  if ((events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) CloseConnection(connection, "");
}

void SessionServer::OnReadable(Connection* connection) {
  for (int i = 0; i < kMessageBurst && !connection->closed && !connection->memory_pending; ++i) {
    Received received = ReceiveMessage(connection->fd.get());
    switch (received.kind) {
      case Received::Kind::kNothing:
        return;
      case Received::Kind::kClosed:
        CloseConnection(connection, "");
        return;
      case Received::Kind::kInvalid:
        ProtocolError(connection, received.error);
        return;
      case Received::Kind::kMessage:
        HandleMessage(connection, received.message);
        break;
    }
  }
}

Connection* SessionServer::FindSession(uint64_t session_id) const {
  const auto it = sessions_.find(session_id);
  return it == sessions_.end() ? nullptr : it->second;
}

}  // namespace qrd
