// SPDX-License-Identifier: Apache-2.0
// How a short last tile goes through kernels that work on whole vectors: through padded scratch,
// cut to the planes that are really sent. Shared by the SIMD codecs; no vector code.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/codec_table.h"

namespace qrd {

inline constexpr uint32_t kTileWireBytesMax = 2176;  // of the codecs with planes

// Where the parts of a tile with `groups` groups are.
struct TileLayout {
  uint32_t plane_bytes[2];
  uint32_t meta_bytes;

  constexpr TileLayout(const CodecSpec& spec, uint32_t groups)
      : plane_bytes{groups * spec.group_elements * spec.plane_bits[0] / 8,
                    groups * spec.group_elements * spec.plane_bits[1] / 8},
        meta_bytes(groups * spec.meta_bytes) {}
  constexpr uint32_t meta_offset() const { return plane_bytes[0] + plane_bytes[1]; }
};
constexpr TileLayout FullTile(const CodecSpec& spec) {
  return TileLayout(spec, static_cast<uint32_t>(kTileElements) / spec.group_elements);
}
constexpr uint32_t GroupCount(const CodecSpec& spec, uint32_t count) {
  return (count + spec.group_elements - 1) / spec.group_elements;
}

// Copies the parts of a short tile between full-tile offsets (scratch) and the wire.
inline void CutTile(const CodecSpec& spec, uint32_t groups, const uint8_t* scratch, uint8_t* wire) {
  const TileLayout full = FullTile(spec), part(spec, groups);
  std::memcpy(wire, scratch, part.plane_bytes[0]);
  std::memcpy(wire + part.plane_bytes[0], scratch + full.plane_bytes[0], part.plane_bytes[1]);
  std::memcpy(wire + part.meta_offset(), scratch + full.meta_offset(), part.meta_bytes);
}
inline void SpreadTile(const CodecSpec& spec, uint32_t groups, const uint8_t* wire,
                       uint8_t* scratch) {
  const TileLayout full = FullTile(spec), part(spec, groups);
  std::memset(scratch, 0, kTileWireBytesMax);
  std::memcpy(scratch, wire, part.plane_bytes[0]);
  std::memcpy(scratch + full.plane_bytes[0], wire + part.plane_bytes[0], part.plane_bytes[1]);
  std::memcpy(scratch + full.meta_offset(), wire + part.meta_offset(), part.meta_bytes);
}

}  // namespace qrd
