// SPDX-License-Identifier: Apache-2.0
// One tile (2048 elements, the last one of a tensor fewer) by one wave: where its parts lie on the
// wire, and how octets get there and back. Lane l holds octets l, l + kWaveLanes, ...: neighbouring
// lanes touch neighbouring bytes. A tile is encoded into block memory first, so that the wire is
// written 16 bytes a lane, to one place or to many.
//
// Thread safety: wave functions; the scratch of a wave belongs to it alone.
#pragma once

#include "kernels/codec_table.h"
#include "kernels/gpu/block_codec.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/lp_codec.h"
#include "kernels/gpu/values.h"
#include "kernels/types.h"

namespace qrd::gpu {

inline constexpr uint32_t kTile = static_cast<uint32_t>(kTileElements);
inline constexpr uint32_t kOctetsPerTile = kTile / kOctet;
inline constexpr uint32_t kTileScratchBytes = 2176;  // the longest tile of a codec with planes
// Octets that a lane loads before it uses the first.
inline constexpr uint32_t kBatch = 4;
inline constexpr uint32_t kBatches = kOctetsPerTile / kWaveLanes / kBatch;
static_assert(kBatches * kBatch * kWaveLanes == kOctetsPerTile);

template <Codec kCodec, Dtype kDtype, CodecKind kKind = SpecOf(kCodec).kind>
struct OctetCodecOf {
  using Type = BlockCodec<kCodec, kDtype>;
};
template <Codec kCodec, Dtype kDtype>
struct OctetCodecOf<kCodec, kDtype, CodecKind::kLp> {
  using Type = LpCodec<kCodec, kDtype>;
};
template <Codec kCodec, Dtype kDtype>
using OctetCodec = typename OctetCodecOf<kCodec, kDtype>::Type;

template <Codec kCodec, Dtype kDtype>
struct TileFormat {
  using Octets = OctetCodec<kCodec, kDtype>;
  static constexpr uint32_t kWidth0 = Octets::kWidth0;  // also the bytes of an octet in the plane
  static constexpr uint32_t kWidth1 = Octets::kWidth1;
  static constexpr uint32_t kGroupLanes = Octets::kGroupLanes;
  static constexpr uint32_t kGroupBytes = ShapeOf(kCodec, kDtype).group_bytes;
  static constexpr uint32_t kGroups = kOctetsPerTile / kGroupLanes;
  static constexpr uint32_t kBytes = kGroups * kGroupBytes;
  static_assert(kBytes <= kTileScratchBytes && kBytes % 16 == 0);

  static QRD_DEVICE uint32_t GroupsOf(uint32_t elements) {
    return (elements + kGroupLanes * kOctet - 1) / (kGroupLanes * kOctet);
  }
  static QRD_DEVICE uint32_t Plane1(uint32_t groups) { return groups * kGroupLanes * kWidth0; }
  static QRD_DEVICE uint32_t Meta(uint32_t groups) {
    return groups * kGroupLanes * (kWidth0 + kWidth1);
  }

  // `tile` is aligned to 16, so every part is aligned to itself.
  static QRD_DEVICE void Store(uint8_t* tile, uint32_t groups, uint32_t octet, const Planes& planes,
                               uint32_t meta) {
    uint8_t* plane0 = tile + octet * kWidth0;
    if constexpr (kWidth0 == 8) {
      *reinterpret_cast<uint64_t*>(plane0) = planes.low | uint64_t{planes.high} << 32;
    } else if constexpr (kWidth0 == 4) {
      *reinterpret_cast<uint32_t*>(plane0) = planes.low;
    } else {
      *reinterpret_cast<uint16_t*>(plane0) = static_cast<uint16_t>(planes.low);
    }
    uint8_t* plane1 = tile + Plane1(groups) + octet * kWidth1;
    if constexpr (kWidth1 == 2) {
      *reinterpret_cast<uint16_t*>(plane1) = static_cast<uint16_t>(planes.second);
    } else if constexpr (kWidth1 == 1) {
      *plane1 = static_cast<uint8_t>(planes.second);
    }
    if (octet % kGroupLanes == 0) {
      uint8_t* word = tile + Meta(groups) + octet / kGroupLanes * Octets::kMetaBytes;
      if constexpr (Octets::kMetaBytes == 2) {
        *reinterpret_cast<uint16_t*>(word) = static_cast<uint16_t>(meta);
      } else {
        *reinterpret_cast<uint32_t*>(word) = meta;
      }
    }
  }

