// SPDX-License-Identifier: Apache-2.0
// Encode and decode as kernels of their own: for tests, measurements, shadow evaluation and the
// wire between nodes. A wave takes a tile, then the tile that many waves on.
//
// Thread safety: no state; any stream.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

struct CodecShared {
  alignas(16) uint8_t scratch[kBlockThreads / kWaveLanes][kTileScratchBytes];
};

QRD_DEVICE TileSpan SpanOf(uint64_t tile, uint64_t count) {
  const uint64_t first = tile * kTile, left = count - first;
  return {first, left < kTile ? static_cast<uint32_t>(left) : kTile};
}

template <Codec kCodec, Dtype kDtype, bool kFromFloats>
QRD_DEVICE void EncodeTensor(const CodecArgs& args) {
  uint8_t* scratch = BlockShared<CodecShared>().scratch[WaveIndex()];
  constexpr uint32_t kWaves = kBlockThreads / kWaveLanes;
  constexpr uint32_t kTileBytes = TileFormat<kCodec, kDtype>::kBytes;
  const uint64_t tiles = TileCount(args.count);
#pragma unroll 1
  for (uint64_t tile = uint64_t{BlockIndex()} * kWaves + WaveIndex(); tile < tiles;
       tile += uint64_t{GridBlocks()} * kWaves) {
    const TileSpan span = SpanOf(tile, args.count);
    uint8_t* wire = args.wire + tile * kTileBytes;
    if (args.aligned && span.elements == kTile) {
      EncodeTile<kCodec, kDtype, kFromFloats, true>(args.values, span, scratch);
      WaveBarrier();
      CopyTile<true>(scratch, kTileBytes, wire);
    } else {
      const uint32_t bytes =
          EncodeTile<kCodec, kDtype, kFromFloats, false>(args.values, span, scratch);
      WaveBarrier();
      CopyTile<false>(scratch, bytes, wire);
    }
    WaveBarrier();
  }
}

// kTo: the dtype (rounded) or fp32; NaNs canonical.
template <Codec kCodec, Dtype kDtype, Dtype kTo, bool kWhole>
QRD_DEVICE void DecodeTile(const uint8_t* wire, TileSpan span, void* values) {
  using Format = TileFormat<kCodec, kDtype>;
  using W = Walk<kWhole>;
  const uint32_t groups = kWhole ? Format::kGroups : Format::GroupsOf(span.elements);
  uint32_t non_finite = 0;
#pragma unroll 1
  for (uint32_t round = 0; round < W::kRounds; ++round) {
    typename Format::Coded coded[W::kStep];
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      const uint32_t octet = W::OctetAt(round, i);
      if (!kWhole && octet >= groups * Format::kGroupLanes) return;
      coded[i] = Format::template Load<kWhole>(wire, groups, octet);
    }
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      const uint32_t octet = W::OctetAt(round, i);
      StoreTileOctet<kTo, kWhole>(values, span, octet,
                                  Format::template DecodeTo<kTo>(coded[i], octet, &non_finite));
    }
  }
}

template <Codec kCodec, Dtype kDtype, Dtype kTo>
QRD_DEVICE void DecodeTensor(const CodecArgs& args) {
  constexpr uint32_t kWaves = kBlockThreads / kWaveLanes;
  const uint64_t tiles = TileCount(args.count);
#pragma unroll 1
  for (uint64_t tile = uint64_t{BlockIndex()} * kWaves + WaveIndex(); tile < tiles;
       tile += uint64_t{GridBlocks()} * kWaves) {
    const TileSpan span = SpanOf(tile, args.count);
    const uint8_t* wire = args.wire + tile * TileFormat<kCodec, kDtype>::kBytes;
    if (args.aligned && span.elements == kTile) {
      DecodeTile<kCodec, kDtype, kTo, true>(wire, span, args.values);
    } else {
      DecodeTile<kCodec, kDtype, kTo, false>(wire, span, args.values);
    }
  }
}

// Codec none: the wire is the elements. kFrom to kTo: rounded, NaNs canonical; or (kConvert off)
// copied.
template <Dtype kFrom, Dtype kTo, bool kConvert>
QRD_DEVICE Octet<kTo> ConvertOctet(const Octet<kFrom>& x) {
  if constexpr (!kConvert) {
    return x;
  } else {
    uint32_t non_finite = 0;
    return RoundOctet<kTo>(Widen<kFrom>(x), &non_finite);
  }
}
template <Dtype kFrom, Dtype kTo, bool kConvert>
QRD_DEVICE void ConvertTensor(const void* from, void* to, uint64_t count, bool aligned) {
  const uint64_t octets = (count + kOctet - 1) / kOctet;
#pragma unroll 1
  for (uint64_t octet = uint64_t{BlockIndex()} * kBlockThreads + ThreadIndex(); octet < octets;
       octet += uint64_t{GridBlocks()} * kBlockThreads) {
    const uint64_t element = octet * kOctet;
    if (aligned && element + kOctet <= count) {
      StoreOctet<kTo>(to, element,
                      ConvertOctet<kFrom, kTo, kConvert>(LoadOctet<kFrom>(from, element)));
    } else {
      // The wire may lie at any address.
      const Octet<kFrom> x = LoadOctetSlow<kFrom, uint8_t>(from, element, count);
      StoreOctetSlow<kTo, uint8_t>(to, element, count, ConvertOctet<kFrom, kTo, kConvert>(x));
    }
  }
}

}  // namespace qrd::gpu
