// SPDX-License-Identifier: Apache-2.0
// The emulated kernels of each codec and dtype, as plain functions. Compiled once a codec, so that
// the compiler does not take long.
#pragma once

#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/plan.h"
#include "kernels/types.h"

namespace qrd::gpu {

struct EmulatedKernels {
  void (*one_shot)(const AllReduceArgs&);
  void (*two_shot)(const AllReduceArgs&);
  void (*encode)(const CodecArgs&);
  void (*encode_fp32)(const CodecArgs&);
  void (*decode)(const CodecArgs&);
  void (*decode_fp32)(const CodecArgs&);
};

const EmulatedKernels& EmulatedKernelsOf(Codec codec, Dtype dtype);

}  // namespace qrd::gpu
