// SPDX-License-Identifier: Apache-2.0
// libqrd's own declarations of the HIP runtime against AMD's headers (6.0 or later). The work is
// done by the compiler; without the headers the test says that it was skipped.
#include "client/gpu/hip_api.h"

#include <gtest/gtest.h>

#if __has_include(<hip/hip_version.h>)
#include <hip/hip_version.h>
#endif

#if defined(HIP_VERSION_MAJOR) && HIP_VERSION_MAJOR >= 6
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>

#include "tests/client/gpu/same_abi.h"

namespace qrd::client::gpu::hip {
namespace {

using qrd::testing::SameAbi;

#define QRD_COMPARE(member, symbol, parameters) \
  static_assert(SameAbi<decltype(Api::member), decltype(&::symbol)>::value, #symbol);
QRD_HIP_FUNCTIONS(QRD_COMPARE, QRD_COMPARE)
#undef QRD_COMPARE
#define QRD_COMPARE(member, symbol, parameters) \
  static_assert(SameAbi<decltype(RtcApi::member), decltype(&::symbol)>::value, #symbol);
QRD_HIPRTC_FUNCTIONS(QRD_COMPARE)
#undef QRD_COMPARE
static_assert(SameAbi<decltype(Api::GetErrorString), decltype(&::hipGetErrorString)>::value);

#define QRD_EQUAL(ours, theirs) static_assert(static_cast<long long>(ours) == (theirs))
QRD_EQUAL(kSuccess, hipSuccess);
QRD_EQUAL(kErrorInvalidValue, hipErrorInvalidValue);
QRD_EQUAL(kErrorOutOfMemory, hipErrorOutOfMemory);
QRD_EQUAL(kErrorInvalidDevice, hipErrorInvalidDevice);
QRD_EQUAL(kErrorNotReady, hipErrorNotReady);
QRD_EQUAL(kPointerMemoryType, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE);
QRD_EQUAL(kPointerIsManaged, HIP_POINTER_ATTRIBUTE_IS_MANAGED);
QRD_EQUAL(kPointerDeviceOrdinal, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
QRD_EQUAL(kMemoryTypeDevice, hipMemoryTypeDevice);
QRD_EQUAL(kMemoryTypeManaged, hipMemoryTypeManaged);
QRD_EQUAL(kIpcLazyEnablePeerAccess, hipIpcMemLazyEnablePeerAccess);
QRD_EQUAL(kStreamNonBlocking, hipStreamNonBlocking);
QRD_EQUAL(kHostRegisterPortable, hipHostRegisterPortable);
QRD_EQUAL(kHostRegisterMapped, hipHostRegisterMapped);
QRD_EQUAL(kMemcpyDeviceToDevice, hipMemcpyDeviceToDevice);
QRD_EQUAL(kCaptureNone, hipStreamCaptureStatusNone);
QRD_EQUAL(kCaptureActive, hipStreamCaptureStatusActive);
QRD_EQUAL(kCaptureModeRelaxed, hipStreamCaptureModeRelaxed);
QRD_EQUAL(kWaitValueEq, hipStreamWaitValueEq);
#undef QRD_EQUAL
static_assert(sizeof(Uuid) == sizeof(hipUUID) && sizeof(IpcMemHandle) == sizeof(hipIpcMemHandle_t));

TEST(HipApiTest, DeclarationsAreThoseOfTheHeader) {}

}  // namespace
}  // namespace qrd::client::gpu::hip
#else
TEST(HipApiTest, DeclarationsAreThoseOfTheHeader) {
  GTEST_SKIP() << "the HIP headers (6.0 or later) are not installed: nothing was compared";
}
#endif
