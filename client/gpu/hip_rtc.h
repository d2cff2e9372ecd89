// SPDX-License-Identifier: Apache-2.0
// The gate kernel's code object, made on the machine by hiprtc (loaded at run time).
#pragma once

#include <vector>

#include "qrd/qrd.h"

namespace qrd::client::gpu {

// For the calling thread's current device. QRD_UNIMPLEMENTED if there is no hiprtc or it does not
// compile the kernel; the text says which. Takes some tenths of a second.
qrd_status CompileHipGate(std::vector<char>* code);

}  // namespace qrd::client::gpu
