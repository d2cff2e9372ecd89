// SPDX-License-Identifier: Apache-2.0
// The collectives without a codec.
//   one_shot  a wave takes 2048 bytes a step: pushes them to all, meets, sums all N, stores
//   two_shot  the wire is the tensors themselves: the owner of a tile reads it from all ranks and
//             writes the sum to all ranks, between two meetings of all. It needs tensors that every
//             device can reach; each byte crosses a link once a phase, and no inbox is used.
//             With a norm, blocks take whole rows (reduce_rows.h); on several devices, where that
//             would send residuals over the links, units of 2048 bytes go through the inboxes as
//             with a codec.
//
// Thread safety: block functions.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/reduce_parts.h"
#include "kernels/gpu/reduce_rows.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

// Elements that fit a slot, and octets of a lane then.
template <Dtype kDtype>
inline constexpr uint32_t kUnit = 2048 / DtypeOnDevice<kDtype>::kBytes;
template <Dtype kDtype>
inline constexpr uint32_t kUnitOctets = kUnit<kDtype> / kOctet / kWaveLanes;

template <Dtype kDtype, typename Epilogue>
class AllReduceNone {
 public:
  template <typename Args>
  explicit QRD_DEVICE AllReduceNone(const Args& args)
      : args_(ReduceArgsOf(args)),
        exchange_(args_),
        epilogue_(args, exchange_.rank()),
        wave_(WaveIndex()) {}

  QRD_DEVICE void OneShot() {
    const uint64_t units = (args_.count + kUnit<kDtype> - 1) / kUnit<kDtype>;
#pragma unroll 1
    for (uint32_t step = 0; step < args_.steps; ++step) {
      const uint64_t unit = (uint64_t{step} * args_.blocks + exchange_.block()) * kWaves + wave_;
      TileSpan span = {unit * kUnit<kDtype>, 0};
      if (unit < units) {
        const uint64_t left = args_.count - span.first;
        span.elements = left < kUnit<kDtype> ? static_cast<uint32_t>(left) : kUnit<kDtype>;
      }
      const bool whole = args_.aligned && span.elements == kUnit<kDtype>;
      Octet<kDtype> own[kUnitOctets<kDtype>];
      if (whole) {
        Load<true>(span, own);
        Push(own);
      } else if (span.elements != 0) {
        Load<false>(span, own);
        Push(own);
      }
      epilogue_.Prefetch(span);
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
      if (whole) {
        SumUnit<true>(span, own);
      } else if (span.elements != 0) {
        SumUnit<false>(span, own);
      }
      exchange_.NextRound();
      epilogue_.template FinishTiles<kUnit<kDtype>>(RunOfTurn(unit - wave_, units));
    }
    exchange_.Finish(exchange_.rank() == 0 ? non_finite_ : 0);
  }

  QRD_DEVICE void TwoShot() {
    if constexpr (Epilogue::kHasResidual)
      return args_.direct ? TwoShotByRows() : TwoShotByInboxes();
    // Nobody's input is read, or output written, before its rank is here.
    if (!exchange_.PassRound()) return;
    ReduceSteps();
    // Nobody goes on before all have finished with its tensors.
    if (!exchange_.Meet()) return;
    exchange_.NextRound();
    exchange_.Finish(non_finite_);
  }

  // Inputs of one device to its wire pool. A launch of all ranks begins when all are ready.
  QRD_DEVICE void SumToWire() {
    if (!exchange_.PassRoundApart()) return;
    ReduceSteps();
    if (!exchange_.PassRoundApart()) return;
    exchange_.Finish(non_finite_);
  }

 private:
  QRD_DEVICE void ReduceSteps() {
#pragma unroll 1
    for (uint32_t step = 0; step < args_.steps; ++step) {
      const uint64_t index = (uint64_t{step} * args_.blocks + exchange_.block()) * kWaves + wave_;
      const TileSpan span = OwnedTile(args_, exchange_.rank(), index);
      if (args_.aligned && span.elements == kTile) {
        ReduceDirect<true>(span);
      } else if (span.elements != 0) {
        ReduceDirect<false>(span);
      }
      // Waves stay together: 2 N tensors are a lot of pages, and blocks that drift apart touch
      // more.
      BlockBarrier();
    }
  }

  QRD_DEVICE void TwoShotByRows() {
    if (!exchange_.PassRound()) return;
    ReduceRows<kDtype>(args_, epilogue_.norm(),
                       uint64_t{exchange_.block()} * args_.world_size + exchange_.rank(),
                       uint64_t{args_.blocks} * args_.world_size, &non_finite_);
    if (!exchange_.Meet()) return;
    exchange_.NextRound();
    exchange_.Finish(non_finite_);
  }

