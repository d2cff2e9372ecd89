// SPDX-License-Identifier: Apache-2.0
// Objects that must outlive their owner because a thread or a device may still use them.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace qrd::client {

// Keeps the object until the process ends, never destroyed and still reachable, so that a leak
// checker does not take it for lost. Thread-safe.
template <typename T>
void KeepForever(std::unique_ptr<T> object) {
  struct Kept {
    std::mutex mu;
    std::vector<const T*> objects;
  };
  static Kept* const kept = new Kept;
  const std::lock_guard<std::mutex> lock(kept->mu);
  kept->objects.push_back(object.release());
}

}  // namespace qrd::client
