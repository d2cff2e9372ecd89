// SPDX-License-Identifier: Apache-2.0
// The attach socket: accepts clients, speaks proto/qrd/v1/attach.proto with them, and turns the end
// of a connection into the end of its session.
//
// One thread with one epoll serves all connections. It never blocks on a client: sends are
// non-blocking with a bounded queue, and a client that does not read is closed. Arenas are made by
// the memory thread, so that a large one holds up nobody else.
//
// Thread safety: all public functions from any thread.
// Ownership: everything passed to Open() must outlive the server; sessions belong to the server,
// what the engine needs of them (SessionChannel) is shared with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/backends.h"
#include "daemon/base/config.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/mutex.h"
#include "daemon/base/unique_fd.h"
#include "daemon/engine/engine.h"
#include "daemon/registry/communicator_registry.h"
#include "daemon/session/arena_table.h"
#include "daemon/session/connection.h"
#include "daemon/session/memory_thread.h"
#include "daemon/session/node_segment.h"
#include "daemon/telemetry/metrics.h"
#include "kernels/backend.h"
#include "proto/shm/layout.h"
#include "qrd/v1/attach.pb.h"

namespace qrd {

class SessionServer {
 public:
  // Connections beyond sessions_max that may be in the handshake.
  static constexpr uint32_t kHandshakesMax = 64;
  // A connection that does not say Hello, or does not Join, for this long is closed.
  static constexpr int kHandshakeTimeoutMs = 10'000;

  // Binds <runtime_directory>/attach.sock (mode 0660, group attach_group). The caller holds the
  // lock file of the directory, so a socket that is there already is stale and is replaced;
  // anything else of that name is an error. Installs itself as the engine's session-end hook.
  static absl::StatusOr<std::unique_ptr<SessionServer>> Open(const Config& config,
                                                             CommunicatorRegistry* registry,
                                                             Engine* engine, Metrics* metrics,
                                                             const Backends* backends,
                                                             NodeSegment* node);
  ~SessionServer();

  // RESOURCE_EXHAUSTED if a thread cannot be had.
  absl::Status Start();
  // Refuses new connections and joins with UNAVAILABLE; sessions go on.
  void StopAccepting();
  // Ends sessions: their pending operations complete with `status` and `reason`, then the
  // connections are closed. Unknown ids are ignored. Returns at once.
  void EndSessions(const std::vector<uint64_t>& session_ids, shm::Status status,
                   std::string reason);
  // Closes every connection, stops the thread and removes the socket. Idempotent.
  void Stop();

  // Joined or waiting for the others of their group.
  uint64_t session_count() const { return session_count_.load(std::memory_order_relaxed); }
  // Of all sessions, memory that in-flight operations still hold included.
  uint64_t arena_bytes() const { return budget_->used_bytes(); }
  uint64_t device_arena_bytes() const { return device_budget_->used_bytes(); }

 private:
  // What another thread asks of the attach thread.
  struct Request {
    enum class Kind {
      kEnd,         // fail the sessions' operations, then close
      kClose,       // the engine is through with the session
      kArenaDone,   // the memory thread has the session's arena, or an error
      kStreamDone,  // or its stream segment
      kPlaced,      // or the sessions' group is on its devices
      kLog,         // a line of the engine's, a warning if the status is not OK
    };
    Kind kind = Kind::kEnd;
    std::vector<uint64_t> session_ids;
    shm::Status status = shm::Status::kOk;
    std::string reason;
    absl::StatusOr<ArenaTable::Allocated> arena = ArenaTable::Allocated{};
    std::shared_ptr<absl::StatusOr<std::unique_ptr<StreamChannel>>> stream;
    absl::StatusOr<std::shared_ptr<DeviceGroup>> device_group = nullptr;
    CommunicatorRegistry::JoinResult joined;  // of kPlaced
  };

  SessionServer(const Config& config, CommunicatorRegistry* registry, Engine* engine,
                Metrics* metrics, const Backends* backends, NodeSegment* node);
  absl::Status Listen();
  void Post(Request request) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake();

