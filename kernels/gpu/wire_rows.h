// SPDX-License-Identifier: Apache-2.0
// The rows of sums that are in the wire pool of a device, with a codec still encoded: decoded,
// rounded, added to the residual, normalised and quantized in registers. So the sums are written
// once for all ranks of a device, and never in their dtype if there is a codec.
//
// A block takes a row of a rank; the ranks of a row are neighbours, whose reads of the pool meet in
// the cache. kWide: any row; else up to half of the slots, so that more blocks run at once, which
// hides the two reductions of a row better than a pass of two rows does.
//
// Thread safety: a block function.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

// A source of Rows::RunFrom: `count` elements, tile after tile. `element`: of an octet, the first.
template <Codec kCodec, Dtype kDtype>
class WireSums {
 public:
  using Format = TileFormat<kCodec, kDtype>;
  using Loaded = typename Format::Coded;

  QRD_DEVICE WireSums(const uint8_t* wire, uint64_t count) : wire_(wire), count_(count) {}

  QRD_DEVICE Loaded Load(uint64_t element) const {
    const uint64_t tile = element / kTile;
    const uint64_t left = count_ - tile * kTile;
    const uint32_t groups =
        left >= kTile ? Format::kGroups : Format::GroupsOf(static_cast<uint32_t>(left));
    return Format::template Load<true>(wire_ + tile * Format::kBytes, groups,
                                       static_cast<uint32_t>(element % kTile) / kOctet);
  }
  QRD_DEVICE Octet<kDtype> Finish(const Loaded& loaded, uint64_t element) const {
    uint32_t ignored = 0;  // its owner counts
    return Format::template DecodeTo<kDtype>(
        loaded, static_cast<uint32_t>(element % kTile) / kOctet, &ignored);
  }

 private:
  const uint8_t* const wire_;
  const uint64_t count_;
};
template <Dtype kDtype>
class WireSums<Codec::kNone, kDtype> {
 public:
  using Loaded = Octet<kDtype>;

  QRD_DEVICE WireSums(const uint8_t* wire, uint64_t) : wire_(wire) {}

  QRD_DEVICE Loaded Load(uint64_t element) const { return LoadOctet<kDtype>(wire_, element); }
  QRD_DEVICE Octet<kDtype> Finish(const Loaded& loaded, uint64_t) const { return loaded; }

 private:
  const uint8_t* const wire_;
};

template <Codec kCodec, Dtype kDtype, bool kWide>
QRD_DEVICE void RunWireRows(const RowsArgs& args) {
  const RmsNormArgs& norm = args.norm;
  const WireSums<kCodec, kDtype> sums(args.wire, norm.tokens * norm.hidden);
  Rows<kDtype, false, !kWide> rows(norm, args.local[0], BlockShared<RowShared>());
  const uint64_t passes = norm.tokens * args.local_count;
#pragma unroll 1
  for (uint64_t pass = BlockIndex(); pass < passes; pass += GridBlocks()) {
    rows.RunFrom(sums, pass / args.local_count, args.local[pass % args.local_count]);
  }
}

}  // namespace qrd::gpu
