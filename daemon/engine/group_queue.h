// SPDX-License-Identifier: Apache-2.0
// The operations of one group, in posting order: matches the k-th operation of every rank, makes
// the plan when the last rank has posted, hands it to the run queue, and completes it on all ranks.
//
// Thread safety: engine thread only, but for GroupGauges.
// Ownership: owns its operations; an operation that is in the run queue is never destroyed.
//
// Invariants
//   1. Each taken submission is completed exactly once.
//   2. operations_[i] has sequence first_sequence_ + i; at most kOperationsAheadMax of them.
//   3. A broken group makes no new operations: posts complete at once with the failure that broke
//   it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/log_limit.h"
#include "daemon/engine/operation.h"
#include "daemon/engine/run_queue.h"
#include "daemon/policy/policy_store.h"
#include "daemon/registry/communicator_registry.h"
#include "daemon/session/session_channel.h"
#include "daemon/telemetry/metrics.h"
#include "kernels/backend.h"

namespace qrd {

// A group that all ranks have joined.
struct GroupSpec {
  std::string communicator;
  std::string group;
  uint64_t incarnation = 0;
  uint32_t weight = 1;
  std::shared_ptr<CommunicatorCounters> counters;
  std::vector<std::shared_ptr<SessionChannel>> channels;  // by rank, all set
  Backend* backend = nullptr;                             // null: the engine's
  // Of an enqueued backend; given to `dispose` in the end, since its end takes its time.
  std::shared_ptr<DeviceGroup> device_group;
  std::function<void(std::shared_ptr<DeviceGroup>)> dispose;
};

// What the control service shows. Written by the engine, read by any thread.
struct GroupGauges {
  std::atomic<uint32_t> waiting{0}, queued{0};
};

// What all groups of an engine share.
struct OperationContext {
  Backend* backend = nullptr;
  PolicyStore* policy = nullptr;
  Metrics* metrics = nullptr;  // may be null
  RunQueue* run_queue = nullptr;
  RunQueue* device_queue = nullptr;  // whole operations of groups with a DeviceGroup
  uint32_t operation_timeout_ms = 30'000;
  bool draining = false;
  uint64_t active_operations = 0;  // waiting or queued, all groups
  // For the log; the engine thread itself must not wait for whoever reads that. May be null.
  std::function<void(bool warning, std::string line)> report;
  LogLimit failures, ends;
};

class GroupQueue {
 public:
  // A rank that is further ahead of another one than this breaks the group: memory is bounded.
  static constexpr size_t kOperationsAheadMax = 4096;

  GroupQueue(uint64_t flow, GroupSpec spec, OperationContext* context,
             std::shared_ptr<GroupGauges> gauges);
  ~GroupQueue();

  uint64_t flow() const { return flow_; }
  uint32_t world_size() const { return static_cast<uint32_t>(spec_.channels.size()); }
  // Null for ranks in host memory.
  DeviceGroup* device_group() const { return spec_.device_group.get(); }
  // Null once the session is gone.
  SessionChannel* channel(uint32_t rank) const { return spec_.channels[rank].get(); }
  void DropChannel(uint32_t rank) { spec_.channels[rank].reset(); }

  // The next submission of `rank`. Returns the earliest deadline that it set, else UINT64_MAX.
  uint64_t OnSubmission(uint32_t rank, const Submission& submission, uint64_t now_ns);
  // All tiles of the operation are done, or it was cancelled and no thread works on it.
  void OnJobFinished(Operation* operation, uint64_t now_ns);
  // Fails waiting operations whose deadline is over. Returns the earliest deadline of the rest.
  uint64_t Expire(uint64_t now_ns);
  // Fails everything that waits, now, and what is queued once its running chunks are over. Only the
  // first failure counts.
  void Break(Failure failure, uint64_t now_ns);
  bool broken() const { return broken_.status != shm::Status::kOk; }
  // No operation is in the run queue.
  bool quiescent() const { return queued_ == 0; }

  // For Engine: sessions that have ended, by rank.
  struct End {
    bool ended = false;      // not polled any more
    bool call_hook = false;  // the server waits to be told
    bool protocol_error = false;
    std::string reason;
  };
  std::vector<End> ends;

 private:
  Operation* FindOrAdd(uint64_t sequence, uint64_t now_ns);
  RunQueue* run_queue() const {
    return spec_.device_group ? context_->device_queue : context_->run_queue;
  }
  void Refuse(Operation* operation, uint32_t rank, const absl::Status& why, uint64_t now_ns);
  void Ready(Operation* operation, uint64_t now_ns);
  absl::Status MakePlan(Operation* operation);
  void Fail(Operation* operation, Failure failure, uint64_t now_ns);
  void Succeed(Operation* operation, uint64_t now_ns);
  // `answer`: whom it goes to, the rank's post or what is left of it.
  struct Answer {
    uint32_t slot = 0;
    uint64_t sequence = 0;  // of the ring: the client's own count
  };
  void CompleteRank(const Operation& operation, uint32_t rank, const Answer& answer,
                    const Failure& failure);
  void CompleteOpenRanks(Operation* operation);
  void Count(const Operation& operation);
  void Report(bool warning, LogLimit* limit, const std::string& what, uint64_t now_ns) const;
  // Drops done operations that every rank has posted. `operation` pointers die here.
  void Retire();
  void SetGauges();

  const uint64_t flow_;
  GroupSpec spec_;
  OperationContext* const context_;
  const std::shared_ptr<GroupGauges> gauges_;
  const uint32_t all_mask_;
  std::deque<std::unique_ptr<Operation>> operations_;
  uint64_t first_sequence_ = 1;
  std::vector<uint64_t> posted_;       // by rank: sequence of the last submission
  std::vector<uint64_t> ring_posted_;  // by rank: of those, how many came through the ring
  uint64_t refused_counted_ = 0;       // sequences of a broken group that were counted
  uint32_t waiting_ = 0, queued_ = 0;
  Failure broken_;
};

}  // namespace qrd
