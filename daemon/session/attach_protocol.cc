// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/attach_protocol.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"

namespace qrd {
namespace {

Received Invalid(absl::Status error) {
  Received received;
  received.kind = Received::Kind::kInvalid;
  received.error = std::move(error);
  return received;
}

}  // namespace

Received ReceiveMessage(int fd) {
  char buffer[kMessageBytesMax];
  iovec part = {buffer, sizeof(buffer)};
  msghdr header = {};  // no room for control data: the kernel drops descriptors and says MSG_CTRUNC
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ssize_t bytes;
  do {
    bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  } while (bytes < 0 && errno == EINTR);
  Received received;
  if (bytes < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK;
    received.kind = later ? Received::Kind::kNothing : Received::Kind::kClosed;
    return received;
  }
  if (bytes == 0) {  // the end, or an empty packet, which nobody may send
    received.kind = Received::Kind::kClosed;
    return received;
  }
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return Invalid(absl::InvalidArgumentError(
        absl::StrFormat("message has %d bytes: at most %d", bytes, kMessageBytesMax)));
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return Invalid(absl::InvalidArgumentError("message carries descriptors: a client sends none"));
  }
  if (!received.message.ParseFromArray(buffer, static_cast<int>(bytes)) ||
      received.message.message_case() == v1::ClientMessage::MESSAGE_NOT_SET) {
    return Invalid(absl::InvalidArgumentError(
        absl::StrFormat("%d bytes are no qrd.v1.ClientMessage that this daemon knows", bytes)));
  }
  received.kind = Received::Kind::kMessage;
  return received;
}

void DiscardReceived(int fd) {
  char byte;
  for (int i = 0; i < 64; ++i) {
    if (recv(fd, &byte, 1, MSG_DONTWAIT) <= 0) return;
  }
}

SendResult SendPacket(int fd, const std::string& packet, const std::vector<int>& fds) {
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMessageFdsMax)] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    const size_t count = std::min(fds.size(), kMessageFdsMax);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * count);
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return SendResult::kSent;
  // ETOOMANYREFS: too many descriptors are in flight to this user; they drain as he reads.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS)
    return SendResult::kWouldBlock;
  return SendResult::kClosed;
}

}  // namespace qrd
