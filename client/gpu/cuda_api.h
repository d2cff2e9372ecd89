// SPDX-License-Identifier: Apache-2.0
// The CUDA driver functions that libqrd calls: names, signatures and numbers, declared here because
// libqrd builds without CUDA. Source: NVIDIA, "CUDA Driver API" reference manual
// (docs.nvidia.com/cuda/cuda-driver-api), chapters named below. tests/client/cuda_api_test.cc
// compares every line with cuda.h where that is installed. Handles are void*, enums are int.
//
// Thread safety, ownership: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qrd::client::gpu::cuda {

// Data types: CUresult.
inline constexpr int kSuccess = 0;
inline constexpr int kErrorInvalidValue = 1;
inline constexpr int kErrorOutOfMemory = 2;
inline constexpr int kErrorNotInitialized = 3;
inline constexpr int kErrorNoDevice = 100;
inline constexpr int kErrorInvalidDevice = 101;
inline constexpr int kErrorInvalidContext = 201;
inline constexpr int kErrorNotReady = 600;
inline constexpr int kErrorNotSupported = 801;
// CUpointer_attribute, CUmemorytype.
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kPointerIsLegacyIpcCapable = 10;
inline constexpr int kMemoryTypeHost = 1;
inline constexpr int kMemoryTypeDevice = 2;
// CUipcMem_flags, CUstream_flags, CU_MEMHOSTREGISTER_*.
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, as addresses.
inline constexpr uintptr_t kStreamLegacy = 1;
inline constexpr uintptr_t kStreamPerThread = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
// CUstreamCaptureStatus, CUstreamCaptureMode.
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureModeRelaxed = 2;
// CUstreamWaitValue_flags, CUstreamWriteValue_flags, CUstreamBatchMemOpType.
inline constexpr unsigned kWaitValueEq = 1;
inline constexpr unsigned kWriteValueDefault = 0;
inline constexpr int kMemOpWait32 = 1;
inline constexpr int kMemOpWrite32 = 2;

using DevicePointer = unsigned long long;  // CUdeviceptr

struct Uuid {
  char bytes[16];
};
struct IpcMemHandle {
  char reserved[64];
};
// CUstreamBatchMemOpParams, its members waitValue and writeValue, which are alike.
struct BatchMemOp {
  int operation;
  DevicePointer address;
  uint64_t value;
  unsigned flags;
  DevicePointer alias;  // the driver's
  uint64_t padding;
};
static_assert(sizeof(BatchMemOp) == 48);

// REQUIRED(member, symbol, parameters), OPTIONAL likewise: members stay null if the library lacks
// the symbol. All return a CUresult.
#define QRD_CUDA_FUNCTIONS(REQUIRED, OPTIONAL)                                                   \
  /* Initialization, Error Handling */                                                           \
  REQUIRED(Init, cuInit, (unsigned flags))                                                       \
  REQUIRED(GetErrorString, cuGetErrorString, (int error, const char** text))                     \
  /* Device Management, Primary Context Management, Context Management */                        \
  REQUIRED(DeviceGetCount, cuDeviceGetCount, (int* count))                                       \
  REQUIRED(DeviceGet, cuDeviceGet, (int* device, int ordinal))                                   \
  REQUIRED(DeviceGetUuid, cuDeviceGetUuid_v2, (Uuid * uuid, int device))                         \
  REQUIRED(DeviceGetPciBusId, cuDeviceGetPCIBusId, (char* text, int bytes, int device))          \
  REQUIRED(DeviceGetByPciBusId, cuDeviceGetByPCIBusId, (int* device, const char* text))          \
  REQUIRED(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void** context, int device))             \
  REQUIRED(PrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int device))                        \
  REQUIRED(CtxGetCurrent, cuCtxGetCurrent, (void** context))                                     \
  REQUIRED(CtxSetCurrent, cuCtxSetCurrent, (void* context))                                      \
  REQUIRED(CtxGetDevice, cuCtxGetDevice, (int* device))                                          \
  /* Memory Management, Unified Addressing */                                                    \
  REQUIRED(PointerGetAttribute, cuPointerGetAttribute,                                           \
           (void* data, int attribute, DevicePointer ptr))                                       \
  REQUIRED(MemGetAddressRange, cuMemGetAddressRange_v2,                                          \
           (DevicePointer * base, size_t * bytes, DevicePointer ptr))                            \
  REQUIRED(IpcGetMemHandle, cuIpcGetMemHandle, (IpcMemHandle * handle, DevicePointer ptr))       \
  REQUIRED(IpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                              \
           (DevicePointer * ptr, IpcMemHandle handle, unsigned flags))                           \
  REQUIRED(IpcCloseMemHandle, cuIpcCloseMemHandle, (DevicePointer ptr))                          \
  REQUIRED(MemHostRegister, cuMemHostRegister_v2, (void* data, size_t bytes, unsigned flags))    \
  REQUIRED(MemHostUnregister, cuMemHostUnregister, (void* data))                                 \
  REQUIRED(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                \
           (DevicePointer * ptr, void* data, unsigned flags))                                    \
  REQUIRED(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                \
           (DevicePointer to, DevicePointer from, size_t bytes, void* stream))                   \
  /* Stream Management, Stream Memory Operations */                                              \
  REQUIRED(StreamCreate, cuStreamCreate, (void** stream, unsigned flags))                        \
  REQUIRED(StreamDestroy, cuStreamDestroy_v2, (void* stream))                                    \
  REQUIRED(StreamQuery, cuStreamQuery, (void* stream))                                           \
  REQUIRED(StreamIsCapturing, cuStreamIsCapturing, (void* stream, int* status))                  \
  OPTIONAL(StreamGetFlags, cuStreamGetFlags, (void* stream, unsigned* flags))                    \
  OPTIONAL(StreamGetId, cuStreamGetId, (void* stream, unsigned long long* id))                   \
  OPTIONAL(ExchangeCaptureMode, cuThreadExchangeStreamCaptureMode, (int* mode))                  \
  OPTIONAL(StreamWriteValue32, cuStreamWriteValue32_v2,                                          \
           (void* stream, DevicePointer address, uint32_t value, unsigned flags))                \
  OPTIONAL(StreamWaitValue32, cuStreamWaitValue32_v2,                                            \
           (void* stream, DevicePointer address, uint32_t value, unsigned flags))                \
  OPTIONAL(StreamBatchMemOp, cuStreamBatchMemOp_v2,                                              \
           (void* stream, unsigned count, BatchMemOp* operations, unsigned flags))               \
  /* Module Management, Execution Control: the gate kernel */                                    \
  OPTIONAL(ModuleLoadData, cuModuleLoadData, (void** module, const void* image))                 \
  OPTIONAL(ModuleGetFunction, cuModuleGetFunction,                                               \
           (void** function, void* module, const char* name))                                    \
  OPTIONAL(LaunchKernel, cuLaunchKernel,                                                         \
           (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
            unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,             \
            void** parameters, void** extra))

struct Api {
#define QRD_CUDA_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  QRD_CUDA_FUNCTIONS(QRD_CUDA_MEMBER, QRD_CUDA_MEMBER)
#undef QRD_CUDA_MEMBER
};

}  // namespace qrd::client::gpu::cuda
