// SPDX-License-Identifier: Apache-2.0
// Rows of tensors that are there: the steps after a sum as kernels of their own, and the norm of
// what a collective has put into residual_out.
//
// Thread safety: a block function.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/rows.h"

namespace qrd::gpu {

// All rows of the ranks of a launch, as operations of their own.
template <Dtype kDtype, RowSource kSource>
QRD_DEVICE void RunRows(const RowsArgs& args) {
  const uint32_t rank = args.local[BlockIndex() % args.local_count];
  const uint32_t blocks = GridBlocks() / args.local_count;
  Rows<kDtype> rows(args.norm, rank, BlockShared<RowShared>());
  const uint32_t step = MinU32(rows.pass_rows(), args.pass_rows);
#pragma unroll 1
  for (uint64_t row = uint64_t{BlockIndex() / args.local_count} * step; row < args.norm.tokens;
       row += uint64_t{blocks} * step) {
    rows.template Run<kSource>(args.reduced[rank], row, row + 1,
                               step == 2 && row + 1 < args.norm.tokens);
  }
}

}  // namespace qrd::gpu
