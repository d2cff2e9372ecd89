// SPDX-License-Identifier: Apache-2.0
// Mappings of the memory that the daemon passes over the attach socket, checked before use: size by
// fstat, seals (so that a page can never vanish under a reader: no SIGBUS), header fields against
// proto/shm/layout.h. The daemon is trusted to do its work, not to be free of mistakes: a bad
// segment is an error text, not a crash.
//
// Thread safety: immutable after Map. Ownership: owns the mapping; the descriptor may be closed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/core/unique_fd.h"
#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

enum class Access { kRead, kReadWrite };

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { Unmap(); }

  // Maps the whole of a sealed memfd of exactly `bytes` bytes. `what` names it in errors.
  qrd_status Map(int fd, uint64_t bytes, Access access, const char* what);
  void Unmap();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The node segment: whether a post must ring.
class NodeSegment {
 public:
  qrd_status Map(int fd, uint64_t bytes);
  const std::atomic<uint32_t>* engine_sleeping() const { return &header()->engine_sleeping; }
  // CLOCK_MONOTONIC of the daemon's last sign of life.
  uint64_t progress_ns() const { return header()->progress_ns.load(std::memory_order_relaxed); }

 private:
  const shm::NodeHeader* header() const {
    return reinterpret_cast<const shm::NodeHeader*>(mapping_.data());
  }
  Mapping mapping_;
};

// The session segment. Offsets come from the layout, not from the header (which must agree).
class SessionSegment {
 public:
  qrd_status Map(int fd, uint64_t bytes, uint32_t rank, uint32_t world_size);

  uint32_t slot_count() const { return slot_count_; }
  shm::ProducerLine* producer() const { return At<shm::ProducerLine>(shm::kProducerOffsetBytes); }
  const shm::ConsumerLine* consumer() const {
    return At<shm::ConsumerLine>(shm::kConsumerOffsetBytes);
  }
  uint32_t* ring() const { return At<uint32_t>(shm::kRingOffsetBytes); }
  shm::Descriptor* descriptor(uint32_t slot) const {
    return At<shm::Descriptor>(shm::DescriptorOffsetBytes(slot_count_)) + slot;
  }
  shm::Completion* completion(uint32_t slot) const {
    return At<shm::Completion>(shm::CompletionOffsetBytes(slot_count_)) + slot;
  }

 private:
  template <typename T>
  T* At(uint64_t offset_bytes) const {
    return reinterpret_cast<T*>(mapping_.data() + offset_bytes);
  }
  Mapping mapping_;
  uint32_t slot_count_ = 0;
};

}  // namespace qrd::client
