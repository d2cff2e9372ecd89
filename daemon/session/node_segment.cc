// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/node_segment.h"

#include <time.h>

#include <utility>

#include "proto/shm/layout.h"

namespace qrd {

absl::StatusOr<std::unique_ptr<NodeSegment>> NodeSegment::Create() {
  absl::StatusOr<SharedSegment> segment = SharedSegment::Create("qrd-node", shm::kNodeSegmentBytes);
  if (!segment.ok()) return segment.status();
  auto* header = reinterpret_cast<shm::NodeHeader*>(segment->data());
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  header->magic = shm::kNodeMagic;
  header->layout_version = shm::kLayoutVersion;
  header->segment_bytes = segment->bytes();
  header->daemon_start_ns = uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
  if (absl::Status status = segment->Seal(/*read_only_for_others=*/true); !status.ok())
    return status;
  return std::unique_ptr<NodeSegment>(new NodeSegment(*std::move(segment)));
}

uint64_t NodeSegment::daemon_start_ns() const {
  return reinterpret_cast<const shm::NodeHeader*>(segment_.data())->daemon_start_ns;
}

std::atomic<uint32_t>& NodeSegment::engine_sleeping() {
  return reinterpret_cast<shm::NodeHeader*>(segment_.data())->engine_sleeping;
}

std::atomic<uint64_t>& NodeSegment::progress_ns() {
  return reinterpret_cast<shm::NodeHeader*>(segment_.data())->progress_ns;
}

}  // namespace qrd
