// SPDX-License-Identifier: Apache-2.0
// Operations of groups whose ranks are on devices: takes them from a run queue of their own
// (weighted fair, as on the host), launches them whole, and asks how far they are.
//
// Thread safety: engine thread only. Ownership: jobs stay their group's.
//
// Invariants
//   1. A job that was taken is finished exactly once, after the devices are done with it.
//   2. At most kInFlightMax jobs are on the devices: more would take the order out of the
//      scheduler's hands, fewer would leave the devices without the next one.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/engine/run_queue.h"
#include "kernels/backend.h"

namespace qrd {

class DeviceRunner {
 public:
  static constexpr size_t kInFlightMax = 2;

  RunQueue* queue() { return &queue_; }

  // What a job is launched with. Of the group of the job's flow.
  struct Target {
    DeviceGroup* group = nullptr;
    std::vector<std::atomic<uint32_t>*> done_words;  // by rank; null: host-waited
  };
  // Takes and launches while there is room. `target_of(job)` is asked once a job.
  template <typename TargetOf>
  bool LaunchReady(TargetOf target_of) {
    bool active = false;
    while (in_flight_.size() < kInFlightMax && queue_.has_chunks()) {
      Running next;
      if (!queue_.Take(&next.chunk)) break;
      next.target = target_of(*next.chunk.job);
      in_flight_.push_back(std::move(next));
      active = true;
    }
    return Step() || active;
  }
  // Launches what could not be before, and finishes what is done.
  bool Step();
  bool idle() const { return in_flight_.empty(); }

 private:
  struct Running {
    Chunk chunk;
    Target target;
    uint64_t ticket = 0;  // 0: not launched yet
  };
  void Launch(Running* running);
  // True if it is over.
  bool Poll(Running* running);

  RunQueue queue_{1};
  std::vector<Running> in_flight_;
};

}  // namespace qrd
