// SPDX-License-Identifier: Apache-2.0
// SessionServer: sending on a connection, and how connections and sessions end.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/base/log_limit.h"
#include "daemon/session/attach_protocol.h"
#include "daemon/session/session_server.h"
#include "daemon/session/status_codes.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

void SessionServer::Send(Connection* connection, const v1::ServerMessage& message,
                         std::vector<int> fds) {
  if (connection->closed) return;
  std::string packet = message.SerializeAsString();
  if (connection->outbox.empty()) {
    const SendResult result = SendPacket(connection->fd.get(), packet, fds);
    if (result == SendResult::kSent) return;
    if (result == SendResult::kClosed) {
      CloseConnection(connection, "");
      return;
    }
  }
  if (connection->outbox.size() >= Connection::kOutboxMax) {
    WarnLimited(&slow_readers_,
                absl::StrFormat("process %d does not read its replies: closed", connection->pid));
    CloseConnection(connection, "protocol_error");
    return;
  }
  Connection::Packet queued;
  queued.bytes = std::move(packet);
  for (const int fd : fds) queued.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  connection->outbox.push_back(std::move(queued));
  Watch(connection);
}

void SessionServer::FlushOutbox(Connection* connection) {
  while (!connection->outbox.empty()) {
    const Connection::Packet& packet = connection->outbox.front();
    std::vector<int> fds;
    for (const UniqueFd& fd : packet.fds) fds.push_back(fd.get());
    const SendResult result = SendPacket(connection->fd.get(), packet.bytes, fds);
    if (result == SendResult::kWouldBlock) return;
    if (result == SendResult::kClosed) {
      CloseConnection(connection, "");
      return;
    }
    connection->outbox.pop_front();
  }
  Watch(connection);
}

void SessionServer::Watch(Connection* connection) {
  epoll_event event = {};
  event.events = EPOLLRDHUP;
  if (!connection->memory_pending) event.events |= EPOLLIN;
  if (!connection->outbox.empty()) event.events |= EPOLLOUT;
  if (event.events == connection->watched) return;
  connection->watched = event.events;
  event.data.fd = connection->fd.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection->fd.get(), &event);
}

void SessionServer::SendError(Connection* connection, const absl::Status& status) {
  v1::ServerMessage message;
  message.mutable_error()->set_status(static_cast<uint32_t>(ToShmStatus(status.code())));
  message.mutable_error()->set_message(std::string(status.message()));
  Send(connection, message);
}

void SessionServer::SayGoodbye(Connection* connection, shm::Status status,
                               const std::string& reason) {
  // What waits to be read comes first; behind that a client would not look for it.
  if (connection->closed || !connection->outbox.empty()) return;
  v1::ServerMessage message;
  message.mutable_error()->set_status(static_cast<uint32_t>(status));
  message.mutable_error()->set_message(reason);
  SendPacket(connection->fd.get(), message.SerializeAsString(), {});
  DiscardReceived(connection->fd.get());
}

void SessionServer::ProtocolError(Connection* connection, const absl::Status& status) {
  WarnLimited(&protocol_errors_,
              absl::StrFormat("process %d closed: %s", connection->pid, status.message()));
  SendError(connection, status);
  DiscardReceived(connection->fd.get());
  CloseConnection(connection, "protocol_error");
}

void SessionServer::CloseConnection(Connection* connection, std::string_view label) {
  if (connection->closed) return;
  connection->closed = true;
  any_closed_ = true;
  if (connection->session_id == 0) return;
  const bool joined = connection->state == Connection::State::kJoined;
  const bool busy = joined && connection->channel->in_flight() != 0;
  if (label.empty()) label = busy ? "lost" : "closed";
  if (metrics_ != nullptr && joined) metrics_->RecordSessionEnd(label);
  LeaveSession(connection, shm::Status::kPeerLost, "its connection closed");
}

void SessionServer::LeaveSession(Connection* connection, shm::Status status,
                                 const std::string& reason) {
  registry_->Leave(connection->session_id, /*gave_up=*/status == shm::Status::kTimeout);
  const bool joined = connection->state == Connection::State::kJoined;
  if (joined) engine_->EndSession(connection->session_id, status, reason, /*close=*/false);
  sessions_.erase(connection->session_id);
  session_count_.store(sessions_.size(), std::memory_order_relaxed);
  connection->session_id = 0;
  // The engine's share of a joined session's arenas lives until its last posts are answered:
  // cleared here, they would fail as MISMATCH (no such arena) on the other ranks instead of
  // PEER_LOST.
  if (connection->arenas && !joined) connection->arenas->Clear();
  connection->arenas.reset();
  connection->channel.reset();
  connection->memory_pending = false;
  connection->state = Connection::State::kGreeted;
  connection->deadline_ns = MonotonicNs() + kHandshakeTimeoutMs * kNsPerMs;
}

void SessionServer::DestroyClosed() {
  if (!any_closed_) return;
  any_closed_ = false;
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = it->second->closed ? connections_.erase(it) : std::next(it);
  }
}

void SessionServer::ReapDead(const std::vector<uint64_t>& session_ids) {
  std::vector<Connection*> connections;
  for (const uint64_t session_id : session_ids) {
    Connection* connection = FindSession(session_id);
    if (connection != nullptr) connections.push_back(connection);
  }
  ReapDead(connections);
}

std::vector<Connection*> SessionServer::AllConnections() const {
  std::vector<Connection*> connections;
  for (const auto& [fd, connection] : connections_) connections.push_back(connection.get());
  return connections;
}

void SessionServer::ReapDead(const std::vector<Connection*>& connections) {
  std::vector<pollfd> polls;
  for (const Connection* connection : connections) {
    polls.push_back({connection->fd.get(), POLLRDHUP, 0});
  }
  if (polls.empty() || poll(polls.data(), polls.size(), 0) <= 0) return;
  for (size_t i = 0; i < polls.size(); ++i) {
    if ((polls[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      CloseConnection(connections[i], "");
    }
  }
}

}  // namespace qrd
