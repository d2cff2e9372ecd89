// SPDX-License-Identifier: Apache-2.0
// The GPU runtime calls that qrd uses, in HIP spelling. On NVIDIA (QRD_GPU_CUDA) each name stands
// for its CUDA twin. Only kernels/gpu and tests/gpu include this header.
//
// Thread safety: that of the runtime. Ownership: none.
#pragma once

#if defined(QRD_GPU_CUDA)

#include <cuda_runtime_api.h>

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
#define hipErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessAlreadyEnabled
#define hipErrorNotReady cudaErrorNotReady
#define hipDeviceAttributeCooperativeLaunch cudaDevAttrCooperativeLaunch
#define hipDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define hipDeviceAttributeWarpSize cudaDevAttrWarpSize
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
#define hipHostMalloc cudaHostAlloc
#define hipLaunchCooperativeKernel cudaLaunchCooperativeKernel
#define hipLaunchKernel cudaLaunchKernel
#define hipMalloc cudaMalloc
#define hipMemcpy cudaMemcpy
#define hipMemcpyAsync cudaMemcpyAsync
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

#else

#include <hip/hip_runtime_api.h>

// Uncached: a peer's stores over the links are seen without a cache flush on this side.
inline hipError_t AllocateShared(void** memory, size_t bytes) {
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocUncached);
}

#endif
