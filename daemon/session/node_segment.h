// SPDX-License-Identifier: Apache-2.0
// The node segment of proto/shm/layout.h: one page for all sessions, read only for clients. It
// tells a client which daemon it talks to and whether a post must ring the doorbell.
//
// Thread safety: immutable but for engine_sleeping() and progress_ns(), atomics that only the
// engine writes. Ownership: owns the memfd and its mapping; outlives the session server and the
// engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/session/shared_segment.h"

namespace qrd {

class NodeSegment {
 public:
  // RESOURCE_EXHAUSTED if the machine gives no memory or descriptor.
  static absl::StatusOr<std::unique_ptr<NodeSegment>> Create();

  // Sealed: SHRINK, GROW, FUTURE_WRITE, SEAL. Clients can map it read only.
  int fd() const { return segment_.fd(); }
  uint64_t segment_bytes() const { return segment_.bytes(); }
  uint64_t daemon_start_ns() const;
  std::atomic<uint32_t>& engine_sleeping();
  std::atomic<uint64_t>& progress_ns();

 private:
  explicit NodeSegment(SharedSegment segment) : segment_(std::move(segment)) {}
  SharedSegment segment_;
};

}  // namespace qrd
