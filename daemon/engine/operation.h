// SPDX-License-Identifier: Apache-2.0
// One operation of a group, from its first rank's post until every rank has its completion.
//
//   kWaiting --all ranks posted, they agree, plan made--> kQueued --tiles done--> kDone
//      \--refused, mismatch, deadline, peer lost, abort--> kDone <--cancelled----/
//
// A done operation stays in its group's queue until every rank has posted it, so that late ranks
// get the same answer. Thread safety: engine thread only (the Job part: see run_queue.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/engine/run_queue.h"
#include "daemon/policy/policy.h"
#include "daemon/session/descriptor_validation.h"
#include "proto/shm/layout.h"

namespace qrd {

// Why an operation did not succeed, in the words that all its ranks see.
struct Failure {
  shm::Status status = shm::Status::kOk;
  std::string message;
  uint32_t rank_mask = 0;  // who is to blame
};

struct Operation : Job {
  enum class State { kWaiting, kQueued, kDone };

  // One rank's part. Empty again once the operation is done: pins must not outlive it.
  struct Post {
    uint32_t slot = 0;
    uint64_t sequence = 0;  // the client's own count
    ValidatedDescriptor descriptor;
  };

  uint64_t sequence = 0;
  State state = State::kWaiting;
  uint32_t arrived_mask = 0;  // ranks that posted it
  uint32_t open_mask = 0;     // ranks that posted it and have no completion
  std::vector<Post> posts;    // by rank
  uint64_t deadline_ns = 0;
  uint64_t first_post_ns = 0, ready_ns = 0;
  bool planned = false;
  Plan plan;
  Failure failure;  // of a done operation; kOk if it succeeded
};

// "rank 3", "ranks 0, 2 and 5"; "" for no rank.
std::string RanksText(uint32_t rank_mask);

// If the posted ranks of an operation differ: MISMATCH naming the field, each value and its ranks.
// kOk if they agree.
Failure CompareRanks(const Operation& operation, uint32_t rank_mask);

}  // namespace qrd
