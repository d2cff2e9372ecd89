// SPDX-License-Identifier: Apache-2.0
// Sharded rows: a rank's blocks take its own rows, normalise and quantize them once, and write the
// results to all ranks. Between two meetings of all: before the first nobody's tensors may be
// touched (its stream is not there yet, or it still reads the input that a result replaces), and
// nobody goes on before all results have arrived.
//
//   kSums   codec none: the row is summed here, from the inputs of all ranks; each byte crosses a
//           link once. A result may take the memory of an input: a thread reads its octets of all
//           ranks before it writes them, and a row has one block
//   stored  residual_out has the sum with the residual (AllReduce::Scatter, a kernel before)
//
// Thread safety: a block function.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/rows.h"

namespace qrd::gpu {

template <Dtype kDtype, bool kSums>
QRD_DEVICE void RunOwnedRows(const RmsNormReduceArgs& args) {
  const RmsNormArgs& norm = args.norm;
  Exchange exchange(args.reduce);
  if (!exchange.PassRound()) return;
  const uint32_t rank = exchange.rank();
  Rows<kDtype, true> rows(norm, rank, BlockShared<RowShared>());
  const uint32_t step = MinU32(rows.pass_rows(), norm.rows_per_group);
  const ElementRange own = OwnedElementsOf(norm, rank);
  const uint64_t end = own.last / norm.hidden;
  uint32_t non_finite = 0;
#pragma unroll 1
  for (uint64_t row = own.first / norm.hidden + uint64_t{exchange.block()} * step; row < end;
       row += uint64_t{args.reduce.blocks} * step) {
    const bool has_second = step == 2 && row + 1 < end;
    if constexpr (kSums) {
      rows.RunSums(args.reduce, row, row + 1, has_second, &non_finite);
    } else {
      rows.template Run<RowSource::kStored>(nullptr, row, row + 1, has_second);
    }
  }
  if (!exchange.Meet()) return;
  exchange.NextRound();
  exchange.Finish(non_finite);
}

}  // namespace qrd::gpu
