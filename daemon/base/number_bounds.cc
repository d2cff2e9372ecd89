// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/number_bounds.h"

#include "proto/shm/layout.h"

namespace qrd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTiB = uint64_t{1} << 40;

struct Entry {
  std::string_view field;
  NumberBounds bounds;
};

constexpr Entry kEntries[] = {
    {"communicators_max", {1, 4096}},
    {"sessions_max", {1, 4096}},
    {"operations_in_flight_max", {shm::kSlotsMin, shm::kSlotsMax}},
    {"arenas_per_session_max", {1, 4096}},
    {"arena_bytes_per_session_max", {kMiB, kTiB}},
    {"arena_bytes_max", {kMiB, 16 * kTiB}},
    {"stream_entries_per_session", {shm::kStreamEntriesMin, shm::kStreamEntriesMax}},
    {"device_arena_bytes_max", {kMiB, 16 * kTiB}},
    {"worker_threads", {0, 256}},
    {"spin_us_max", {0, 10000}},
    {"operation_timeout_ms", {1, 3600000}},
    {"attach_timeout_ms", {1, 3600000}},
    {"drain_timeout_ms", {0, 600000}},
};

}  // namespace

std::optional<NumberBounds> BoundsOf(std::string_view field) {
  for (const Entry& entry : kEntries) {
    if (entry.field == field) return entry.bounds;
  }
  return std::nullopt;
}

}  // namespace qrd
