// SPDX-License-Identifier: Apache-2.0
// Runs the operations of all groups: polls the submission rings, validates, matches the ranks,
// makes the plan, runs the tiles (with the worker pool, weighted fair over groups) and writes
// completions.
//
// One engine thread does everything but the tiles of large operations, which workers share. It
// polls the rings between chunks of a few hundred microseconds. When there is nothing to do it
// spins with sched_yield() for an adaptive time, then sleeps in epoll until a doorbell, a command
// or a deadline.
//
// Thread safety: all public functions from any thread.
// Ownership: everything passed to the constructor must outlive the engine. Channels are shared with
// the session server; the engine drops a channel once no operation can touch it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/config.h"
#include "daemon/base/mutex.h"
#include "daemon/base/unique_fd.h"
#include "daemon/engine/device_runner.h"
#include "daemon/engine/group_queue.h"
#include "daemon/engine/run_queue.h"
#include "daemon/engine/worker_pool.h"
#include "daemon/policy/policy_store.h"
#include "daemon/session/node_segment.h"
#include "daemon/telemetry/metrics.h"
#include "kernels/backend.h"
#include "proto/shm/yield_guard.h"
#include "qrd/v1/communicator.pb.h"

namespace qrd {

class Engine {
 public:
  // `metrics` may be null (tests).
  Engine(const Config& config, Backend* backend, PolicyStore* policy, Metrics* metrics,
         NodeSegment* node);
  ~Engine();  // stops
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // RESOURCE_EXHAUSTED if a descriptor or thread cannot be had.
  absl::Status Start();
  // From now on an operation that no rank has posted yet is refused with UNAVAILABLE. Waits until
  // all others are done, at most until the deadline; true if they are.
  bool Drain(absl::Time deadline);
  // Fails what is left with UNAVAILABLE (after its chunks in flight) and ends all threads.
  // Idempotent.
  void Stop();

  // A complete group starts: all its channels, by rank.
  void AddGroup(GroupSpec spec);
  // From here on the session's stream-ordered operations are taken. Unknown sessions: nothing.
  void AddStream(uint64_t session_id, std::unique_ptr<StreamChannel> stream);
  // A session is over. Pending and later operations of its group fail with `status` and `reason`;
  // with `close` set the session's own do too, and the session-end hook is called once they have.
  void EndSession(uint64_t session_id, shm::Status status, std::string reason, bool close);
  // A rank called abort: pending and later operations of all ranks fail with ABORTED.
  void AbortGroup(uint64_t session_id, std::string reason);
  // Called from the engine thread for a session that broke the ring protocol, or that
  // EndSession(close) ended: its connection is to be closed. Set before Start().
  void SetSessionEndHook(
      std::function<void(uint64_t session_id, bool protocol_error, std::string reason)> hook);

  // Called from the engine thread with a line for the log, about a failure or the end of a group;
  // so many that a client cannot fill the log. Set before Start().
  void SetReportHook(std::function<void(bool warning, std::string line)> hook);

  // Fills waiting_operations and queued_operations. Unknown sessions leave it as it is.
  void GroupDetail(uint64_t session_id, v1::Group* group) const;
  // CLOCK_MONOTONIC of the last turn of the engine's loop; at most about 100 ms old even when idle.
  uint64_t progress_ns() const { return progress_ns_.load(std::memory_order_relaxed); }

 private:
  using Command = std::function<void()>;
  // Entries taken from one ring before the next ring has its turn.
  static constexpr uint32_t kPollBurst = 32;

  void Post(Command command) ABSL_LOCKS_EXCLUDED(mu_);
  void Wake();

  // All below: engine thread only.
  void Loop();
  bool RunCommands() ABSL_LOCKS_EXCLUDED(mu_);
  bool PollRings(uint64_t now_ns);
  bool PollSession(GroupQueue* group, uint32_t rank, uint64_t now_ns);
  bool RunChunk();
  bool RunDevices();
  bool CompleteFinished();
  bool CompleteFinished(RunQueue* queue);
  void ExpireOperations(uint64_t now_ns);
  void Idle(uint64_t now_ns);
  void Sleep(uint64_t now_ns);
  bool AnythingToDo();
  void DoAddGroup(GroupSpec spec, std::shared_ptr<GroupGauges> gauges);
  void DoEndSession(uint64_t session_id, shm::Status status, const std::string& reason, bool close);
  // Drops channels of ended sessions, and groups with their last one, once nothing is queued.
  void FinishEnds();
  // True if the group has no channel left.
  bool DropEndedChannels(GroupQueue* group);
  void FailEverything();
  void ReportDrain() ABSL_LOCKS_EXCLUDED(mu_);
  void EndRank(GroupQueue* group, uint32_t rank, Failure failure, bool call_hook,
               bool protocol_error, const std::string& reason);
  void NoteActivity(uint64_t now_ns);

  const Config config_;
  Backend* const backend_;
  Metrics* const metrics_;
  NodeSegment* const node_;
  OperationContext context_;
  RunQueue run_queue_;
  DeviceRunner device_runner_;
  WorkerPool workers_;
  UniqueFd epoll_, wake_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, sleeping_{false}, has_commands_{false};
  std::atomic<uint64_t> progress_ns_{0};
  std::function<void(uint64_t, bool, std::string)> session_end_hook_;

  mutable Mutex mu_;
  CondVar drain_changed_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, std::shared_ptr<GroupGauges>> gauges_ ABSL_GUARDED_BY(mu_);
  bool drained_now_ ABSL_GUARDED_BY(mu_) = false;  // draining, and no operation waits or is queued

  // Engine thread only.
  std::map<uint64_t, std::unique_ptr<GroupQueue>> groups_;                // by flow id
  std::unordered_map<uint64_t, std::pair<GroupQueue*, uint32_t>> ranks_;  // by session id
  uint64_t next_flow_ = 1;
  bool ends_pending_ = false;
  uint32_t device_groups_ = 0;  // groups on devices
  uint32_t streams_ = 0;        // sessions with a stream segment
  uint64_t earliest_deadline_ns_ = UINT64_MAX;
  uint64_t last_active_ns_ = 0;
  uint32_t idle_turns_ = 0;
  YieldGuard yield_guard_;
  uint64_t spin_ns_;  // how long to spin before sleeping: adapts to how soon work comes
};

}  // namespace qrd
