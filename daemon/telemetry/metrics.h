// SPDX-License-Identifier: Apache-2.0
// Every metric of the daemon: name, unit, labels. Labels are bounded: result, codec, algorithm,
// stage, reason; never pid, session, communicator or message size. All children exist from the
// start, so that rate() sees the first event and recording looks nothing up. Thread safety: all
// functions from any thread; the Record* functions take no lock but a histogram's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/epilogue.h"
#include "kernels/types.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"

namespace qrd {

// One finished operation (all ranks), as the engine saw it. Times are CLOCK_MONOTONIC.
struct OperationRecord {
  shm::Status status = shm::Status::kOk;
  bool planned = false;  // codec and algorithm are valid (all ranks had posted and matched)
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Epilogue epilogue = Epilogue::kNone;
  uint64_t payload_bytes = 0;  // of one rank
  uint64_t wire_bytes = 0;     // sent by all ranks
  uint64_t first_post_ns = 0, ready_ns = 0, start_ns = 0, end_ns = 0;
  uint64_t nonfinite_count = 0;
};

// Read at scrape time, from any thread. An empty function reads as 0.
struct GaugeSources {
  std::function<uint64_t()> sessions, communicators, arena_bytes, policy_generation;
};

class Metrics {
 public:
  explicit Metrics(GaugeSources sources);
  ~Metrics();

  void RecordOperation(const OperationRecord& record);
  void RecordRingFull(uint64_t count);
  void RecordAttach(shm::Status result);
  void RecordSessionEnd(
      std::string_view reason);  // "closed", "lost", "protocol_error", "drained", "deleted"
  void RecordInvalidSubmission();
  void RecordPermissionDenied();
  void RecordPolicySet(bool accepted);

  // Since start, for NodeStatus.
  uint64_t operations_total() const;
  uint64_t operations_failed_total() const;

  // Reads the gauges' sources, then everything: for a scrape.
  std::vector<prometheus::MetricFamily> Collect() const;
  std::shared_ptr<prometheus::Registry> registry() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qrd
