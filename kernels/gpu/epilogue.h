// SPDX-License-Identifier: Apache-2.0
// What a collective does with a finished octet. Identity stores it. A fused norm takes it from
// here: the octet is final, in the dtype, rounded (epilogues: step 1), the same bits on every rank.
//
// Thread safety: device functions on the thread's own octet.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

struct IdentityEpilogue {
  template <Dtype kDtype, bool kWhole>
  static QRD_DEVICE void Store(void* output, const TileSpan& span, uint32_t octet,
                               const Octet<kDtype>& value) {
    StoreTileOctet<kDtype, kWhole>(output, span, octet, value);
  }
};

}  // namespace qrd::gpu
