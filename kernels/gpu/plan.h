// SPDX-License-Identifier: Apache-2.0
// How a collective is cut: blocks of each rank and turns of each block, groups of rows. The same on
// all ranks, a function of the call and of the communicator alone.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gpu/kernel_args.h"
#include "kernels/types.h"

namespace qrd::gpu {

// Fills in tiles_each, tiles_extra, blocks and steps; count and world_size are set. A block runs
// `waves` tiles at a time; no rank has more than blocks_max blocks.
inline void PlanSteps(Codec codec, Algorithm algorithm, Dtype dtype, uint32_t waves,
                      uint32_t blocks_max, AllReduceArgs* args) {
  const uint64_t tiles = TileCount(args->count);
  args->tiles_each = tiles / args->world_size;
  args->tiles_extra = static_cast<uint32_t>(tiles % args->world_size);
  // What a wave takes a step: a tile of its own segment, a tile, or 2048 bytes.
  uint64_t turns = tiles;
  if (algorithm == Algorithm::kTwoShot) {
    turns = args->tiles_each + (args->tiles_extra != 0 ? 1 : 0);
  } else if (codec == Codec::kNone) {
    turns = (args->count * DtypeBytes(dtype) + 2047) / 2048;
  }
  args->blocks =
      static_cast<uint32_t>(std::clamp<uint64_t>((turns + waves - 1) / waves, 1, blocks_max));
  const uint64_t per_step = uint64_t{args->blocks} * waves;
  args->steps = static_cast<uint32_t>((turns + per_step - 1) / per_step);
}

// An address in front of a tensor; null stays null.
template <typename T>
T* Before(T* tensor, uint64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(tensor);
  return tensor == nullptr ? nullptr : reinterpret_cast<T*>(address - bytes);
}

// Of validated parameters.
inline RmsNormArgs MakeRmsNormArgs(const RmsNormParams& params, uint32_t world_size) {
  RmsNormArgs args = {};
  const bool sharded = params.residual_layout == ResidualLayout::kSharded;
  for (uint32_t r = 0; r < world_size; ++r) {
    const uint64_t first = sharded ? OwnedRows(params.tokens, world_size, r).first : 0;
    const uint64_t before = first * params.hidden * DtypeBytes(Dtype::kBf16);
    args.residual[r] = Before(params.residual[r], before);
    args.weight[r] = params.weight[r];
    args.residual_out[r] = Before(params.residual_out[r], before);
    args.normed[r] = params.quant == Quant::kNone ? params.out[r] : params.mirror[r];
    args.out8[r] = params.out8[r];
    args.scales[r] = params.scales[r];
  }
  args.tokens = params.tokens;
  args.hidden = params.hidden;
  // A group has the elements of a tile at least.
  args.rows_per_group = static_cast<uint32_t>(
      std::max<uint64_t>((params.tokens + kRowGroupsMax - 1) / kRowGroupsMax,
                         (kTileElements + params.hidden - 1) / params.hidden));
  args.rank_parts = 1;
  args.world_size = world_size;
  args.rows_each = params.tokens / world_size;
  args.rows_extra = static_cast<uint32_t>(params.tokens % world_size);
  args.eps = params.eps;
  args.gain_bias = params.gemma ? 1.0f : -0.0f;
  args.divisor = params.divisor != 0 ? params.divisor : QuantMax(params.quant);
  args.quant = params.quant;
  args.weight_is_fp32 = params.weight_dtype == Dtype::kFp32;
  args.scale_groups = params.scale_group != 0;
  return args;
}

// Codec none, two_shot, direct: blocks take rows (reduce_rows.h), and this overrides the blocks of
// PlanSteps. Changes nothing else.
inline void PlanRows(Codec codec, Algorithm algorithm, uint32_t blocks_max,
                     RmsNormReduceArgs* args) {
  AllReduceArgs& reduce = args->reduce;
  if (codec != Codec::kNone || algorithm != Algorithm::kTwoShot || !reduce.direct) return;
  // A row that is written over the inputs is read by one block only.
  bool over_input = false;
  for (uint32_t r = 0; r < reduce.world_size; ++r) {
    over_input |= args->norm.normed[r] == reduce.inputs[r];
  }
  const uint64_t blocks = uint64_t{blocks_max} * reduce.world_size;
  if (!over_input) {
    args->norm.rank_parts = static_cast<uint32_t>(
        std::clamp<uint64_t>(blocks / args->norm.tokens, 1, reduce.world_size));
  }
  const uint64_t items = args->norm.tokens * args->norm.rank_parts;
  reduce.blocks = static_cast<uint32_t>(
      std::clamp<uint64_t>((items + reduce.world_size - 1) / reduce.world_size, 1, blocks_max));
}

// Whether the sums of a collective with a norm go through wire pools of `pool_bytes`. Without a
// codec: rows of all ranks, from which on two kernels are faster than one, measured on an H200.
inline bool KeepsWire(Codec codec, Algorithm algorithm, Dtype dtype, const RmsNormParams& norm,
                      uint32_t world_size, bool direct, uint64_t pool_bytes) {
  constexpr uint64_t kManyRows = 1536;
  if (algorithm != Algorithm::kTwoShot) return false;
  if (codec == Codec::kNone && (!direct || norm.tokens * world_size < kManyRows)) return false;
  // A tile is written 16 bytes at a time.
  return (EncodedBytes(codec, dtype, norm.tokens * norm.hidden) + 15) / 16 * 16 <= pool_bytes;
}

// How a collective with a norm is done, of more than one rank.
enum class NormRoute {
  kSharded,     // owned_rows.h; with a codec after AllReduce::Scatter
  kWirePool,    // SumToWire(), then wire_rows.h
  kOneKernel,   // the collective takes the rows
  kRowsFollow,  // the collective adds the residual, then stored_rows.h
};
inline NormRoute RouteOf(Codec codec, Algorithm algorithm, Dtype dtype, const RmsNormParams& norm,
                         uint32_t world_size, bool direct, uint64_t pool_bytes) {
  if (norm.residual_layout == ResidualLayout::kSharded) return NormRoute::kSharded;
  if (KeepsWire(codec, algorithm, dtype, norm, world_size, direct, pool_bytes)) {
    return NormRoute::kWirePool;
  }
  const bool is_one = codec == Codec::kNone && (algorithm == Algorithm::kOneShot || direct);
  return is_one ? NormRoute::kOneKernel : NormRoute::kRowsFollow;
}

// What the kernels of rows get that follow a collective.
inline RowsArgs RowsOf(const RmsNormReduceArgs& args) {
  RowsArgs rows = {};
  rows.norm = args.norm;
  rows.local_count = args.reduce.local_count;
  std::ranges::copy(args.reduce.local, rows.local);
  return rows;
}

// AllReduce::RunTurns: the blocks and steps that bring up to `tiles_most` tiles of each owner.
inline void PlanTurns(uint64_t tiles_most, uint32_t waves, uint32_t blocks_max,
                      AllReduceArgs* args) {
  // All blocks, before any has more than a tile a turn: then its waves share the encoding.
  args->turn_tiles = static_cast<uint32_t>(
      std::clamp<uint64_t>((tiles_most + blocks_max - 1) / blocks_max, 1, waves));
  const uint64_t turns = (tiles_most + args->turn_tiles - 1) / args->turn_tiles;
  args->blocks = static_cast<uint32_t>(std::min<uint64_t>(turns, blocks_max));
  args->steps = static_cast<uint32_t>((turns + args->blocks - 1) / args->blocks);
}

// After PlanSteps for two_shot: with a codec the same tiles, over all blocks.
inline void PlanSumToWire(Codec codec, uint32_t waves, uint32_t blocks_max, AllReduceArgs* args) {
  if (codec == Codec::kNone) return;
  PlanTurns(args->tiles_each + (args->tiles_extra != 0 ? 1 : 0), waves, blocks_max, args);
}

// Sharded: the tiles of each owner's rows (AllReduce::Scatter).
inline void PlanScatter(uint32_t waves, uint32_t blocks_max, RmsNormReduceArgs* args) {
  uint64_t tiles_most = 1;
  for (uint32_t owner = 0; owner < args->reduce.world_size; ++owner) {
    const RowRange rows = OwnedRows(args->norm.tokens, args->reduce.world_size, owner);
    if (rows.first == rows.last) continue;
    tiles_most = std::max(tiles_most, TileCount(rows.last * args->norm.hidden) -
                                          rows.first * args->norm.hidden / kTileElements);
  }
  PlanTurns(tiles_most, waves, blocks_max, &args->reduce);
}
// Sharded: the blocks that take each owner's rows (owned_rows.h), two at a time once there are
// enough for all blocks.
inline void PlanOwnedRows(uint32_t blocks_max, RmsNormReduceArgs* args) {
  const uint64_t rows = OwnedRows(args->norm.tokens, args->reduce.world_size, 0).last;
  args->norm.rows_per_group = rows > blocks_max ? 2 : 1;
  const uint64_t passes = (rows + args->norm.rows_per_group - 1) / args->norm.rows_per_group;
  args->reduce.blocks = static_cast<uint32_t>(std::clamp<uint64_t>(passes, 1, blocks_max));
}

}  // namespace qrd::gpu
