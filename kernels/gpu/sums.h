// SPDX-License-Identifier: Apache-2.0
// Sums of octets in rank order, in fp32.
//
// Thread safety: device functions on registers.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

// -0 is the neutral element of addition: the first rank's values come out as they are.
QRD_DEVICE void ClearSums(Floats& sums) {
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) sums.v[j] = -0.0f;
}
QRD_DEVICE void AddTo(Floats& sums, const Floats& x) {
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) sums.v[j] = sums.v[j] + x.v[j];
}
QRD_DEVICE void FinishSums(const AllReduceArgs& args, Floats& sums) {
  if (!args.average) return;
  const auto divisor = static_cast<float>(args.world_size);
#pragma unroll
  for (uint32_t j = 0; j < kOctet; ++j) sums.v[j] = sums.v[j] / divisor;
}

}  // namespace qrd::gpu
