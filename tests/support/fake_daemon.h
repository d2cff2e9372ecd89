// SPDX-License-Identifier: Apache-2.0
// An attach server in the test process that does what a script says: refuse a version, die in the
// middle, send bad segments, never answer. By itself it is well-behaved for one rank a session.
//
//   FakeDaemon daemon;
//   daemon.on_request = [](const v1::ClientMessage&) { return FakeDaemon::Refuse(QRD_..., "text");
//   }; config.runtime_directory = daemon.runtime_directory().c_str();
//   ...
//   FakeDaemon::Posted posted = daemon.NextPosted();   // what the client put into its ring
//   daemon.Complete(posted, QRD_OK);
//
// Thread safety: hooks and fields are set before the first connection and run on the server's
// thread; NextPosted, Complete, HangUp from the test's thread. Ownership: the destructor ends the
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/shm/layout.h"
#include "qrd/v1/attach.pb.h"
#include "tests/support/temp_directory.h"

namespace qrd::testing {

// A value that the test may replace while the server's thread uses copies of it.
template <typename T>
class Guarded {
 public:
  Guarded& operator=(T value) {
    const std::lock_guard<std::mutex> lock(mu_);
    std::swap(value_, value);
    return *this;
  }
  T get() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return value_;
  }

 private:
  mutable std::mutex mu_;
  T value_{};
};

class FakeDaemon {
 public:
  // What to do with a request instead of the normal answer.
  struct Reply {
    enum class Kind {
      kNormal,
      kSend,
      kSendRaw,
      kSilent,
      kClose,
      kSendThenClose
    } kind = Kind::kNormal;
    v1::ServerMessage message;
    std::string raw;
    std::vector<int> fds;  // borrowed
  };
  static Reply Normal() { return {}; }
  static Reply Silent() { return {Reply::Kind::kSilent, {}, {}, {}}; }
  static Reply Close() { return {Reply::Kind::kClose, {}, {}, {}}; }
  static Reply Refuse(uint32_t status, const std::string& text);
  static Reply Raw(const std::string& bytes) { return {Reply::Kind::kSendRaw, {}, bytes, {}}; }

  FakeDaemon();
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  std::string runtime_directory() const { return directory_.path(); }

  // Hooks; empty means the normal answer.
  Guarded<std::function<Reply(const v1::ClientMessage&)>> on_request;
  // Changes the segments and the message of a normal Joined before they are sent.
  std::function<void(shm::NodeHeader*, shm::SessionHeader*, v1::Joined*)> edit_joined;
  // Changes a normal ArenaAllocated before it is sent.
  std::function<void(v1::ArenaAllocated*)> edit_arena;
  // Of the next segments and arenas.
  uint32_t slot_count = 8;
  uint32_t spin_us_max = 50;
  bool seal = true;
  int joined_fd_count = 3;
  // Of sessions with a device (see fake_daemon_stream.cc): their arenas are memory of this process,
  // and the IPC handle of memory is its address.
  uint32_t stream_entry_count = 8;
  // Changes the stream segment and the message of a normal StreamOpened before they are sent.
  std::function<void(shm::StreamHeader*, v1::StreamOpened*)> edit_stream;
  static constexpr size_t kIpcHandleBytes = 64;

  // An operation that the client has posted.
  struct Posted {
    uint32_t slot = 0;
    shm::Descriptor descriptor{};
  };
  // The next entry of the latest session's ring, or nullopt after the timeout.
  std::optional<Posted> NextPosted(std::chrono::milliseconds timeout = std::chrono::seconds(20));
  // Completes an operation as the real daemon does. Status and sequence as given, so they may be
  // wrong.
  void Complete(const Posted& posted, uint32_t status, const std::string& message = "",
                std::optional<uint64_t> sequence = std::nullopt);
  // An operation that a stream of the client has come to.
  struct Announced {
    uint32_t entry = 0;
    shm::Descriptor descriptor{};
  };
  // Takes the doorbell, or nullopt after the timeout.
  std::optional<Announced> NextAnnounced(
      std::chrono::milliseconds timeout = std::chrono::seconds(20));
  // Ends it as the real daemon does: the stream may go on.
  void EndAnnounced(const Announced& announced, uint32_t status, const std::string& message = "");
  // Of the latest session; null if it has not asked for one.
  shm::StreamHeader* stream();

  // Bytes of an arena of the latest session, as the daemon sees them.
  std::byte* ArenaData(uint32_t arena_id);
  shm::Completion* completion(uint32_t slot);
  // Waits until a client sleeps on the operation's word. False after 20 s.
  bool AwaitSleeper(uint32_t slot);
  // Closes the connection, after an unasked-for error if `words` is not empty.
  void HangUp(uint32_t status = 0, const std::string& words = "");
  void SetEngineSleeping(bool sleeping);
  // Rings of the doorbell since the last call.
  uint64_t Rings();

  std::atomic<int> connections{0};
  std::atomic<int> arenas_live{0};
  std::atomic<int> arena_requests{0};

 private:
  struct Memory {
    int fd = -1;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  Memory MakeMemory(uint64_t bytes, bool sealed) const;
  static void DropMemory(Memory* memory);
  std::byte* SessionData();
  void Serve();
  void ServeConnection(int fd);
  // False: close.
  bool Answer(int fd, const v1::ClientMessage& request);
  bool AnswerJoin(int fd, const v1::Join& join);
  bool AnswerArena(int fd, const v1::ArenaAlloc& request);
  bool AnswerImport(int fd, const v1::ArenaImport& request);
  bool AnswerStreamOpen(int fd);
  static bool Send(int fd, const std::string& bytes, const std::vector<int>& fds);

  TempDirectory directory_;
  int listener_ = -1;
  int stop_ = -1;
  int doorbell_ = -1;
  Memory node_;
  std::mutex mu_;  // session_, on_device_, stream_, arenas_, connection_
  Memory session_;
  bool on_device_ = false;
  Memory stream_;
  uint64_t stream_operations_ = 0;
  uint32_t session_slots_ = 0;
  uint64_t head_ = 0;
  std::map<uint32_t, Memory> arenas_;
  uint32_t next_arena_ = 1;
  int connection_ = -1;
  std::thread thread_;
};

}  // namespace qrd::testing
