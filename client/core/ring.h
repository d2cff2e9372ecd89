// SPDX-License-Identifier: Apache-2.0
// The client's side of a submission ring: writes slot numbers, publishes the tail, rings the
// doorbell if the engine sleeps. The daemon's side is the only consumer.
//
// Thread safety: one producer; threads of a process lock among themselves (the communicator's
// mutex). Ownership: views of a SessionSegment and a NodeSegment, and a doorbell, that must outlive
// it.
//
// Invariants
//   1. Indices count up for ever; entry = index % slot_count. An entry is not written while the
//      consumer may still read it: tail - head < slot_count before every write.
//   2. An entry and the descriptor that it names are complete before `tail` shows them (release).
//   3. No lost wake-up: store of tail, then load of engine_sleeping, both seq_cst, pair with the
//      engine's store of engine_sleeping, seq_cst fence, load of tails: one of the two sees the
//      other. (A seq_cst store costs what the fence would, and ThreadSanitizer understands it.)
//   4. The own tail is kept in private memory: what lies in the segment is never read back.
#pragma once

#include <cstdint>

#include "proto/shm/layout.h"

namespace qrd::client {

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(shm::ProducerLine* producer, const shm::ConsumerLine* consumer, uint32_t* entries,
               uint32_t slot_count, const std::atomic<uint32_t>* engine_sleeping, int doorbell_fd)
      : producer_(producer),
        consumer_(consumer),
        entries_(entries),
        slot_count_(slot_count),
        engine_sleeping_(engine_sleeping),
        doorbell_fd_(doorbell_fd) {}

  // False if there is no room; nothing was written then.
  bool Publish(uint32_t slot) {
    if (tail_ - head_ >= slot_count_) {
      head_ = consumer_->head.load(std::memory_order_acquire);
      // A head that is past the tail (a broken daemon) gives a huge difference: full, not
      // overwritten.
      if (tail_ - head_ >= slot_count_) return false;
    }
    entries_[tail_ & (slot_count_ - 1)] = slot;
    producer_->tail.store(++tail_, std::memory_order_seq_cst);
    if (engine_sleeping_->load(std::memory_order_seq_cst) != 0) Ring();
    return true;
  }

  // Counts a post that was refused because all slots were in use; the daemon exports the number.
  void CountFull() { producer_->ring_full.store(++ring_full_, std::memory_order_relaxed); }

 private:
  void Ring();

  shm::ProducerLine* producer_ = nullptr;
  const shm::ConsumerLine* consumer_ = nullptr;
  uint32_t* entries_ = nullptr;
  uint32_t slot_count_ = 0;
  const std::atomic<uint32_t>* engine_sleeping_ = nullptr;
  int doorbell_fd_ = -1;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;
  uint64_t ring_full_ = 0;
};

// Refuses a doorbell that could raise SIGPIPE or block, and makes it non-blocking.
bool PrepareDoorbell(int fd);

}  // namespace qrd::client