  // The units of `most` turns of waves of an owner, from unit `index` of its own on.
  QRD_DEVICE TileRun OwnedUnits(uint32_t owner, uint64_t index, uint32_t most) const {
    constexpr uint32_t kOfTile = kTile / kUnit<kDtype>;
    const TileRun tiles = OwnedRun(args_, owner, index / kOfTile, most);
    const uint64_t first = tiles.first * kOfTile + index % kOfTile;
    const uint64_t end = MinU64((tiles.first + tiles.tiles) * kOfTile, Units());
    if (tiles.tiles == 0 || first >= end) return {0, 0};
    return {first, static_cast<uint32_t>(MinU64(end - first, most))};
  }
  QRD_DEVICE TileSpan OwnedUnit(uint32_t owner, uint64_t index) const {
    const TileRun run = OwnedUnits(owner, index, 1);
    const uint64_t first = run.first * kUnit<kDtype>;
    if (run.tiles == 0) return {0, 0};
    return {first, static_cast<uint32_t>(MinU64(args_.count - first, kUnit<kDtype>))};
  }
  QRD_DEVICE uint64_t Units() const { return (args_.count + kUnit<kDtype> - 1) / kUnit<kDtype>; }
  static QRD_DEVICE uint64_t MinU64(uint64_t a, uint64_t b) { return a < b ? a : b; }

  QRD_DEVICE void TwoShotByInboxes() {
    const uint32_t rank = exchange_.rank();
    const uint32_t turns = args_.steps * (kTile / kUnit<kDtype>);
#pragma unroll 1
    for (uint32_t turn = 0; turn < turns; ++turn) {
      const uint64_t index = (uint64_t{turn} * args_.blocks + exchange_.block()) * kWaves + wave_;
      Octet<kDtype> x[kUnitOctets<kDtype>];
#pragma unroll 1
      for (uint32_t owner = 0; owner < args_.world_size; ++owner) {
        const TileSpan span = OwnedUnit(owner, index);
        if (owner == rank || span.elements == 0) continue;
        LoadUnit(span, x);
        StoreSlot(exchange_.Slot(owner, rank, wave_), x);
      }
      const TileSpan own = OwnedUnit(rank, index);
      epilogue_.Prefetch(own);
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
      if (own.elements != 0) ReduceUnit(own, x);
      exchange_.NextRound();
      if (own.elements != 0) {
        Push(x);
        StoreUnit(own, x);
      }
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
#pragma unroll 1
      for (uint32_t owner = 0; owner < args_.world_size; ++owner) {
        const TileSpan span = OwnedUnit(owner, index);
        if (owner == rank || span.elements == 0) continue;
        LoadSlot(exchange_.Slot(rank, owner, wave_), x);
        StoreUnit(span, x);
      }
      exchange_.NextRound();
    }
    exchange_.Finish(non_finite_);
  }

  QRD_DEVICE void LoadUnit(const TileSpan& span, Octet<kDtype> (&x)[kUnitOctets<kDtype>]) const {
    if (args_.aligned && span.elements == kUnit<kDtype>) {
      Load<true>(span, x);
    } else {
      Load<false>(span, x);
    }
  }
  static QRD_DEVICE void LoadSlot(const uint8_t* slot, Octet<kDtype> (&x)[kUnitOctets<kDtype>]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      x[i] = LoadOctet<kDtype>(slot, OctetAt(i) * kOctet);
    }
  }
  static QRD_DEVICE void StoreSlot(uint8_t* slot, const Octet<kDtype> (&x)[kUnitOctets<kDtype>]) {
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      StoreOctet<kDtype>(slot, OctetAt(i) * kOctet, x[i]);
    }
  }
  // The sum of all ranks' units, rounded.
  QRD_DEVICE void ReduceUnit(const TileSpan& span, Octet<kDtype> (&x)[kUnitOctets<kDtype>]) {
    Floats sums[kUnitOctets<kDtype>];
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) ClearSums(sums[i]);
#pragma unroll 1
    for (uint32_t r = 0; r < args_.world_size; ++r) {
      if (r == exchange_.rank()) {
        LoadUnit(span, x);
      } else {
        LoadSlot(exchange_.Slot(exchange_.rank(), r, wave_), x);
      }
#pragma unroll
      for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) AddTo(sums[i], Widen<kDtype>(x[i]));
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      FinishSums(args_, sums[i]);
      ClearTail<false>(span, OctetAt(i), sums[i]);
      x[i] = RoundOctet<kDtype>(sums[i], &non_finite_);
    }
  }
  QRD_DEVICE void StoreUnit(const TileSpan& span,
                            const Octet<kDtype> (&x)[kUnitOctets<kDtype>]) const {
    typename Epilogue::Operand operands[kUnitOctets<kDtype>];
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      operands[i] = epilogue_.template Load<false>(exchange_.rank(), span, OctetAt(i));
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      epilogue_.template Store<false>(exchange_.rank(), span, OctetAt(i), operands[i], x[i]);
    }
  }

  QRD_DEVICE static uint32_t OctetAt(uint32_t i) { return i * kWaveLanes + LaneIndex(); }

  template <bool kWhole>
  QRD_DEVICE void Load(const TileSpan& span, Octet<kDtype> (&own)[kUnitOctets<kDtype>]) const {
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      own[i] = LoadTileOctet<kDtype, kWhole>(args_.inputs[exchange_.rank()], span, OctetAt(i));
    }
  }

  QRD_DEVICE void Push(const Octet<kDtype> (&own)[kUnitOctets<kDtype>]) const {
#pragma unroll 1
    for (uint32_t peer = 0; peer < args_.world_size; ++peer) {
      if (peer == exchange_.rank()) continue;
      StoreSlot(exchange_.Slot(peer, exchange_.rank(), wave_), own);
    }
  }

  template <bool kWhole>
  QRD_DEVICE void SumUnit(const TileSpan& span, const Octet<kDtype> (&own)[kUnitOctets<kDtype>]) {
    typename Epilogue::Operand operands[kUnitOctets<kDtype>];
    Floats sums[kUnitOctets<kDtype>];
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      operands[i] = epilogue_.template Load<kWhole>(exchange_.rank(), span, OctetAt(i));
      ClearSums(sums[i]);
    }
