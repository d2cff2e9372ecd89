// SPDX-License-Identifier: Apache-2.0
// Which flow (group) runs next: weighted fair queueing by bytes (start-time fair queueing). A
// flow's virtual time advances by bytes / weight with each chunk it is charged for, and the flow
// that is furthest behind goes next. A flow that was idle starts at the present: idleness earns no
// credit, so nobody can save up for a burst, and a light flow waits for at most one chunk of each
// other flow.
//
// Pure: no clock, no threads, no I/O. Thread safety: none; RunQueue holds a lock around it.
//
// Invariants
//   1. Two flows that always have work get bytes in proportion to their weights, to within one
//   chunk.
//   2. Pick() takes O(1), all others O(log flows).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace qrd {

class FairScheduler {
 public:
  // weight: 1 to 100.
  void Add(uint64_t flow, uint32_t weight);
  void Remove(uint64_t flow);
  // The flow has work. From Deactivate() it comes in at the present, from Block() where it was.
  void Activate(uint64_t flow);
  // It has work, but none that could be handed out now.
  void Block(uint64_t flow);
  // It has no work.
  void Deactivate(uint64_t flow);
  // The active flow that is furthest behind; ties go to the lower id.
  std::optional<uint64_t> Pick() const;
  // The picked flow was given work of this cost.
  void Charge(uint64_t flow, uint64_t bytes);

 private:
  enum class State { kIdle, kActive, kBlocked };
  struct Flow {
    double weight = 1;
    double virtual_time = 0;
    State state = State::kIdle;
  };
  std::unordered_map<uint64_t, Flow> flows_;
  std::set<std::pair<double, uint64_t>> active_;  // (virtual time, flow)
  double now_ = 0;                                // where the last picked flow was
};

}  // namespace qrd
