// SPDX-License-Identifier: Apache-2.0
#include "client/core/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <limits>
#include <utility>

#include "client/core/error.h"

namespace qrd::client {
namespace {

constexpr int kSealsWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

qrd_status Bad(const char* what, const char* field, uint64_t value, uint64_t want) {
  return Fail(QRD_INTERNAL, "%s from the daemon: %s is %" PRIu64 ", want %" PRIu64, what, field,
              value, want);
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Mapping::Unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

qrd_status Mapping::Map(int fd, uint64_t bytes, Access access, const char* what) {
  Unmap();
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return Fail(QRD_INTERNAL, "%s from the daemon: fstat: %s", what, strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return Fail(QRD_INTERNAL, "%s from the daemon is not a memory file", what);
  }
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) != bytes || bytes == 0) {
    return Bad(what, "size in bytes", static_cast<uint64_t>(info.st_size), bytes);
  }
  if (bytes > std::numeric_limits<size_t>::max() / 2) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "%s: %" PRIu64 " bytes do not fit the address space", what,
                bytes);
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSealsWanted) != kSealsWanted) {
    return Fail(QRD_INTERNAL,
                "%s from the daemon: seals are 0x%x, want SHRINK, GROW and SEAL (0x%x)", what,
                static_cast<unsigned>(seals < 0 ? 0 : seals), static_cast<unsigned>(kSealsWanted));
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return Fail(errno == ENOMEM ? QRD_RESOURCE_EXHAUSTED : QRD_INTERNAL,
                "%s: cannot map %" PRIu64 " bytes: %s", what, bytes, strerror(errno));
  }
  data_ = static_cast<std::byte*>(data);
  bytes_ = static_cast<size_t>(bytes);
  return QRD_OK;
}

qrd_status NodeSegment::Map(int fd, uint64_t bytes) {
  constexpr const char* kWhat = "node segment";
  if (bytes != shm::kNodeSegmentBytes) {
    return Bad(kWhat, "size in bytes", bytes, shm::kNodeSegmentBytes);
  }
  if (qrd_status status = mapping_.Map(fd, bytes, Access::kRead, kWhat); status != QRD_OK) {
    return status;
  }
  const shm::NodeHeader& h = *header();
  if (h.magic != shm::kNodeMagic) return Bad(kWhat, "magic", h.magic, shm::kNodeMagic);
  if (h.layout_version != shm::kLayoutVersion) {
    return Bad(kWhat, "layout_version", h.layout_version, shm::kLayoutVersion);
  }
  if (h.segment_bytes != bytes) return Bad(kWhat, "segment_bytes", h.segment_bytes, bytes);
  return QRD_OK;
}

qrd_status SessionSegment::Map(int fd, uint64_t bytes, uint32_t rank, uint32_t world_size) {
  constexpr const char* kWhat = "session segment";
  if (qrd_status status = mapping_.Map(fd, bytes, Access::kReadWrite, kWhat); status != QRD_OK) {
    return status;
  }
  if (bytes < shm::SessionSegmentBytes(shm::kSlotsMin)) {
    return Bad(kWhat, "size in bytes", bytes, shm::SessionSegmentBytes(shm::kSlotsMin));
  }
  // One copy: what is checked is what is used.
  shm::SessionHeader h;
  std::memcpy(&h, mapping_.data(), sizeof(h));
  if (h.magic != shm::kSessionMagic) return Bad(kWhat, "magic", h.magic, shm::kSessionMagic);
  if (h.layout_version != shm::kLayoutVersion) {
    return Bad(kWhat, "layout_version", h.layout_version, shm::kLayoutVersion);
  }
  if (h.segment_bytes != bytes) return Bad(kWhat, "segment_bytes", h.segment_bytes, bytes);
  if (h.rank != rank) return Bad(kWhat, "rank", h.rank, rank);
  if (h.world_size != world_size) return Bad(kWhat, "world_size", h.world_size, world_size);
  if (!std::has_single_bit(h.slot_count) || h.slot_count < shm::kSlotsMin ||
      h.slot_count > shm::kSlotsMax) {
    return Fail(QRD_INTERNAL, "%s from the daemon: slot_count is %u, want a power of two, %u to %u",
                kWhat, h.slot_count, shm::kSlotsMin, shm::kSlotsMax);
  }
  if (bytes != shm::SessionSegmentBytes(h.slot_count)) {
    return Bad(kWhat, "size in bytes", bytes, shm::SessionSegmentBytes(h.slot_count));
  }
  if (h.ring_offset_bytes != shm::kRingOffsetBytes) {
    return Bad(kWhat, "ring_offset_bytes", h.ring_offset_bytes, shm::kRingOffsetBytes);
  }
  const uint64_t descriptors = shm::DescriptorOffsetBytes(h.slot_count);
  if (h.descriptor_offset_bytes != descriptors) {
    return Bad(kWhat, "descriptor_offset_bytes", h.descriptor_offset_bytes, descriptors);
  }
  const uint64_t completions = shm::CompletionOffsetBytes(h.slot_count);
  if (h.completion_offset_bytes != completions) {
    return Bad(kWhat, "completion_offset_bytes", h.completion_offset_bytes, completions);
  }
  slot_count_ = h.slot_count;
  return QRD_OK;
}

}  // namespace qrd::client
