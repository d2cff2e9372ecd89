// SPDX-License-Identifier: Apache-2.0
// The HIP runtime as a Driver. See driver.h. Compiled and compared with AMD's headers; it has not
// run on an AMD GPU.
#pragma once

#include <memory>

#include "client/gpu/driver.h"
#include "client/gpu/library.h"

namespace qrd::client::gpu {

// As MakeCudaDriver.
qrd_status MakeHipDriver(const Library& library, std::unique_ptr<Driver>* driver);

// See IsDeviceMemory. Does not initialise anything.
bool IsHipDeviceMemory(const Library& library, const void* ptr);

}  // namespace qrd::client::gpu
