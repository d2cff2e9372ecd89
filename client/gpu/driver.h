// SPDX-License-Identifier: Apache-2.0
// The GPU as libqrd sees it: the driver library of the machine, loaded at run time, behind one
// interface. libqrd links no GPU library and includes no vendor header: cuda_api.h and hip_api.h
// declare what is used.
//
// Which library: $QRD_GPU_DRIVER if it is set, else libcuda.so.1, else libamdhip64.so. What it
// exports (cuInit or hipInit) says which kind it is.
//
// Thread safety: all functions from any thread. Ownership: a Driver belongs to the process and is
// never unloaded, since GPU libraries do not survive that.
//
// Invariants
//   1. Every failure is a status with a text (client/core/error.h) that names the call.
//   2. Functions that need a context current say so; DeviceScope makes one current and puts the
//      caller's back. No function leaves another context or capture mode than it found.
//   3. Nothing here waits for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "qrd/qrd.h"

namespace qrd::client::gpu {

using DevicePtr = uint64_t;
using Stream = void*;   // CUstream, hipStream_t; null is the default stream
using Context = void*;  // CUcontext; of HIP: the device's number plus one

inline constexpr size_t kIpcHandleBytes = 64;

enum class Capture { kNone, kActive, kInvalidated };

struct PointerInfo {
  enum class Kind { kHost, kDevice, kManaged } kind = Kind::kHost;
  int device = -1;           // of device memory
  bool ipc_capable = false;  // of device memory: a handle of it can be opened by other processes
};

inline constexpr uint32_t kStepsMax = 8;

// One step on a stream: write a word, or wait until it has a value.
struct Step {
  bool wait;
  DevicePtr address;  // of a word of registered host memory
  uint32_t value;
};

// How steps are put on a stream. The environment variable QRD_GPU_GATE chooses (see qrd.h).
enum class StepMode {
  kBatch,   // one call of stream memory operations
  kMemory,  // one stream memory operation a step
  kKernel,  // the gate kernel, see gate_kernel.h
};

// What the gate kernel needs beside its steps.
struct GateLimits {
  DevicePtr expired = 0;
  uint64_t bound_ns = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;

  virtual const char* name() const = 0;  // "CUDA", "HIP"

  // --- devices and contexts ---
  virtual qrd_status DeviceCount(int* count) = 0;
  // `device`, here and below, is a number of this process's driver and means nothing elsewhere.
  virtual qrd_status DeviceAt(int ordinal, int* device) = 0;
  virtual qrd_status DeviceUuid(int device, std::string* uuid) = 0;  // "GPU-" and 36 characters
  virtual qrd_status DevicePciAddress(int device, std::string* address) = 0;
  // QRD_NOT_FOUND if no device of this process has the address.
  virtual qrd_status FindPciAddress(const std::string& address, int* device) = 0;
  // The calling thread's. QRD_FAILED_PRECONDITION if it has none.
  virtual qrd_status CurrentDevice(int* device) = 0;
  // The context to work in: the thread's if it is one of `device`, else the device's primary one,
  // which is kept alive until CloseContext.
  virtual qrd_status OpenContext(int device, Context* context, bool* retained) = 0;
  virtual void CloseContext(int device) = 0;  // only if it was retained
  virtual qrd_status Enter(Context context, Context* previous) = 0;
  virtual void Leave(Context previous) = 0;
  // Lets this thread make calls that a capture in another thread would be spoilt by. False if the
  // driver knows no such thing (then nothing is to be restored).
  virtual bool RelaxCapture(int* previous) = 0;
  virtual void RestoreCapture(int previous) = 0;

  // --- memory (a context must be current) ---
  virtual qrd_status DescribePointer(const void* ptr, PointerInfo* info) = 0;
  virtual qrd_status AllocationOf(DevicePtr ptr, DevicePtr* base, size_t* bytes) = 0;
  virtual qrd_status ExportHandle(DevicePtr base, char handle[kIpcHandleBytes]) = 0;
  virtual qrd_status OpenHandle(const char handle[kIpcHandleBytes], DevicePtr* base) = 0;
  virtual qrd_status CloseHandle(DevicePtr base) = 0;
  // Makes whole pages of host memory writable for every device; `address` is the device's.
  virtual qrd_status RegisterHost(void* data, size_t bytes, DevicePtr* address) = 0;
  virtual qrd_status UnregisterHost(void* data) = 0;

  // --- streams (a context must be current) ---
  virtual qrd_status CreateStream(Stream* stream) = 0;  // does not synchronize with the default one
  virtual void DestroyStream(Stream stream) = 0;
  virtual qrd_status StreamDone(Stream stream, bool* done) = 0;
  // No other stream orders it (as a default stream does): when it is done, what is put on it next
  // has nothing to wait for. False also if the driver cannot tell.
  virtual bool IsNonBlocking(Stream stream) = 0;
  // A number that no other stream of the process has had. False: the driver cannot tell.
  virtual bool StreamId(Stream stream, uint64_t* id) = 0;
  virtual qrd_status CaptureState(Stream stream, Capture* capture) = 0;
  virtual qrd_status Copy(Stream stream, DevicePtr to, DevicePtr from, size_t bytes) = 0;
  // Whether the library and the device have what the mode needs (a kernel is loaded by this).
  virtual qrd_status PrepareSteps(int device, StepMode mode) = 0;
  // False: the mode works outside of captures only.
  virtual bool Capturable(StepMode mode) const = 0;
  // At most kStepsMax steps, in order. If it fails, `*queued` says how many may be on the
  // stream.
  virtual qrd_status Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                             const GateLimits& limits, size_t* queued) = 0;
};

// The process's driver, loaded by the first call. QRD_FAILED_PRECONDITION names the libraries that
// were tried and why each did not do.
qrd_status GetDriver(Driver** driver);

// For communicators with host memory: whether only a GPU reaches `ptr`. Loads nothing and starts
// nothing: it looks only if the process has a GPU library loaded already. *library is its name.
bool IsDeviceMemory(const void* ptr, const char** library);

// Makes a context current on this thread and lets it make calls while others capture, until the end
// of the scope.
class DeviceScope {
 public:
  DeviceScope(Driver* driver, Context context) : driver_(driver) {
    status_ = driver->Enter(context, &previous_);
    if (status_ == QRD_OK) relaxed_ = driver->RelaxCapture(&previous_mode_);
  }
  ~DeviceScope() {
    if (relaxed_) driver_->RestoreCapture(previous_mode_);
    if (status_ == QRD_OK) driver_->Leave(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  qrd_status status() const { return status_; }

 private:
  Driver* const driver_;
  Context previous_ = nullptr;
  int previous_mode_ = 0;
  bool relaxed_ = false;
  qrd_status status_;
};

// "GPU-" and 8-4-4-4-12 hexadecimal digits.
std::string FormatUuid(const unsigned char bytes[16]);

}  // namespace qrd::client::gpu
