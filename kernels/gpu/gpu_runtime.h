// SPDX-License-Identifier: Apache-2.0
// The GPU runtime calls that qrd uses, in HIP spelling. On NVIDIA (QRD_GPU_CUDA) each name stands
// for its CUDA twin. Only kernels/gpu and tests/gpu include this header.
//
// Thread safety: that of the runtime. Ownership: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// A word of host memory, by its address on the device, and what a stream writes to it.
struct StreamWord {
  void* address;
  uint32_t value;
};
inline constexpr std::size_t kStreamWordsMax = 32;

#if defined(QRD_GPU_CUDA)

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>

// Debian's HIP headers do not compile against CUDA 13, so the mapping is here and no longer than
// what is used.
using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipGraph_t = cudaGraph_t;
using hipGraphExec_t = cudaGraphExec_t;
using hipDeviceProp_t = cudaDeviceProp;
using hipFuncAttributes = cudaFuncAttributes;

// NOLINTBEGIN(cppcoreguidelines-macro-usage)
#define hipSuccess cudaSuccess
#define hipErrorNotSupported cudaErrorNotSupported
#define hipErrorMemoryAllocation cudaErrorMemoryAllocation
#define hipErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessAlreadyEnabled
#define hipErrorNotReady cudaErrorNotReady
#define hipDeviceAttributeCooperativeLaunch cudaDevAttrCooperativeLaunch
#define hipDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define hipDeviceAttributeWarpSize cudaDevAttrWarpSize
#define hipHostRegisterMapped cudaHostRegisterMapped
#define hipHostRegisterPortable cudaHostRegisterPortable
#define hipIpcMemHandle_t cudaIpcMemHandle_t
#define hipIpcMemLazyEnablePeerAccess cudaIpcMemLazyEnablePeerAccess
#define hipHostMallocMapped cudaHostAllocMapped
#define hipHostMallocPortable cudaHostAllocPortable
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDefault cudaMemcpyDefault
#define hipStreamCaptureModeGlobal cudaStreamCaptureModeGlobal
#define hipStreamNonBlocking cudaStreamNonBlocking

#define hipDeviceCanAccessPeer cudaDeviceCanAccessPeer
#define hipDeviceEnablePeerAccess cudaDeviceEnablePeerAccess
#define hipDeviceGetAttribute cudaDeviceGetAttribute
#define hipDeviceGetByPCIBusId cudaDeviceGetByPCIBusId
#define hipDeviceGetPCIBusId cudaDeviceGetPCIBusId
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipEventCreate cudaEventCreate
#define hipEventDestroy cudaEventDestroy
#define hipEventElapsedTime cudaEventElapsedTime
#define hipEventRecord cudaEventRecord
#define hipEventSynchronize cudaEventSynchronize
#define hipFree cudaFree
#define hipFuncGetAttributes cudaFuncGetAttributes
#define hipGetDevice cudaGetDevice
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDeviceProperties cudaGetDeviceProperties
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipGraphDestroy cudaGraphDestroy
#define hipGraphExecDestroy cudaGraphExecDestroy
#define hipGraphInstantiateWithFlags cudaGraphInstantiateWithFlags
#define hipGraphLaunch cudaGraphLaunch
#define hipHostFree cudaFreeHost
#define hipHostGetDevicePointer cudaHostGetDevicePointer
#define hipHostMalloc cudaHostAlloc
#define hipHostRegister cudaHostRegister
#define hipHostUnregister cudaHostUnregister
#define hipIpcCloseMemHandle cudaIpcCloseMemHandle
#define hipIpcGetMemHandle cudaIpcGetMemHandle
#define hipIpcOpenMemHandle cudaIpcOpenMemHandle
#define hipLaunchCooperativeKernel cudaLaunchCooperativeKernel
#define hipLaunchKernel cudaLaunchKernel
#define hipMalloc cudaMalloc
#define hipMemcpy cudaMemcpy
#define hipMemGetInfo cudaMemGetInfo
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpyPeerAsync cudaMemcpyPeerAsync
#define hipMemset cudaMemset
#define hipMemsetAsync cudaMemsetAsync
#define hipOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessor
#define hipSetDevice cudaSetDevice
#define hipStreamBeginCapture cudaStreamBeginCapture
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamEndCapture cudaStreamEndCapture
#define hipStreamQuery cudaStreamQuery
#define hipStreamSynchronize cudaStreamSynchronize
// NOLINTEND(cppcoreguidelines-macro-usage)