  // All below: attach thread only.
  void Loop();
  int TimeoutMs(uint64_t now_ns) const;
  void Accept();
  void RefuseConnection(UniqueFd fd, const absl::Status& why);
  void RunRequests() ABSL_LOCKS_EXCLUDED(mu_);
  void RunRequest(const Request& request, Connection* connection);
  void Expire(uint64_t now_ns);
  void OnEvent(int fd, uint32_t events);
  void OnReadable(Connection* connection);
  void HandleMessage(Connection* connection, const v1::ClientMessage& message);
  void HandleHello(Connection* connection, const v1::Hello& hello);
  void HandleJoin(Connection* connection, const v1::Join& join);
  absl::Status PrepareJoin(Connection* connection, const v1::Join& join);
  // The device's UUID; empty for host memory.
  absl::StatusOr<std::string> FindDevice(const v1::Join& join) const;
  void CompleteGroup(const CommunicatorRegistry::JoinResult& result);
  void PlaceGroup(const CommunicatorRegistry::JoinResult& result,
                  const std::vector<Connection*>& members);
  void FinishPlacing(const Request& request);
  void StartGroup(const CommunicatorRegistry::JoinResult& result,
                  const std::vector<Connection*>& members,
                  std::shared_ptr<DeviceGroup> device_group);
  void SendJoined(Connection* member, uint64_t incarnation);
  void HandleArenaImport(Connection* connection, const v1::ArenaImport& request);
  void HandleStreamOpen(Connection* connection);
  void FinishStreamOpen(Connection* connection, const Request& request);
  void RunOnMemoryThread(Connection* connection, std::function<void(Request*)> task);
  void HandleArenaAlloc(Connection* connection, const v1::ArenaAlloc& request);
  void FinishArenaAlloc(Connection* connection, const absl::StatusOr<ArenaTable::Allocated>& arena);
  void HandleArenaFree(Connection* connection, const v1::ArenaFree& request);
  void HandleAbort(Connection* connection, const v1::Abort& request);
  // Takes the session out of registry and engine; the connection stays.
  void LeaveSession(Connection* connection, shm::Status status, const std::string& reason);
  // Ends connections whose client is gone and of which epoll has yet to tell.
  void ReapDead(const std::vector<uint64_t>& session_ids);
  void ReapDead(const std::vector<Connection*>& connections);
  std::vector<Connection*> AllConnections() const;
  void Send(Connection* connection, const v1::ServerMessage& message, std::vector<int> fds = {});
  void SendError(Connection* connection, const absl::Status& status);
  void FlushOutbox(Connection* connection);
  // Tells epoll what the connection waits for.
  void Watch(Connection* connection);
  // An error that the connection does not survive.
  void ProtocolError(Connection* connection, const absl::Status& status);
  // Why a session ends that did nothing wrong, for a client that looks after it has ended. Sent if
  // there is room.
  void SayGoodbye(Connection* connection, shm::Status status, const std::string& reason);
  void CloseConnection(Connection* connection, std::string_view label);
  void DestroyClosed();
  Connection* FindSession(uint64_t session_id) const;

  const Config config_;
  CommunicatorRegistry* const registry_;
  Engine* const engine_;
  Metrics* const metrics_;
  const Backends* const backends_;
  NodeSegment* const node_;
  const std::shared_ptr<ArenaBudget> budget_, device_budget_;
  const std::shared_ptr<MemoryThread> memory_;
  std::string path_;
  UniqueFd listener_, epoll_, wake_, spare_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, accepting_{true};
  std::atomic<uint64_t> session_count_{0};

  Mutex mu_;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);

  // Attach thread only.
  uint64_t next_session_id_ = 1;
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  std::unordered_map<uint64_t, Connection*> sessions_;                // joining or joined
  bool any_closed_ = false;
  LogLimit protocol_errors_, slow_readers_;
};

}  // namespace qrd
