// SPDX-License-Identifier: Apache-2.0
// The emulated kernels of each codec and dtype, as plain functions. Compiled once a codec, so that
// the compiler does not take long.
#pragma once

#include <span>

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

// The codecs of this build of the kernels. (Those with a fused norm are told below.)
std::span<const Codec> EmulatedCodecs();
const EmulatedKernels& EmulatedKernelsOf(Codec codec, Dtype dtype);

struct EmulatedRmsNormKernels {
  void (*one_shot)(const RmsNormReduceArgs&);
  void (*two_shot)(const RmsNormReduceArgs&);
  void (*scatter)(const RmsNormReduceArgs&);
  void (*sum_to_wire)(const AllReduceArgs&);
  void (*wire_rows)(const RowsArgs&);
  void (*wide_wire_rows)(const RowsArgs&);
};
struct EmulatedRowsKernels {
  void (*add_rms_norm)(const RowsArgs&);
  void (*norm)(const RowsArgs&);
  void (*quantize)(const RowsArgs&);
  void (*owned_rows)(const RmsNormReduceArgs&);
  void (*owned_sums)(const RmsNormReduceArgs&);
};
// Null: not in this build of the kernels, or not a 16-bit dtype.
const EmulatedRmsNormKernels* EmulatedRmsNormKernelsOf(Codec codec, Dtype dtype);
const EmulatedRowsKernels* EmulatedRowsKernelsOf(Dtype dtype);
// Lanes of a wave of this build.
uint32_t EmulatedWaveLanes();

}  // namespace qrd::gpu
