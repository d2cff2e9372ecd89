// SPDX-License-Identifier: Apache-2.0
// Which entries of a stream segment are in use, and for what.
//
//   free -> queued (on a stream once, in order) -> free again once the oldest of them has ended
//   free -> kept (captured in a graph, which may be replayed at any time): never free again
//
// Captured operations with the same descriptor share an entry: a graph of a model repeats few of
// them many times.
//
// Thread safety: none, the owner locks. Ownership: blocks are pinned by the owner.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/src/memory_table.h"
#include "client/src/operation_table.h"
#include "proto/shm/layout.h"

namespace qrd::client {

class StreamEntries {
 public:
  struct Queued {
    uint32_t entry = 0;
    uint32_t ticket = 0;
    std::array<Block*, kRmsNormOperandsMax> blocks{};  // pinned; null: nothing
  };

  explicit StreamEntries(uint32_t count);

  // False if no entry is free.
  bool Take(uint32_t* entry);
  void PutBack(uint32_t entry);

  void Queue(const Queued& queued) { queue_.push_back(queued); }
  // It did not get onto the stream; the entry is free.
  void UnqueueNewest();
  const Queued* Oldest() const { return queue_.empty() ? nullptr : &queue_.front(); }
  // The oldest has ended: its entry is free.
  void RetireOldest();

  // The entry that is kept for this descriptor. False if there is none.
  bool FindKept(const shm::Descriptor& descriptor, uint32_t* entry) const;
  void Keep(uint32_t entry, const shm::Descriptor& descriptor);

  // What a completion does not say. Of an entry that was taken at least once.
  void SetStaged(uint32_t entry, bool staged) { staged_[entry] = staged; }
  bool staged(uint32_t entry) const { return staged_[entry]; }

  uint32_t count() const { return static_cast<uint32_t>(staged_.size()); }
  uint32_t kept() const { return static_cast<uint32_t>(kept_.size()); }
  // Entries below this one have been used.
  uint32_t touched() const { return touched_; }

 private:
  static std::string Key(const shm::Descriptor& descriptor);

  std::vector<uint32_t> free_;  // a stack
  std::deque<Queued> queue_;
  std::unordered_map<std::string, uint32_t> kept_;
  std::vector<bool> staged_;
  uint32_t touched_ = 0;
};

}  // namespace qrd::client
