// SPDX-License-Identifier: Apache-2.0
// Device memory that clients import, client memory that the daemon imports, and host memory that
// devices write.
//
// Thread safety: any thread. Ownership: each object frees what it names.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/gpu/devices.h"

namespace qrd::gpu {

// Zeroed, rounded up to 2 MiB, exported. RESOURCE_EXHAUSTED says how much the device has left.
absl::StatusOr<std::unique_ptr<Arena>> AllocateDeviceArena(const Device& device, uint64_t bytes);

// [offset_bytes, offset_bytes + bytes) of the allocation that the handle names, at most all of it.
absl::StatusOr<std::unique_ptr<Arena>> ImportDeviceArena(const Device& device,
                                                         std::string_view ipc_handle,
                                                         uint64_t offset_bytes, uint64_t bytes);

// Registered host memory, to find the device's address of a word in it. Outlives its entries.
class VisibleMemory {
 public:
  absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> Register(void* data, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The device's address of a host word; null if it is in no registered memory.
  void* Translate(const void* word) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Entry;
  struct Range {
    uintptr_t end = 0;
    uintptr_t device_start = 0;
  };
  void Forget(void* data) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  std::map<uintptr_t, Range> ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace qrd::gpu
