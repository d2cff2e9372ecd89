// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/codec_table.h"
#include "kernels/reference_group.h"

namespace qrd {
namespace {

using reference::Group;
using reference::Values;

float CanonicalNan(float value) {
  return std::isnan(value) ? std::bit_cast<float>(kCanonicalNanBits) : value;
}

// One tile on the wire: `groups` groups.
struct TilePlanes {
  const CodecSpec& spec;
  uint64_t groups;

  uint64_t PlaneBytes(int plane) const {
    return groups * spec.group_elements * spec.plane_bits[plane] / 8;
  }
  uint64_t MetaOffset() const { return PlaneBytes(0) + PlaneBytes(1); }

  void Write(uint64_t g, const Group& group, uint8_t* tile) const {
    std::memcpy(tile + MetaOffset() + g * spec.meta_bytes, &group.meta, spec.meta_bytes);
    ForEachBits(
        [&](uint32_t i, uint64_t byte, uint32_t at, uint32_t shift, uint32_t mask) {
          tile[byte] = static_cast<uint8_t>(tile[byte] | (group.codes[i] >> shift & mask) << at);
        },
        g);
  }

  Group Read(uint64_t g, const uint8_t* tile) const {
    Group group;
    std::memcpy(&group.meta, tile + MetaOffset() + g * spec.meta_bytes, spec.meta_bytes);
    ForEachBits(
        [&](uint32_t i, uint64_t byte, uint32_t at, uint32_t shift, uint32_t mask) {
          group.codes[i] =
              static_cast<uint8_t>(group.codes[i] | (tile[byte] >> at & mask) << shift);
        },
        g);
    return group;
  }

 private:
  // Element i of group g has, in each plane, `mask` bits at bit `at` of byte `byte`: those of its
  // code from bit `shift` up.
  void ForEachBits(auto visit, uint64_t g) const {
    uint64_t plane_offset = 0;
    uint32_t shift = 0;
    for (int plane = 0; plane < 2 && spec.plane_bits[plane] != 0; ++plane) {
      const uint32_t width = spec.plane_bits[plane];
      for (uint32_t i = 0; i < spec.group_elements; ++i) {
        const uint64_t bit = (g * spec.group_elements + i) * width;
        visit(i, plane_offset + bit / 8, static_cast<uint32_t>(bit % 8), shift, (1u << width) - 1);
      }
      plane_offset += PlaneBytes(plane);
      shift += width;
    }
  }
};

// Calls visit(planes, g, offset of the tile on the wire, first element, elements) for every group.
void ForEachGroup(const CodecSpec& spec, uint64_t count, auto visit) {
  const uint64_t group_bytes = ShapeOf(spec.codec, Dtype::kFp32).group_bytes;
  uint64_t offset = 0;
  for (uint64_t first = 0; first < count; first += kTileElements) {
    const uint64_t elements = std::min(kTileElements, count - first);
    const TilePlanes planes{spec, (elements + spec.group_elements - 1) / spec.group_elements};
    for (uint64_t g = 0; g < planes.groups; ++g) {
      const uint64_t at = g * spec.group_elements;
      visit(planes, g, offset, first + at, std::min<uint64_t>(spec.group_elements, elements - at));
    }
    offset += planes.groups * group_bytes;
  }
}

}  // namespace

void ReferenceEncodeFp32(Codec codec, Dtype dtype, const float* x, uint64_t count,
                         std::byte* wire) {
  const CodecSpec& spec = SpecOf(codec);
  uint8_t* bytes = reinterpret_cast<uint8_t*>(wire);
  if (count == 0) return;
  if (spec.kind == CodecKind::kNone) {
    std::vector<float> rounded(count);  // room for any dtype; the wire may be unaligned
    ReferenceRoundToDtype(dtype, x, count, rounded.data());
    std::memcpy(bytes, rounded.data(), count * DtypeBytes(dtype));
    return;
  }
  std::memset(bytes, 0, EncodedBytes(codec, dtype, count));
  ForEachGroup(spec, count,
               [&](const TilePlanes& planes, uint64_t g, uint64_t offset, uint64_t first,
                   uint64_t elements) {
                 Values values = {};
                 std::copy_n(x + first, elements, values.begin());
                 planes.Write(g, reference::EncodeGroup(spec, dtype, values), bytes + offset);
               });
}

void ReferenceEncode(Codec codec, Dtype dtype, const void* x, uint64_t count, std::byte* wire) {
  if (count == 0) return;
  if (codec == Codec::kNone) {
    std::memcpy(wire, x, count * DtypeBytes(dtype));
    return;
  }
  std::vector<float> widened(count);
  ReferenceWidenToFp32(dtype, x, count, widened.data());
  ReferenceEncodeFp32(codec, dtype, widened.data(), count, wire);
}

void ReferenceDecode(Codec codec, Dtype dtype, const std::byte* wire, uint64_t count, float* y) {
  const CodecSpec& spec = SpecOf(codec);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(wire);
  if (count == 0) return;
  if (spec.kind == CodecKind::kNone) {
    std::vector<float> aligned(count);  // room for any dtype; the wire may be unaligned
    std::memcpy(aligned.data(), bytes, count * DtypeBytes(dtype));
    ReferenceWidenToFp32(dtype, aligned.data(), count, y);
    std::transform(y, y + count, y, CanonicalNan);
    return;
  }
  ForEachGroup(spec, count,
               [&](const TilePlanes& planes, uint64_t g, uint64_t offset, uint64_t first,
                   uint64_t elements) {
                 const Values values =
                     reference::DecodeGroup(spec, dtype, planes.Read(g, bytes + offset));
                 std::transform(values.begin(), values.begin() + elements, y + first, CanonicalNan);
               });
}

}  // namespace qrd
