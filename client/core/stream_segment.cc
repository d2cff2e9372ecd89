// SPDX-License-Identifier: Apache-2.0
#include "client/core/stream_segment.h"

#include <sys/mman.h>

#include <cinttypes>
#include <cstring>
#include <utility>

#include "client/core/error.h"
#include "client/core/keep_forever.h"

namespace qrd::client {
namespace {

constexpr const char* kWhat = "stream segment";

qrd_status Bad(const char* field, uint64_t value, uint64_t want) {
  return Fail(QRD_INTERNAL, "%s from the daemon: %s is %" PRIu64 ", want %" PRIu64, kWhat, field,
              value, want);
}

// The words of the header that are written once. What is checked is what is used.
struct Constants {
  uint32_t magic;
  uint32_t layout_version;
  uint64_t segment_bytes;
  uint64_t session_id;
  uint32_t entry_count;
  uint32_t reserved0;
  uint64_t entry_offset_bytes;
};
static_assert(offsetof(shm::StreamHeader, entry_count) == offsetof(Constants, entry_count));
static_assert(offsetof(shm::StreamHeader, entry_offset_bytes) ==
              offsetof(Constants, entry_offset_bytes));

}  // namespace

qrd_status StreamSegment::Map(int fd, uint64_t bytes, uint32_t entry_count) {
  if (entry_count < shm::kStreamEntriesMin || entry_count > shm::kStreamEntriesMax) {
    return Fail(QRD_INTERNAL, "%s from the daemon: entry_count is %u, want %u to %u", kWhat,
                entry_count, shm::kStreamEntriesMin, shm::kStreamEntriesMax);
  }
  if (bytes != shm::StreamSegmentBytes(entry_count)) {
    return Bad("size in bytes", bytes, shm::StreamSegmentBytes(entry_count));
  }
  if (qrd_status status = mapping_.Map(fd, bytes, Access::kReadWrite, kWhat); status != QRD_OK) {
    return status;
  }
  Constants h;
  std::memcpy(&h, mapping_.data(), sizeof(h));
  if (h.magic != shm::kStreamMagic) return Bad("magic", h.magic, shm::kStreamMagic);
  if (h.layout_version != shm::kLayoutVersion) {
    return Bad("layout_version", h.layout_version, shm::kLayoutVersion);
  }
  if (h.segment_bytes != bytes) return Bad("segment_bytes", h.segment_bytes, bytes);
  if (h.entry_count != entry_count) return Bad("entry_count", h.entry_count, entry_count);
  if (h.entry_offset_bytes != shm::kStreamEntryOffsetBytes) {
    return Bad("entry_offset_bytes", h.entry_offset_bytes, shm::kStreamEntryOffsetBytes);
  }
  madvise(mapping_.data(), mapping_.bytes(), MADV_DONTFORK);
  entry_count_ = entry_count;
  return QRD_OK;
}

void StreamSegment::Leak() { KeepForever(std::make_unique<Mapping>(std::move(mapping_))); }

}  // namespace qrd::client
