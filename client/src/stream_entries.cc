// SPDX-License-Identifier: Apache-2.0
#include "client/src/stream_entries.h"

#include <algorithm>

namespace qrd::client {

StreamEntries::StreamEntries(uint32_t count) : staged_(count, false) {
  free_.reserve(count);
  for (uint32_t entry = count; entry > 0; --entry) free_.push_back(entry - 1);
}

bool StreamEntries::Take(uint32_t* entry) {
  if (free_.empty()) return false;
  *entry = free_.back();
  free_.pop_back();
  touched_ = std::max(touched_, *entry + 1);
  return true;
}

void StreamEntries::PutBack(uint32_t entry) { free_.push_back(entry); }

void StreamEntries::RetireOldest() {
  free_.push_back(queue_.front().entry);
  queue_.pop_front();
}

void StreamEntries::UnqueueNewest() {
  free_.push_back(queue_.back().entry);
  queue_.pop_back();
}

std::string StreamEntries::Key(const shm::Descriptor& descriptor) {
  return std::string(reinterpret_cast<const char*>(&descriptor), sizeof(descriptor));
}

bool StreamEntries::FindKept(const shm::Descriptor& descriptor, uint32_t* entry) const {
  const auto it = kept_.find(Key(descriptor));
  if (it == kept_.end()) return false;
  *entry = it->second;
  return true;
}

void StreamEntries::Keep(uint32_t entry, const shm::Descriptor& descriptor) {
  kept_.emplace(Key(descriptor), entry);
}

}  // namespace qrd::client
