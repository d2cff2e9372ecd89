// SPDX-License-Identifier: Apache-2.0
// Operations that are ready to run, and the chunks of tiles that the engine and the workers take
// from them. Operations of one flow run one after the other in the order of Push(); flows share by
// bytes (scheduler.h). A chunk is sized to take about kChunkTargetNs by what earlier ones took.
//
// Thread safety: all functions from any thread; one short lock.
// Ownership: jobs belong to the caller and must live until PopFinished() has returned them.
//
// Invariants
//   1. Every pushed job comes out of PopFinished() exactly once, and then no thread works on it.
//   2. A cancelled job hands out no more chunks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "daemon/base/mutex.h"
#include "daemon/engine/scheduler.h"
#include "kernels/backend.h"

namespace qrd {

struct Job {
  // Set before Push(), constant until PopFinished().
  LaunchParams params;
  uint64_t flow = 0;
  uint64_t tiles = 0;  // at least 1; with an epilogue the backend's units
  bool whole = false;  // one chunk: a device's operation

  // The run queue's while the job is in it, the caller's afterwards.
  uint64_t next_tile = 0;
  uint32_t running_chunks = 0;
  bool cancelled = false;  // some tiles did not run
  bool queued = false;
  uint64_t nonfinite_count = 0;
  uint64_t start_ns = 0, end_ns = 0;
  // Of a device's operation.
  bool launched = false;  // the device will store to the done words
  absl::Status error;     // not OK: it failed there
};

struct Chunk {
  Job* job = nullptr;
  TileRange range = {0, 0};
  uint64_t start_ns = 0;
};

class RunQueue {
 public:
  static constexpr uint64_t kChunkTargetNs = 200'000;
  // Shorter chunks are not worth another thread.
  static constexpr uint64_t kChunkMinNs = 15'000;
  // Added to the bytes of each chunk, so that a flood of tiny operations has a price, too.
  static constexpr uint64_t kChunkOverheadBytes = 16'384;

  // `threads`: how many take chunks at the same time.
  explicit RunQueue(uint32_t threads) : threads_(threads) {}

  void AddFlow(uint64_t flow, uint32_t weight);
  // The flow must have no jobs.
  void RemoveFlow(uint64_t flow);
  void Push(Job* job);
  // Takes the job out at once, or after its running chunks. No effect on a job that is finished.
  void Cancel(Job* job);
  // False if there is nothing to hand out now.
  bool Take(Chunk* chunk);
  // The chunk was run; true if that finished its job.
  bool Finish(const Chunk& chunk, uint64_t nonfinite_count, uint64_t end_ns);
  // Null if there is none.
  Job* PopFinished();

  // Hints without the lock.
  bool has_chunks() const { return has_chunks_.load(std::memory_order_seq_cst); }
  bool has_finished() const { return has_finished_.load(std::memory_order_seq_cst); }

 private:
  struct Flow {
    std::deque<Job*> jobs;  // the first one runs
  };
  // Tiles of the next chunk of `job`.
  uint64_t ChunkTiles(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a tile of one rank took lately, in nanoseconds.
  double& TileNs(const LaunchParams& params) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double TileNs(const LaunchParams& params) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MoveToFinished(Job* job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells the scheduler what the flow can do now.
  void Update(uint64_t flow, const Flow& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr double kTileNsGuess = 1000;
  static constexpr size_t kTimings = size_t{kCodecCount} * 2 * 3 * 2;

  const uint32_t threads_;
  std::atomic<bool> has_chunks_{false}, has_finished_{false};
  Mutex mu_;
  FairScheduler scheduler_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Flow> flows_ ABSL_GUARDED_BY(mu_);
  std::deque<Job*> finished_ ABSL_GUARDED_BY(mu_);
  std::array<double, kTimings> tile_ns_ ABSL_GUARDED_BY(mu_) = {};  // 0: never seen
};

}  // namespace qrd
