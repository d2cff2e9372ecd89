// SPDX-License-Identifier: Apache-2.0
// Codec none with a norm, where a device reaches the tensors of all ranks: a block takes a row,
// sums it in registers, and does what follows for every rank. Nothing is read twice, and no block
// waits for another one. With fewer rows than blocks, several blocks take a row, each for a part of
// the ranks (RmsNormArgs::rank_parts).
//
// A row may be written over the inputs: each thread reads its octets of all of them before it
// writes, and a row has one block then.
//
// Thread safety: a block function.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/rows.h"

namespace qrd::gpu {

template <Dtype kDtype, uint32_t kSlots>
QRD_DEVICE void ReduceRowsOf(const AllReduceArgs& reduce, const RmsNormArgs& norm, uint64_t first,
                             uint64_t stride, Rows<kDtype>& rows, uint32_t* non_finite) {
  const uint32_t parts = norm.rank_parts;
  // With more ranks the cache has better use (kernels/gpu/README.md, tuning log).
  const bool prefetches = reduce.world_size <= 2;
  uint32_t ignored = 0;
#pragma unroll 1
  for (uint64_t item = first; item < norm.tokens * parts; item += stride) {
    const uint64_t row = item / parts;
    const auto part = static_cast<uint32_t>(item % parts);
    if (prefetches) rows.PrefetchResiduals(part, parts, reduce.world_size, row);
    Octet<kDtype> sum[kSlots];
    rows.template Sum<kSlots>(reduce, row, sum, part == 0 ? non_finite : &ignored);
    if (prefetches && item + stride < norm.tokens * parts)
      rows.PrefetchInputs(reduce, (item + stride) / parts);
    constexpr uint32_t kRanks = kSlots == kRowSlots ? 1 : 2;  // of a pass
#pragma unroll 1
    for (uint32_t rank = part; rank < reduce.world_size; rank += kRanks * parts) {
      const bool has_second = kRanks == 2 && rank + parts < reduce.world_size;
      rows.template RunSum<kSlots>(sum, row, rank, has_second ? rank + parts : rank, has_second);
    }
  }
}

// Items from `first` on, `stride` apart.
template <Dtype kDtype>
QRD_DEVICE void ReduceRows(const AllReduceArgs& reduce, const RmsNormArgs& norm, uint64_t first,
                           uint64_t stride, uint32_t* non_finite) {
  Rows<kDtype> rows(norm, 0, BlockShared<RowShared>());
  if (rows.pass_rows() == 1) {
    ReduceRowsOf<kDtype, kRowSlots>(reduce, norm, first, stride, rows, non_finite);
  } else {
    ReduceRowsOf<kDtype, kRowSlots / 2>(reduce, norm, first, stride, rows, non_finite);
  }
}

}  // namespace qrd::gpu
