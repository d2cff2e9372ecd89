// SPDX-License-Identifier: Apache-2.0
// The codecs one tile at a time, on fp32 scratch: what the collectives are built from. Internal to
// kernels/; everyone else uses kernels/codec.h.
//
// A tile is up to kTileElements elements; only the last tile of a message is shorter. The wire
// bytes of a tile are EncodedBytes(codec, dtype, count) bytes, at any alignment. `x` and `y` are
// fp32 scratch, aligned to 4 bytes (64 is faster). Nothing past `count` elements or the tile's wire
// bytes is read or written, so the caller needs no slack.
//
// Thread safety: pure functions; the tables are constant. Floating-point environment as in codec.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace qrd {

// Functions of one codec, for the best instruction set of this machine. `dtype` selects the rules
// (range limits, type of the scale); codec kNone stores elements of `dtype`.
struct CodecKernels {
  // Encodes fp32 values under the rules of `dtype`.
  void (*encode_tile)(Dtype dtype, const float* x, uint32_t count, std::byte* wire);
  // Decodes to fp32; every NaN is 0x7FC00000.
  void (*decode_tile)(Dtype dtype, const std::byte* wire, uint32_t count, float* y);
  // y = decode(encode(x)): the same bits as the two calls, without the wire bytes. y may be x.
  void (*round_trip_tile)(Dtype dtype, const float* x, uint32_t count, float* y);
};

// Constant for the life of the process; fetch it once per message, not per tile.
const CodecKernels& KernelsFor(Codec codec);

}  // namespace qrd
