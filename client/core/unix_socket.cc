// SPDX-License-Identifier: Apache-2.0
#include "client/core/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"

namespace qrd::client {
namespace {

// Waits until the descriptor is ready or the deadline passes. False: the deadline passed.
bool PollUntil(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, RemainingPollMs(deadline_ns));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the following call reports the error
    if (RemainingNs(deadline_ns) == 0) return false;
  }
}

// The numbers of shm::Status and qrd_status are the same; anything else is the daemon's fault.
qrd_status StatusOf(const v1::AttachError& error) {
  if (error.status() < QRD_INVALID_ARGUMENT || error.status() > QRD_INTERNAL) return QRD_INTERNAL;
  return static_cast<qrd_status>(error.status());
}

qrd_status ConnectError(int error, const std::string& path) {
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case ENOTDIR:
      return Fail(QRD_UNAVAILABLE,
                  "no qrd daemon answers at %s: %s. Is it running, with this runtime directory?",
                  path.c_str(), strerror(error));
    case EACCES:
    case EPERM:
      return Fail(QRD_PERMISSION_DENIED,
                  "%s: %s. The user must be in the group of the socket (attach_group)",
                  path.c_str(), strerror(error));
    case EPROTOTYPE:
      return Fail(QRD_UNAVAILABLE, "%s is not an attach socket (want SOCK_SEQPACKET)",
                  path.c_str());
    default:
      return Fail(QRD_UNAVAILABLE, "connect to %s: %s", path.c_str(), strerror(error));
  }
}

}  // namespace

qrd_status UnixSocket::Connect(const std::string& path, uint64_t deadline_ns) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Fail(QRD_INVALID_ARGUMENT,
                "runtime_directory: %s has %zu bytes, a socket path at most %zu", path.c_str(),
                path.size(), sizeof(address.sun_path) - 1);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  fd_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd_.valid()) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "cannot make a socket: %s", strerror(errno));
  }
  broken_ = false;
  for (;;) {
    if (connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return QRD_OK;
    }
    if (errno == EINTR) continue;
    // A full backlog. There is no event for "room again" on a unix socket, so try again soon.
    if (errno != EAGAIN) return ConnectError(errno, path);
    if (RemainingNs(deadline_ns) == 0) {
      return Fail(QRD_TIMEOUT, "the daemon at %s accepted no connection in time", path.c_str());
    }
    poll(nullptr, 0, 1);
  }
}

qrd_status UnixSocket::Break(qrd_status status) {
  broken_ = true;
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
  return status;
}

qrd_status UnixSocket::Send(const std::string& bytes, const char* what, uint64_t deadline_ns) {
  for (;;) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return QRD_OK;
    if (sent >= 0) return Break(Fail(QRD_INTERNAL, "%s: a packet was cut", what));
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      // A daemon that refuses a session says why before it closes; that is worth more than EPIPE.
      qrd_status status = QRD_DAEMON_LOST;
      std::string text;
      if (LastWords(&status, &text)) return Break(Fail(status, "%s: %s", what, text.c_str()));
      return Break(Fail(QRD_DAEMON_LOST, "%s: the daemon closed the connection (%s)", what,
                        strerror(errno)));
    }
    if (!PollUntil(fd_.get(), POLLOUT, deadline_ns)) {
      return Break(Fail(QRD_TIMEOUT, "%s: the daemon did not read the request in time", what));
    }
  }
}

qrd_status UnixSocket::Receive(const char* what, uint64_t deadline_ns, v1::ServerMessage* reply,
                               std::vector<UniqueFd>* fds) {
  char bytes[kMessageBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
  msghdr header{};
  iovec part{bytes, sizeof(bytes)};
  ssize_t received = -1;
  bool was_reset = false;
  for (;;) {
    header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    received = recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received > 0) break;
    if (received < 0 && errno == EINTR) continue;
    // Told once, before what the daemon said last: it closed with requests unread.
    if (received < 0 && errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
    if (received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      return Break(Fail(QRD_DAEMON_LOST, "%s: the daemon closed the connection", what));
    }
    if (!PollUntil(fd_.get(), POLLIN, deadline_ns)) {
      return Break(Fail(QRD_TIMEOUT, "%s: the daemon did not answer in time", what));
    }
  }
  // Take ownership of every descriptor first: each way out below must close them.
  fds->clear();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return Break(Fail(QRD_INTERNAL, "%s: the daemon's reply has more than %zu bytes", what,
                      kMessageBytesMax));
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return Break(Fail(QRD_RESOURCE_EXHAUSTED,
                      "%s: descriptors of the daemon's reply were lost (limit of open files?)",
                      what));
  }
  if (!reply->ParseFromArray(bytes, static_cast<int>(received))) {
    return Break(
        Fail(QRD_INTERNAL, "%s: the daemon's reply of %zd bytes cannot be parsed", what, received));
  }
  return QRD_OK;
}

qrd_status UnixSocket::Call(const v1::ClientMessage& request, const char* what,
                            v1::ServerMessage::MessageCase want, size_t want_fds,
                            uint64_t deadline_ns, v1::ServerMessage* reply,
                            std::vector<UniqueFd>* fds) {
  if (broken_ || !fd_.valid()) {
    return Fail(QRD_DAEMON_LOST, "%s: the connection to the daemon is gone", what);
  }
  const std::string bytes = request.SerializeAsString();
  if (bytes.size() > kMessageBytesMax) {
    return Fail(QRD_INVALID_ARGUMENT, "%s: the request has %zu bytes, at most %zu", what,
                bytes.size(), kMessageBytesMax);
  }
  if (qrd_status status = Send(bytes, what, deadline_ns); status != QRD_OK) return status;
  std::vector<UniqueFd> received;
  if (qrd_status status = Receive(what, deadline_ns, reply, &received); status != QRD_OK) {
    return status;
  }
  if (reply->has_error()) {
    return Fail(StatusOf(reply->error()), "%.600s", reply->error().message().c_str());
  }
  if (reply->message_case() != want) {
    return Break(Fail(QRD_INTERNAL, "%s: the daemon's reply is message %d, want %d", what,
                      static_cast<int>(reply->message_case()), static_cast<int>(want)));
  }
  if (received.size() != want_fds) {
    return Break(Fail(QRD_INTERNAL, "%s: the daemon's reply carries %zu descriptors, want %zu",
                      what, received.size(), want_fds));
  }
  if (fds != nullptr) *fds = std::move(received);
  return QRD_OK;
}

void UnixSocket::Shutdown() const {
  if (fd_.valid()) shutdown(fd_.get(), SHUT_RDWR);
}

bool UnixSocket::HungUp() const {
  pollfd entry{fd_.get(), POLLRDHUP, 0};
  // A negative descriptor would be ignored by poll, so a closed socket is asked for by hand.
  if (!fd_.valid()) return true;
  return poll(&entry, 1, 0) > 0 &&
         (entry.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

bool UnixSocket::LastWords(qrd_status* status, std::string* text) {
  char bytes[kMessageBytesMax];
  if (!fd_.valid()) return false;
  const int saved = errno;
  ssize_t received;
  bool was_reset = false;
  do {
    received = recv(fd_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  } while (received < 0 &&
           (errno == EINTR || (errno == ECONNRESET && !std::exchange(was_reset, true))));
  errno = saved;
  v1::ServerMessage message;
  if (received <= 0 || !message.ParseFromArray(bytes, static_cast<int>(received)) ||
      !message.has_error()) {
    return false;
  }
  *status = StatusOf(message.error());
  *text = message.error().message();
  spoke_ = true;
  return true;
}

}  // namespace qrd::client
