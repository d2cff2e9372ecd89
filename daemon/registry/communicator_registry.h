// SPDX-License-Identifier: Apache-2.0
// Communicators of the node, and which groups and sessions use them. The control service creates,
// lists and deletes; the session server joins and leaves.
//
// Communicators that CreateCommunicator or the configuration made survive a restart (state
// directory). Those that an attach made do not, since the next attach makes them again; when there
// are communicators_max, the oldest of them that nobody uses gives way to a new one.
//
// File: <state_directory>/communicators.textproto, replaced atomically on each change.
// Thread safety: all functions from any thread; no function blocks on a client. Create and Delete
// hold the lock while the small file is written and synced, so that a reply means "survives a
// crash": a slow disk delays attaches for that long. An attach never writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/config.h"
#include "daemon/base/mutex.h"
#include "daemon/base/names.h"
#include "qrd/v1/communicator.pb.h"

namespace qrd {

// Totals of one communicator; the engine adds, the control service reads.
struct CommunicatorCounters {
  std::atomic<uint64_t> operations{0}, operations_failed{0}, payload_bytes{0}, wire_bytes{0},
      nonfinite_elements{0};
};

// A session as the registry knows it.
struct Member {
  uint64_t session_id = 0;
  uint32_t rank = 0;
  int32_t pid = 0;
  uint32_t uid = 0;
  absl::Time attach_time;
  std::shared_ptr<std::atomic<uint64_t>> arena_bytes, arenas;
  v1::Backend backend = v1::BACKEND_HOST;  // where its tensors are
};

class CommunicatorRegistry {
 public:
  // Loads the state file (a bad one is set aside with a warning), then adds config.communicators.
  // `gpu_status`: why this daemon has no GPU backend, OK if it has one. Communicators of GPUs that
  // were saved are kept either way, but nobody can join them without.
  static absl::StatusOr<std::unique_ptr<CommunicatorRegistry>> Open(
      const Config& config,
      absl::Status gpu_status = absl::FailedPreconditionError("this daemon has no GPU backend"));
  ~CommunicatorRegistry();

  absl::StatusOr<v1::Communicator> Create(const v1::Communicator& request, bool on_attach);
  absl::StatusOr<v1::Communicator> Get(const std::string& name) const;
  std::vector<v1::Communicator> List() const;
  // With force: calls the end-sessions hook for each member after the communicator is gone.
  absl::StatusOr<uint32_t> Delete(const std::string& name, bool force);

  // Joins a forming group (created as needed). Returns the incarnation and whether the group is now
  // complete. INVALID_ARGUMENT for a bad name, rank or world size; NOT_FOUND; ALREADY_EXISTS if a
  // live session holds the rank (names its pid); FAILED_PRECONDITION if it must be created and the
  // configuration does not allow it, or if the communicator's backend is not the member's.
  struct JoinResult {
    uint64_t incarnation = 0;
    bool complete = false;
    std::vector<uint64_t> session_ids;  // by rank, of a complete group
    std::shared_ptr<CommunicatorCounters> counters;
  };
  absl::StatusOr<JoinResult> Join(const std::string& communicator, const std::string& group,
                                  uint32_t world_size, bool create_if_absent, const Member& member);
  // Removes the session wherever it is; a complete group becomes broken, a group without sessions
  // goes. `gave_up`: it waited for the others until its time was over, so others do not call it
  // missing.
  void Leave(uint64_t session_id, bool gave_up = false);
  // Marks the group of the session broken (abort).
  void MarkBroken(uint64_t session_id);
  // Ranks that a forming group still lacks, ascending; without those that gave up, unless only they
  // are missing.
  std::vector<uint32_t> MissingRanks(const std::string& communicator, const std::string& group,
                                     uint64_t incarnation) const;
  // Sessions of the group's current incarnation, by rank; empty if there is none.
  std::vector<uint64_t> GroupSessions(const std::string& communicator,
                                      const std::string& group) const;

  uint64_t communicator_count() const;

  // The hook ends the given sessions (status ABORTED). Set once before serving.
  void SetEndSessionsHook(std::function<void(const std::vector<uint64_t>&)> hook);
  // Adds what only the engine knows (waiting and queued operations) to a reply.
  void SetGroupDetailHook(std::function<void(uint64_t session_id, v1::Group*)> hook);

 private:
  struct GroupState;
  struct CommunicatorState;
  // What it needs of the configuration.
  struct Options {
    std::string path;
    uint32_t communicators_max = 0;
    bool create_on_attach = true;
    absl::Status gpu_status;  // why there are no GPUs; OK: there are
  };
  explicit CommunicatorRegistry(Options options);

  absl::Status Load() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Persist() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CommunicatorState*> Insert(const v1::Communicator& request, bool on_attach)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Create of one that an attach made: it stays from now on.
  absl::StatusOr<v1::Communicator> Keep(const v1::Communicator& request, CommunicatorState* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the oldest communicator that an attach made and nobody uses; false: there is none.
  bool EvictUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<CommunicatorState*> FindOrCreate(const std::string& name, uint32_t world_size,
                                                  v1::Backend backend, bool create_if_absent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The group's current incarnation, made if there is none or if the last one is broken.
  GroupState* CurrentGroup(CommunicatorState* communicator, const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Description with groups, but without what only the engine knows.
  v1::Communicator Describe(const std::string& name, const CommunicatorState& state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddGroupDetail(v1::Communicator* communicator) const;

  const Options options_;
  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<CommunicatorState>> communicators_ ABSL_GUARDED_BY(mu_);
  // Incarnations of evicted communicators' groups are not above it, so none comes twice.
  uint64_t incarnation_floor_ ABSL_GUARDED_BY(mu_) = 0;
  // Set before serving, then only read.
  std::function<void(const std::vector<uint64_t>&)> end_sessions_;
  std::function<void(uint64_t, v1::Group*)> group_detail_;
};

}  // namespace qrd
