// SPDX-License-Identifier: Apache-2.0
// What the host side of kernels/gpu shares: errors of the runtime, the current device.
//
// Thread safety: any thread; a ScopedDevice belongs to its thread.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "kernels/gpu/gpu_runtime.h"

#define QRD_RETURN_IF_RUNTIME_ERROR(call)                              \
  do {                                                                 \
    const hipError_t qrd_error = (call);                               \
    if (qrd_error != hipSuccess) return FromRuntime(qrd_error, #call); \
  } while (false)

namespace qrd::gpu {

// INTERNAL with the call and the runtime's words; OK for hipSuccess.
absl::Status FromRuntime(hipError_t error, const char* call);

// The runtime's current device belongs to the thread: put it back.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device) {
    if (hipGetDevice(&before_) != hipSuccess) before_ = 0;
    error_ = hipSetDevice(device);
  }
  ~ScopedDevice() { (void)hipSetDevice(before_); }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;
  hipError_t error() const { return error_; }

 private:
  int before_ = 0;
  hipError_t error_;
};

// Memory that kernels write while we read it.
template <typename T>
T ReadShared(const T& value) {
  return std::atomic_ref<T>(const_cast<T&>(value)).load(std::memory_order_acquire);
}

}  // namespace qrd::gpu
