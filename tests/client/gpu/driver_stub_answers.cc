// SPDX-License-Identifier: Apache-2.0
// See driver_stub.cc. One of
//   QRD_STUB_CUDA       a driver without devices, which knows one piece of device memory
//   QRD_STUB_CUDA_OLD   cuInit and nothing else
//   QRD_STUB_HIP_OLD    HIP 5.7 with one device
//   QRD_STUB_NEITHER    no GPU library at all
#include <cstdint>
#include <cstring>

#include "client/gpu/cuda_api.h"
#include "client/gpu/hip_api.h"

extern "C" {

char qrd_stub_device_memory[4096];

#if defined(QRD_STUB_CUDA) || defined(QRD_STUB_LATE) || defined(QRD_STUB_UNTOUCHED)
namespace cuda = qrd::client::gpu::cuda;
int cuInit(unsigned) { return cuda::kSuccess; }
int cuDeviceGetCount(int* count) {
  *count = 0;
  return cuda::kSuccess;
}
int cuPointerGetAttribute(void* data, int attribute, cuda::DevicePointer ptr) {
  const auto start = reinterpret_cast<uintptr_t>(qrd_stub_device_memory);
  if (ptr < start || ptr - start >= sizeof(qrd_stub_device_memory)) return cuda::kErrorInvalidValue;
  const int value = attribute == cuda::kPointerMemoryType ? cuda::kMemoryTypeDevice : 0;
  std::memcpy(data, &value, sizeof(value));
  return cuda::kSuccess;
}
#elif defined(QRD_STUB_CUDA_OLD)
int cuInit(unsigned) { return 0; }
#elif defined(QRD_STUB_HIP_OLD)
namespace hip = qrd::client::gpu::hip;
const char* hipGetErrorString(int) { return "an error of the stub"; }
int hipInit(unsigned) { return hip::kSuccess; }
int hipRuntimeGetVersion(int* version) {
  *version = 50'700'000;
  return hip::kSuccess;
}
int hipGetDeviceCount(int* count) {
  *count = 1;
  return hip::kSuccess;
}
#endif

}  // extern "C"
