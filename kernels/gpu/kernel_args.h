// SPDX-License-Identifier: Apache-2.0
// What host and device code of the GPU backend agree on: arguments of the kernels, the layout of
// the memory that ranks share, and the table of kernels. Plain C++.
//
// Memory of a rank, on its device: one Control, and one inbox. A block is one of `blocks` of each
// rank; block b of a rank only ever talks to block b of the others, and all its addresses follow
// from b alone, never from the size, dtype or codec of a call, so calls of any shape can follow
// each other.
//
// Rounds. Whatever crosses ranks does so in rounds, counted by each block of each rank in its
// epoch, which lives on the device and so goes on through graph replays. A round: write payload
// into region (epoch & 1) of the peers' inboxes, then the epoch into their flags, wait for theirs,
// read. A block writes its flag of round e + 1 only after it has read all of round e; so when all
// flags of round e + 1 are there, region (e & 1) is free everywhere, and round e + 2 may write it.
//
// Rows. A norm takes a row when all its elements are there. Codec none, one_shot: the rows are cut
// into groups, and whoever brings the last tile that touches a group takes its rows; the counters
// are the rank's own and are back at 0 when the operation ends, so graphs replay. two_shot on one
// device, few rows: blocks reduce whole rows (reduce_rows.h). All others: a kernel of rows follows.
// A sharded residual: owned_rows.h.
//
// Wire pools. With two_shot and a codec the sums stay encoded until the rows' kernel decodes them
// (wire_rows.h): an owner puts its tiles into the wire pool of every device. Without a codec, on
// one device, many rows of many ranks go that way, too, as they are (KeepsWire()). A rank does so
// only after it has met all others in the same operation, whose streams have then passed the rows'
// kernels of the operation before; without a codec one launch of all ranks does not meet and comes
// behind those rows on its stream. So the pool is free.
//
// Thread safety: plain data. Ownership: kernels/gpu/gpu_collective.h owns all of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd::gpu {

inline constexpr uint32_t kBlockThreads = 256;
// Blocks of a collective on a multiprocessor (compute unit): what every kernel is compiled for.
#if defined(QRD_GPU_CUDA)
constexpr uint32_t BlocksPerProcessor(Codec codec) { return codec == Codec::kNone ? 2 : 3; }
inline constexpr uint32_t kRowsBlocks = 3;  // of the kernels of rows
#else
inline constexpr uint32_t kRowsBlocks = 2;
constexpr uint32_t BlocksPerProcessor(Codec) { return 2; }  // with 3, lp3 spills on gfx942
#endif
// Of wire_rows.h: rows up to kNarrowHidden, and any. A block of rows must fit beside blocks of a
// collective that wait for its rank, where ranks are launched apart.
#if defined(QRD_GPU_CUDA)
constexpr uint32_t WireRowsBlocks(Codec codec, bool is_wide) {
  return is_wide ? kRowsBlocks : codec == Codec::kNone ? 4 : 5;
}
#else
// With more they spill on gfx942.
constexpr uint32_t WireRowsBlocks(Codec codec, bool is_wide) {
  return is_wide || codec == Codec::kNone ? 2 : 3;
}
#endif
inline constexpr uint32_t kNarrowHidden = 8192;
inline constexpr uint32_t kBlocksPerRankMax = 2048;
// A tile of any codec, or 2048 bytes of a tensor.
inline constexpr uint32_t kSlotBytes = 2176;
inline constexpr uint32_t kRowGroupsMax = 16384;

struct alignas(64) BlockFlags {
  uint32_t of_rank[kWorldSizeMax];  // written by that rank's block: the last round it announced
};

struct Control {
  BlockFlags flags[kBlocksPerRankMax];
  uint32_t epochs[kBlocksPerRankMax];  // written by the rank's own blocks only
  uint64_t non_finite;                 // of the operation that runs
  uint64_t operations;                 // finished since the start
  uint32_t arrived;                    // blocks that have finished
  uint32_t row_groups[kRowGroupsMax];  // tiles that have arrived; 0 between operations
};

// Written to host memory when the last block of a rank has finished, or by whoever gives up.
struct alignas(64) RankStatus {
  uint64_t operations;  // finished since the start when this one ended, also by graph replay
  uint64_t non_finite;  // NaN or Inf elements of the last one that this rank counted
  uint32_t timed_out;   // 1: a wait passed its bound, sticky
  uint32_t missing;     // the rank that was waited for
  uint32_t block, epoch;
  uint32_t done_stored;  // 1: this rank has come to its AllReduceArgs::done
  // The low bits of `operations`, stored last, release: who sees them sees the operation's results
  // and the fields above.
  uint32_t finished;
};

