// SPDX-License-Identifier: Apache-2.0
// The gate kernel: what stream memory operations do, as one thread of a kernel. For devices (or
// drivers) without them, and forced by QRD_GPU_GATE=kernel. It runs its steps in order: a write
// stores a word, a wait spins until the word has the value. A wait that passes its bound stores 1
// to *expired and goes on, so that no stream is blocked for ever.
//
// Thread safety: constants. Ownership: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/gpu/driver.h"

namespace qrd::client::gpu {

inline constexpr char kGateKernelName[] = "qrd_gate";
inline constexpr uint32_t kGateStepsMax = 8;
static_assert(kGateStepsMax == kStepsMax);

// The kernel's only parameter, by value. Addresses are the device's.
struct GateArgs {
  uint64_t address[kGateStepsMax];
  uint32_t value[kGateStepsMax];
  uint32_t count;
  uint32_t wait_mask;  // bit i: step i waits, else it writes
  uint64_t expired;    // a word
  uint64_t bound_ns;   // of all waits together, from the kernel's start
};
static_assert(sizeof(GateArgs) == 120 && offsetof(GateArgs, value) == 64 &&
              offsetof(GateArgs, count) == 96 && offsetof(GateArgs, bound_ns) == 112);

// PTX for cuModuleLoadData. Written by hand after what nvcc makes of kGateHipSource's CUDA twin,
// in the oldest dialect that has acquire, release and nanosleep (PTX ISA 6.3, sm_70), so that
// drivers of any CUDA since 10 take it; tests/client assembles it with ptxas.
extern const char kGatePtx[];

// HIP for hiprtc.
extern const char kGateHipSource[];

// steps.size() is at most kGateStepsMax.
GateArgs MakeGateArgs(std::span<const Step> steps, const GateLimits& limits);

}  // namespace qrd::client::gpu
