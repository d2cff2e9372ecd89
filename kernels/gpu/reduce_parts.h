// SPDX-License-Identifier: Apache-2.0
// What the collectives with and without codec share: which tiles belong to whom.
//
// Thread safety: device functions on registers.
#pragma once

#include "kernels/gpu/codec_kernels.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/epilogue.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/sums.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

QRD_DEVICE const AllReduceArgs& ReduceArgsOf(const AllReduceArgs& args) { return args; }
QRD_DEVICE const AllReduceArgs& ReduceArgsOf(const RmsNormReduceArgs& args) { return args.reduce; }

// Up to `most` tiles from tile `index` of rank `owner` on, in two_shot; fewer if it has fewer.
QRD_DEVICE TileRun OwnedRun(const AllReduceArgs& args, uint32_t owner, uint64_t index,
                            uint32_t most) {
  const uint64_t extra = owner < args.tiles_extra ? 1 : 0;
  if (index >= args.tiles_each + extra) return {0, 0};
  const uint64_t before = extra != 0 ? owner : args.tiles_extra;
  const uint64_t left = args.tiles_each + extra - index;
  return {args.tiles_each * owner + before + index,
          left < most ? static_cast<uint32_t>(left) : most};
}
// Tile `index` of rank `owner`; empty if it has fewer.
QRD_DEVICE TileSpan OwnedTile(const AllReduceArgs& args, uint32_t owner, uint64_t index) {
  const TileRun run = OwnedRun(args, owner, index, 1);
  return run.tiles == 0 ? TileSpan{0, 0} : SpanOf(run.first, args.count);
}
// Tile `index` of those that the rows of `owner` touch; empty if they touch fewer.
QRD_DEVICE TileSpan OwnedRowsTile(const AllReduceArgs& args, const RmsNormArgs& norm,
                                  uint32_t owner, uint64_t index) {
  const ElementRange rows = OwnedElementsOf(norm, owner);
  const uint64_t tile = rows.first / kTile + index;
  return rows.first == rows.last || tile * kTile >= rows.last ? TileSpan{0, 0}
                                                              : SpanOf(tile, args.count);
}
// The tiles or units of a block in one turn of one_shot, of `units`.
QRD_DEVICE TileRun RunOfTurn(uint64_t first, uint64_t units) {
  if (first >= units) return {0, 0};
  const uint64_t left = units - first;
  return {first, left < kWaves ? static_cast<uint32_t>(left) : kWaves};
}

}  // namespace qrd::gpu