  struct Coded {
    Planes planes;
    uint32_t meta;
  };
  // Little-endian bytes; kAligned: at an address that is a multiple of kBytesOf.
  template <uint32_t kBytesOf, bool kAligned>
  static QRD_DEVICE uint32_t LoadPart(const uint8_t* p) {
    if constexpr (kAligned && kBytesOf == 4) return *reinterpret_cast<const uint32_t*>(p);
    if constexpr (kAligned && kBytesOf == 2) return *reinterpret_cast<const uint16_t*>(p);
    uint32_t v = 0;
#pragma unroll
    for (uint32_t i = 0; i < kBytesOf; ++i) v |= uint32_t{p[i]} << 8 * i;
    return v;
  }
  template <bool kAligned>
  static QRD_DEVICE Coded Load(const uint8_t* tile, uint32_t groups, uint32_t octet) {
    Coded coded = {{0, 0, 0}, 0};
    const uint8_t* plane0 = tile + octet * kWidth0;
    if constexpr (kWidth0 == 8 && kAligned) {
      const uint64_t both = *reinterpret_cast<const uint64_t*>(plane0);
      coded.planes.low = static_cast<uint32_t>(both);
      coded.planes.high = static_cast<uint32_t>(both >> 32);
    } else if constexpr (kWidth0 == 8) {
      coded.planes.low = LoadPart<4, false>(plane0);
      coded.planes.high = LoadPart<4, false>(plane0 + 4);
    } else {
      coded.planes.low = LoadPart<kWidth0, kAligned>(plane0);
    }
    if constexpr (kWidth1 != 0) {
      coded.planes.second = LoadPart<kWidth1, kAligned>(tile + Plane1(groups) + octet * kWidth1);
    }
    coded.meta = LoadPart<Octets::kMetaBytes, kAligned>(tile + Meta(groups) +
                                                        octet / kGroupLanes * Octets::kMetaBytes);
    return coded;
  }
  template <Dtype kTo>
  static QRD_DEVICE Octet<kTo> DecodeTo(const Coded& coded, uint32_t octet, uint32_t* non_finite) {
    return RoundDecoded<kTo>(Decode(coded, octet), Octets::MayBeNan(coded.meta), non_finite);
  }
  static QRD_DEVICE Floats Decode(const Coded& coded, uint32_t octet) {
    return Octets::Decode(coded.planes, coded.meta, octet % kGroupLanes);
  }
};

// The part of a tensor that is one tile.
struct TileSpan {
  uint64_t first;     // element
  uint32_t elements;  // 1 to kTile
};

// kWhole: a full tile at an address aligned to 16, with vector accesses; else element by element.
// Loads kBatch octets (kWhole) or one, from octet `octet` of the tile on, kWaveLanes apart.
template <Dtype kDtype, bool kWhole>
QRD_DEVICE Octet<kDtype> LoadTileOctet(const void* tensor, TileSpan span, uint32_t octet) {
  if constexpr (kWhole) return LoadOctet<kDtype>(tensor, span.first + octet * kOctet);
  return LoadOctetSlow<kDtype>(tensor, span.first + octet * kOctet, span.first + span.elements);
}
template <Dtype kDtype, bool kWhole>
QRD_DEVICE void StoreTileOctet(void* tensor, TileSpan span, uint32_t octet,
                               const Octet<kDtype>& value) {
  if constexpr (kWhole) {
    StoreOctetOfWave<kDtype>(tensor, span.first + octet * kOctet, value);
  } else {
    StoreOctetSlow<kDtype>(tensor, span.first + octet * kOctet, span.first + span.elements, value);
  }
}

// Asks for the lines of a tile before a wait.
template <Dtype kDtype>
QRD_DEVICE void PrefetchTile(const void* tensor, TileSpan span) {
  const auto* bytes =
      static_cast<const uint8_t*>(tensor) + span.first * DtypeOnDevice<kDtype>::kBytes;
  for (uint32_t at = LaneIndex() * 128; at < span.elements * DtypeOnDevice<kDtype>::kBytes;
       at += kWaveLanes * 128) {
    PrefetchLine(bytes + at);
  }
}

// How a tile is walked: rounds of kStep octets a lane, the first of each at Octet(round, 0).
template <bool kWhole>
struct Walk {
  static constexpr uint32_t kStep = kWhole ? kBatch : 1;
  static constexpr uint32_t kRounds = kOctetsPerTile / kWaveLanes / kStep;
  static QRD_DEVICE uint32_t OctetAt(uint32_t round, uint32_t i) {
    return (round * kStep + i) * kWaveLanes + LaneIndex();
  }
};

// Encodes a tile of a tensor, of the dtype or (kFromFloats) of fp32 under the rules of the dtype,
// into `scratch`. Returns its wire bytes. The caller passes a WaveBarrier() before other lanes read
// it.
template <Codec kCodec, Dtype kDtype, bool kFromFloats, bool kWhole>
QRD_DEVICE uint32_t EncodeTile(const void* tensor, TileSpan span, uint8_t* scratch) {
  using Format = TileFormat<kCodec, kDtype>;
  using W = Walk<kWhole>;
  constexpr Dtype kSource = kFromFloats ? Dtype::kFp32 : kDtype;
  const uint32_t groups = kWhole ? Format::kGroups : Format::GroupsOf(span.elements);
#pragma unroll 1
  for (uint32_t round = 0; round < W::kRounds; ++round) {
    Octet<kSource> x[W::kStep];
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      x[i] = LoadTileOctet<kSource, kWhole>(tensor, span, W::OctetAt(round, i));
    }
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      const uint32_t octet = W::OctetAt(round, i);
      Planes planes;
      uint32_t meta;
      if constexpr (kFromFloats) {
        meta = Format::Octets::EncodeFloats(Widen<kSource>(x[i]), &planes);
      } else {
        meta = Format::Octets::Encode(x[i], &planes);
      }
      if (kWhole || octet < groups * Format::kGroupLanes) {
        Format::Store(scratch, groups, octet, planes, meta);
      }
    }
  }
  return groups * Format::kGroupBytes;
}

// Copies a tile from scratch to the wire. kAligned: `wire` is aligned to 16 and may be written up
// to a multiple of 16 bytes (an inbox slot, or a full tile).
template <bool kAligned>
QRD_DEVICE void CopyTile(const uint8_t* scratch, uint32_t bytes, uint8_t* wire) {
  if constexpr (kAligned) {
    for (uint32_t at = LaneIndex() * 16; at < bytes; at += kWaveLanes * 16) {
      Store16(wire + at, Load16(scratch + at));
    }
  } else {
#pragma unroll 1
    for (uint32_t at = LaneIndex(); at < bytes; at += kWaveLanes) wire[at] = scratch[at];
  }
}

}  // namespace qrd::gpu