// Memory that other devices write flags and payload into.
inline hipError_t AllocateShared(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }

// A driver call: looked up, so that nothing links the driver's library.
// All in one call. What the stream did before is seen with every word.
inline hipError_t WriteStreamWords(hipStream_t stream, std::span<const StreamWord> words) {
  using Function = int (*)(hipStream_t, unsigned, CUstreamBatchMemOpParams*, unsigned);
  static const Function function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const hipError_t error = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, 12000,
                                                              cudaEnableDefault, &result);
    const bool there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<Function>(there ? found : nullptr);
  }();
  if (function == nullptr || words.size() > kStreamWordsMax) return cudaErrorNotSupported;
  std::array<CUstreamBatchMemOpParams, kStreamWordsMax> writes = {};
  for (std::size_t i = 0; i < words.size(); ++i) {
    CUstreamBatchMemOpParams& write = writes[i];
    write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = reinterpret_cast<CUdeviceptr>(words[i].address);
    write.writeValue.value = words[i].value;
    // With a fence each: a batch takes no write without one.
    write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  }
  // The driver's error numbers are the runtime's.
  return static_cast<cudaError_t>(
      function(stream, static_cast<unsigned>(words.size()), writes.data(), 0));
}

// Of the allocation that begins at `base`.
inline hipError_t AllocationBytes(void* base, uint64_t* bytes) {
  using Function = int (*)(unsigned long long*, size_t*, unsigned long long);
  static const Function function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const hipError_t error = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 12000,
                                                              cudaEnableDefault, &result);
    const bool there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<Function>(there ? found : nullptr);
  }();
  if (function == nullptr) return cudaErrorNotSupported;
  size_t size = 0;
  const int error = function(nullptr, &size, reinterpret_cast<unsigned long long>(base));
  *bytes = size;
  return static_cast<cudaError_t>(error);
}

// The 16 bytes that name a device on this machine.
inline hipError_t DeviceUuid(int device, unsigned char bytes[16]) {
  cudaDeviceProp properties;
  const hipError_t error = cudaGetDeviceProperties(&properties, device);
  for (int i = 0; error == cudaSuccess && i < 16; ++i) {
    bytes[i] = static_cast<unsigned char>(properties.uuid.bytes[i]);
  }
  return error;
}

#else

#include <hip/hip_runtime_api.h>

// What the stream did before is seen with every word.
inline hipError_t WriteStreamWords(hipStream_t stream, std::span<const StreamWord> words) {
  for (const StreamWord& word : words) {
    const hipError_t error = hipStreamWriteValue32(stream, word.address, word.value, 0);
    if (error != hipSuccess) return error;
  }
  return hipSuccess;
}

// Uncached: a peer's stores over the links are seen without a cache flush on this side.
inline hipError_t AllocateShared(void** memory, size_t bytes) {
#if defined(hipDeviceMallocUncached)
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocUncached);
#else  // before HIP 5.3
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocFinegrained);
#endif
}

// Of the allocation that begins at `base`.
inline hipError_t AllocationBytes(void* base, uint64_t* bytes) {
  size_t size = 0;
  const hipError_t error = hipMemGetAddressRange(nullptr, &size, base);
  *bytes = size;
  return error;
}

// The 16 bytes that name a device on this machine.
inline hipError_t DeviceUuid(int device, unsigned char bytes[16]) {
  hipUUID uuid;
  const hipError_t error = hipDeviceGetUuid(&uuid, device);
  for (int i = 0; error == hipSuccess && i < 16; ++i) {
    bytes[i] = static_cast<unsigned char>(uuid.bytes[i]);
  }
  return error;
}

#endif
