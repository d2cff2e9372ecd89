// SPDX-License-Identifier: Apache-2.0
// libqrd's own declarations of the CUDA driver against NVIDIA's header. The work is done by the
// compiler; without the header the test says that it was skipped.
#include "client/gpu/cuda_api.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cuda.h>

#include "tests/client/gpu/same_abi.h"

namespace qrd::client::gpu::cuda {
namespace {

using qrd::testing::SameAbi;

// The symbols with a version (_v2) are those that the header's names stand for.
#define QRD_COMPARE(member, symbol, parameters) \
  static_assert(SameAbi<decltype(Api::member), decltype(&::symbol)>::value, #symbol);
QRD_CUDA_FUNCTIONS(QRD_COMPARE, QRD_COMPARE)
#undef QRD_COMPARE

#define QRD_EQUAL(ours, theirs) static_assert(static_cast<long long>(ours) == (theirs))
QRD_EQUAL(kSuccess, CUDA_SUCCESS);
QRD_EQUAL(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
QRD_EQUAL(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
QRD_EQUAL(kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
QRD_EQUAL(kErrorNotReady, CUDA_ERROR_NOT_READY);
QRD_EQUAL(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
QRD_EQUAL(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
QRD_EQUAL(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
QRD_EQUAL(kPointerIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
QRD_EQUAL(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
QRD_EQUAL(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
QRD_EQUAL(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
QRD_EQUAL(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
QRD_EQUAL(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
QRD_EQUAL(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
QRD_EQUAL(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
QRD_EQUAL(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
QRD_EQUAL(kWaitValueEq, CU_STREAM_WAIT_VALUE_EQ);
QRD_EQUAL(kWriteValueDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
QRD_EQUAL(kMemOpWait32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
QRD_EQUAL(kMemOpWrite32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
#undef QRD_EQUAL

using Params = CUstreamBatchMemOpParams;
static_assert(sizeof(BatchMemOp) == sizeof(Params) && alignof(BatchMemOp) == alignof(Params));
static_assert(offsetof(BatchMemOp, operation) == offsetof(Params, operation));
static_assert(offsetof(BatchMemOp, address) == offsetof(Params, waitValue.address));
static_assert(offsetof(BatchMemOp, value) == offsetof(Params, waitValue.value));
static_assert(offsetof(BatchMemOp, flags) == offsetof(Params, waitValue.flags));
static_assert(offsetof(BatchMemOp, alias) == offsetof(Params, waitValue.alias));
static_assert(offsetof(BatchMemOp, address) == offsetof(Params, writeValue.address));
static_assert(offsetof(BatchMemOp, value) == offsetof(Params, writeValue.value));
static_assert(offsetof(BatchMemOp, flags) == offsetof(Params, writeValue.flags));

TEST(CudaApiTest, DeclarationsAreThoseOfTheHeader) {}

}  // namespace
}  // namespace qrd::client::gpu::cuda
#else
TEST(CudaApiTest, DeclarationsAreThoseOfTheHeader) {
  GTEST_SKIP() << "cuda.h is not installed: nothing was compared";
}
#endif
