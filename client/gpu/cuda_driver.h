// SPDX-License-Identifier: Apache-2.0
// The CUDA driver as a Driver. See driver.h.
#pragma once

#include <memory>

#include "client/gpu/driver.h"
#include "client/gpu/library.h"

namespace qrd::client::gpu {

// Finds the functions and initialises the driver. QRD_FAILED_PRECONDITION names a missing function,
// or says that there is no device.
qrd_status MakeCudaDriver(const Library& library, std::unique_ptr<Driver>* driver);

// See IsDeviceMemory. Does not initialise anything.
bool IsCudaDeviceMemory(const Library& library, const void* ptr);

}  // namespace qrd::client::gpu
