// SPDX-License-Identifier: Apache-2.0
// One connection to the attach socket and what it has become so far.
//
//   kNew --Hello--> kGreeted --Join--> kJoining --all ranks there--> kJoined
//                      ^------timeout, error--------/
//
// Thread safety: attach thread only.
// Ownership: owns the socket; shares arenas and channel with the engine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/session/arena_table.h"
#include "daemon/session/session_channel.h"

namespace qrd {

struct Connection {
  enum class State { kNew, kGreeted, kJoining, kJoined };
  // A client that lets more replies than this pile up is closed.
  static constexpr size_t kOutboxMax = 16;

  // A reply that did not fit into the socket's buffer, with its own descriptors.
  struct Packet {
    std::string bytes;
    std::vector<UniqueFd> fds;
  };

  UniqueFd fd;
  pid_t pid = 0;
  uid_t uid = 0;
  State state = State::kNew;
  bool closed = false;          // to be destroyed at the end of the turn
  bool memory_pending = false;  // no message is read until the memory thread is done
  uint32_t watched = 0;         // epoll events
  std::deque<Packet> outbox;
  // When a handshake or a join is over, CLOCK_MONOTONIC; UINT64_MAX: never.
  uint64_t deadline_ns = UINT64_MAX;

  // From Join on.
  uint64_t session_id = 0;
  std::string communicator, group;
  std::string device;  // empty: host memory
  uint32_t rank = 0, world_size = 0;
  uint64_t incarnation = 0;
  uint32_t join_timeout_ms = 0;
  bool stream_opened = false;
  std::shared_ptr<ArenaTable> arenas;
  std::shared_ptr<SessionChannel> channel;
};

}  // namespace qrd
