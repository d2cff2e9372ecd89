// SPDX-License-Identifier: Apache-2.0
// Messages of the attach socket: one packet is one protobuf message of at most kMessageBytesMax
// bytes, with descriptors beside it. Non-blocking in both directions.
//
// Thread safety: pure functions on descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "qrd/v1/attach.pb.h"

namespace qrd {

inline constexpr size_t kMessageBytesMax = 4096;
inline constexpr size_t kMessageFdsMax = 3;

struct Received {
  enum class Kind {
    kMessage,
    kNothing,  // try again when the descriptor is readable
    kClosed,   // the peer is gone
    kInvalid,  // a packet that is no message: `error` says why
  };
  Kind kind = Kind::kNothing;
  v1::ClientMessage message;
  absl::Status error;
};

// Takes one packet. Descriptors that a client sends are never accepted: the kernel drops them.
Received ReceiveMessage(int fd);

enum class SendResult { kSent, kWouldBlock, kClosed };

// Sends one packet with up to kMessageFdsMax descriptors.
SendResult SendPacket(int fd, const std::string& packet, const std::vector<int>& fds);

// Throws away up to 64 packets that were received and not read. For a connection that is about to
// be closed: with unread packets the peer's next read fails before it sees our last reply.
void DiscardReceived(int fd);

}  // namespace qrd
