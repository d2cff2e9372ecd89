// SPDX-License-Identifier: Apache-2.0
// The HIP runtime functions that libqrd calls: names, signatures and numbers, declared here because
// libqrd builds without ROCm. Source: AMD, "HIP runtime API reference"
// (rocm.docs.amd.com/projects/HIP), modules named below, as of HIP 6.0, in which the numbers of
// hipMemoryType changed: older runtimes are refused. tests/client/hip_api_test.cc compares every
// line with hip_runtime_api.h where that is installed. Handles are void*, enums are int.
//
// Thread safety, ownership: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qrd::client::gpu::hip {

inline constexpr int kRuntimeVersionMin = 60'000'000;  // 6.0, see hipRuntimeGetVersion
// hipError_t.
inline constexpr int kSuccess = 0;
inline constexpr int kErrorInvalidValue = 1;
inline constexpr int kErrorOutOfMemory = 2;
inline constexpr int kErrorInvalidDevice = 101;
inline constexpr int kErrorNotReady = 600;
// hipPointer_attribute, hipMemoryType.
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerIsManaged = 8;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kMemoryTypeDevice = 2;
inline constexpr int kMemoryTypeManaged = 3;
// hipIpcMemLazyEnablePeerAccess, hipStreamNonBlocking, hipHostRegister*, hipMemcpyKind.
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;
inline constexpr int kMemcpyDeviceToDevice = 3;
// hipStreamCaptureStatus, hipStreamCaptureMode.
inline constexpr int kCaptureNone = 0;
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureModeRelaxed = 2;
// hipStreamWaitValueEq.
inline constexpr unsigned kWaitValueEq = 1;

struct Uuid {
  char bytes[16];
};
struct IpcMemHandle {
  char reserved[64];
};

// As QRD_CUDA_FUNCTIONS; all return a hipError_t.
#define QRD_HIP_FUNCTIONS(REQUIRED, OPTIONAL)                                                    \
  /* Initialization and Version, Device Management, Error Handling */                            \
  REQUIRED(Init, hipInit, (unsigned flags))                                                      \
  REQUIRED(RuntimeGetVersion, hipRuntimeGetVersion, (int* version))                              \
  REQUIRED(GetLastError, hipGetLastError, ())                                                    \
  REQUIRED(GetDeviceCount, hipGetDeviceCount, (int* count))                                      \
  REQUIRED(GetDevice, hipGetDevice, (int* device))                                               \
  REQUIRED(SetDevice, hipSetDevice, (int device))                                                \
  REQUIRED(DeviceGetUuid, hipDeviceGetUuid, (Uuid * uuid, int device))                           \
  REQUIRED(DeviceGetPciBusId, hipDeviceGetPCIBusId, (char* text, int bytes, int device))         \
  REQUIRED(DeviceGetByPciBusId, hipDeviceGetByPCIBusId, (int* device, const char* text))         \
  /* Memory Management */                                                                        \
  REQUIRED(PointerGetAttribute, hipPointerGetAttribute, (void* data, int attribute, void* ptr))  \
  REQUIRED(MemGetAddressRange, hipMemGetAddressRange, (void** base, size_t* bytes, void* ptr))   \
  REQUIRED(IpcGetMemHandle, hipIpcGetMemHandle, (IpcMemHandle * handle, void* ptr))              \
  REQUIRED(IpcOpenMemHandle, hipIpcOpenMemHandle,                                                \
           (void** ptr, IpcMemHandle handle, unsigned flags))                                    \
  REQUIRED(IpcCloseMemHandle, hipIpcCloseMemHandle, (void* ptr))                                 \
  REQUIRED(HostRegister, hipHostRegister, (void* data, size_t bytes, unsigned flags))            \
  REQUIRED(HostUnregister, hipHostUnregister, (void* data))                                      \
  REQUIRED(HostGetDevicePointer, hipHostGetDevicePointer,                                        \
           (void** ptr, void* data, unsigned flags))                                             \
  REQUIRED(MemcpyAsync, hipMemcpyAsync,                                                          \
           (void* to, const void* from, size_t bytes, int kind, void* stream))                   \
  /* Stream Management, Stream Memory Operations, Graph Management */                            \
  REQUIRED(StreamCreate, hipStreamCreateWithFlags, (void** stream, unsigned flags))              \
  REQUIRED(StreamDestroy, hipStreamDestroy, (void* stream))                                      \
  REQUIRED(StreamQuery, hipStreamQuery, (void* stream))                                          \
  REQUIRED(StreamIsCapturing, hipStreamIsCapturing, (void* stream, int* status))                 \
  OPTIONAL(ExchangeCaptureMode, hipThreadExchangeStreamCaptureMode, (int* mode))                 \
  OPTIONAL(StreamWriteValue32, hipStreamWriteValue32,                                            \
           (void* stream, void* address, uint32_t value, unsigned flags))                        \
  OPTIONAL(StreamWaitValue32, hipStreamWaitValue32,                                              \
           (void* stream, void* address, uint32_t value, unsigned flags, uint32_t mask))         \
  /* Module Management: the gate kernel */                                                       \
  OPTIONAL(ModuleLoadData, hipModuleLoadData, (void** module, const void* image))                \
  OPTIONAL(ModuleGetFunction, hipModuleGetFunction,                                              \
           (void** function, void* module, const char* name))                                    \
  OPTIONAL(ModuleLaunchKernel, hipModuleLaunchKernel,                                            \
           (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
            unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,             \
            void** parameters, void** extra))

struct Api {
#define QRD_HIP_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  QRD_HIP_FUNCTIONS(QRD_HIP_MEMBER, QRD_HIP_MEMBER)
#undef QRD_HIP_MEMBER
  const char* (*GetErrorString)(int error) = nullptr;  // hipGetErrorString
};

// hiprtc ("HIP RTC API"): all return a hiprtcResult, 0 is success.
#define QRD_HIPRTC_FUNCTIONS(REQUIRED)                                                             \
  REQUIRED(CreateProgram, hiprtcCreateProgram,                                                     \
           (void** program, const char* source, const char* name, int headers,                     \
            const char** header_texts, const char** header_names))                                 \
  REQUIRED(CompileProgram, hiprtcCompileProgram, (void* program, int count, const char** options)) \
  REQUIRED(GetProgramLogSize, hiprtcGetProgramLogSize, (void* program, size_t* bytes))             \
  REQUIRED(GetProgramLog, hiprtcGetProgramLog, (void* program, char* log))                         \
  REQUIRED(GetCodeSize, hiprtcGetCodeSize, (void* program, size_t* bytes))                         \
  REQUIRED(GetCode, hiprtcGetCode, (void* program, char* code))                                    \
  REQUIRED(DestroyProgram, hiprtcDestroyProgram, (void** program))

struct RtcApi {
#define QRD_HIPRTC_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  QRD_HIPRTC_FUNCTIONS(QRD_HIPRTC_MEMBER)
#undef QRD_HIPRTC_MEMBER
};

}  // namespace qrd::client::gpu::hip