#pragma unroll 1
    for (uint32_t r = 0; r < args_.world_size; ++r) {
      if (r == exchange_.rank()) {
#pragma unroll
        for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) AddTo(sums[i], Widen<kDtype>(own[i]));
      } else {
        const uint8_t* slot = exchange_.Slot(exchange_.rank(), r, wave_);
        Octet<kDtype> x[kUnitOctets<kDtype>];
        LoadSlot(slot, x);
#pragma unroll
        for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) AddTo(sums[i], Widen<kDtype>(x[i]));
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kUnitOctets<kDtype>; ++i) {
      FinishSums(args_, sums[i]);
      if (!kWhole && OctetAt(i) * kOctet >= span.elements) continue;
      ClearTail<kWhole>(span, OctetAt(i), sums[i]);
      epilogue_.template Store<kWhole>(exchange_.rank(), span, OctetAt(i), operands[i],
                                       RoundOctet<kDtype>(sums[i], &non_finite_));
    }
  }

  // Padding is not counted.
  template <bool kWhole>
  static QRD_DEVICE void ClearTail(const TileSpan& span, uint32_t octet, Floats& sums) {
    if constexpr (!kWhole) {
#pragma unroll
      for (uint32_t j = 0; j < kOctet; ++j) {
        if (octet * kOctet + j >= span.elements) sums.v[j] = 0;
      }
    }
  }

  template <bool kWhole>
  QRD_DEVICE void ReduceDirect(const TileSpan& span) {
    // As much of a tensor at a time as registers hold: 4 KiB a wave.
    constexpr uint32_t kAll = kOctetsPerTile / kWaveLanes;
    constexpr uint32_t kStep = !kWhole ? 1 : DtypeOnDevice<kDtype>::kIs16 ? kAll : kAll / 2;
#pragma unroll 1
    for (uint32_t round = 0; round < kAll / kStep; ++round) {
      const uint32_t octet = round * kStep * kWaveLanes + LaneIndex();
      if (!kWhole && octet * kOctet >= span.elements) return;
      Floats sums[kStep];
#pragma unroll
      for (uint32_t i = 0; i < kStep; ++i) ClearSums(sums[i]);
#pragma unroll 1
      for (uint32_t r = 0; r < args_.world_size; ++r) {
        Octet<kDtype> x[kStep];
#pragma unroll
        for (uint32_t i = 0; i < kStep; ++i) {
          x[i] = LoadTileOctet<kDtype, kWhole>(args_.inputs[r], span, octet + i * kWaveLanes);
        }
#pragma unroll
        for (uint32_t i = 0; i < kStep; ++i) AddTo(sums[i], Widen<kDtype>(x[i]));
      }
      Octet<kDtype> result[kStep];
#pragma unroll
      for (uint32_t i = 0; i < kStep; ++i) {
        FinishSums(args_, sums[i]);
        ClearTail<kWhole>(span, octet + i * kWaveLanes, sums[i]);
        result[i] = RoundOctet<kDtype>(sums[i], &non_finite_);
      }
#pragma unroll 1
      for (uint32_t r = 0; r < args_.world_size; ++r) {
        typename Epilogue::Operand operands[kStep];
#pragma unroll
        for (uint32_t i = 0; i < kStep; ++i) {
          operands[i] = epilogue_.template Load<kWhole>(r, span, octet + i * kWaveLanes);
        }
#pragma unroll
        for (uint32_t i = 0; i < kStep; ++i) {
          epilogue_.template Store<kWhole>(r, span, octet + i * kWaveLanes, operands[i], result[i]);
        }
      }
    }
  }

  const AllReduceArgs& args_;
  Exchange exchange_;
  Epilogue epilogue_;
  const uint32_t wave_;
  uint32_t non_finite_ = 0;
};

}  // namespace qrd::gpu