struct AllReduceArgs {
  const void* inputs[kWorldSizeMax];
  void* outputs[kWorldSizeMax];
  Control* controls[kWorldSizeMax];
  uint8_t* inboxes[kWorldSizeMax];
  uint8_t* wire_pools[kWorldSizeMax];  // of every device
  RankStatus* status;                  // of all ranks, host memory
  // Host memory, null: none. The rank's last block stores 1, release, when all its results are
  // there. Not stored by who gives up.
  uint32_t* done[kWorldSizeMax];
  uint32_t* abort;  // host memory; not 0: give up
  uint64_t count;
  uint64_t timeout_ns;   // bound of one wait
  uint64_t tiles_each;   // two_shot: tiles that every rank owns
  uint32_t tiles_extra;  // ranks that own one more
  uint32_t steps;        // turns of each block
  uint32_t world_size;
  uint32_t blocks;      // of each rank
  uint32_t turn_tiles;  // AllReduce::RunTurns: of an owner, a block and a step; a wave each at most
  uint32_t local_count;  // ranks in this launch
  uint32_t wire_pool_count;
  uint8_t local[kWorldSizeMax];
  bool average;
  bool aligned;  // all tensors are aligned to 16
  // Codec none, two_shot, with an epilogue: blocks may read and write the tensors of all ranks.
  bool direct;
  bool has_all_ranks;  // this launch has: what follows it on the stream sees what all of them did
};

// RmsNormParams for kernels.
struct RmsNormArgs {
  // Sharded: where row 0 would be, so that an element has the same offset in every tensor.
  const void* residual[kWorldSizeMax];  // null: +0
  const void* weight[kWorldSizeMax];
  void* residual_out[kWorldSizeMax];
  void* normed[kWorldSizeMax];   // out or mirror; null: not stored
  uint8_t* out8[kWorldSizeMax];  // with quant
  float* scales[kWorldSizeMax];
  uint64_t tokens;
  uint32_t hidden;
  uint32_t rows_per_group;
  uint32_t rank_parts;  // reduce_rows.h: blocks that share a row
  uint32_t world_size;
  uint32_t rows_extra;  // sharded: ranks that own one more than
  uint64_t rows_each;   // so many
  float eps;
  float gain_bias;  // added to the weight: 1, or -0, which changes nothing
  float divisor;
  Quant quant;
  bool weight_is_fp32;
  bool scale_groups;  // of kScaleGroup elements; else the row
};
struct RmsNormReduceArgs {
  AllReduceArgs reduce;
  RmsNormArgs norm;
};
// Rows of tensors that are there: the steps after the sum, as kernels of their own.
struct RowsArgs {
  RmsNormArgs norm;
  const void* reduced[kWorldSizeMax];  // what the residual is added to
  const uint8_t* wire;                 // or (wire_rows) that, as in a wire pool: tile after tile
  uint32_t pass_rows;                  // of a block at a time, at most 2
  uint32_t local_count;                // ranks in this launch
  uint8_t local[kWorldSizeMax];
};

struct CodecArgs {
  void* values;  // the dtype or fp32
  uint8_t* wire;
  uint64_t count;
  bool aligned;  // both are aligned to 16
};

constexpr uint64_t InboxBytes(uint32_t blocks, uint32_t world_size, uint32_t waves) {
  return uint64_t{2} * blocks * world_size * waves * kSlotBytes;
}

// Device functions for hipLaunchKernel. AllReduceArgs or CodecArgs by value.
struct KernelTable {
  const void* one_shot;
  const void* two_shot;
  const void* encode;
  const void* encode_fp32;
  const void* decode;  // to the dtype
  const void* decode_fp32;
};

// RmsNormReduceArgs by value.
struct RmsNormKernelTable {
  const void* one_shot;
  const void* two_shot;
  const void* scatter;  // sharded, with a codec: residual_out of the own rows; owned_rows follows
  // two_shot, the sums to the wire pools (AllReduceArgs), then their rows (RowsArgs), up to
  // kNarrowHidden and any.
  const void* sum_to_wire;
  const void* wire_rows;
  const void* wide_wire_rows;
};
// RowsArgs by value; the last two: RmsNormReduceArgs.
struct RowsKernelTable {
  const void* add_rms_norm;  // residual, norm and, if args say so, quantization
  const void* norm;          // the same of residual_out, which has the sum with the residual
  const void* quantize;      // of `normed`
  const void* owned_rows;    // sharded: the norm of residual_out, to all ranks
  const void* owned_sums;    // sharded, without a codec: sum, residual and norm
};

// nullptr for a combination that was not built.
const KernelTable* KernelsOf(Codec codec, Dtype dtype);
const RmsNormKernelTable* RmsNormKernelsOf(Codec codec, Dtype dtype);
const RowsKernelTable* RowsKernelsOf(Dtype dtype);

}  // namespace qrd::gpu
