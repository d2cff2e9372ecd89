// SPDX-License-Identifier: Apache-2.0
// The collectives with a codec that has planes. Every wave of a block takes one tile a step:
//   one_shot  encode the own tile, push it to all, meet; decode all N, sum, store
//   two_shot  encode a tile of every other owner, push, meet; sum the own tile (the own input
//   exact),
//             encode, push to all, meet; decode a tile of every owner, store
// A tile's input is read before its output is written, and only by its own rank: in place works.
//
// Epilogue: what happens to a finished octet, in the dtype, in registers (kernels/gpu/epilogue.h).
//
// Thread safety: block functions.
#pragma once

#include "kernels/gpu/codec_kernels.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/epilogue.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/reduce_parts.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

template <Codec kCodec, Dtype kDtype, typename Epilogue>
class AllReduce {
 public:
  template <typename Args>
  explicit QRD_DEVICE AllReduce(const Args& args)
      : args_(ReduceArgsOf(args)),
        exchange_(args_),
        epilogue_(args, exchange_.rank()),
        wave_(WaveIndex()),
        scratch_(BlockShared<CodecShared>().scratch[wave_]) {}

  QRD_DEVICE void OneShot() {
    const uint64_t tiles = TileCount(args_.count);
#pragma unroll 1
    for (uint32_t step = 0; step < args_.steps; ++step) {
      const uint64_t tile = TileOfStep(step);
      const TileSpan span = tile < tiles ? SpanOf(tile, args_.count) : TileSpan{0, 0};
      if (span.elements != 0) Push(EncodeInput(span));
      PrefetchNext(TileOfStep(step + 1), tiles);
      epilogue_.Prefetch(span);
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
      if (span.elements != 0) {
        if (IsWhole(span)) {
          SumDecoded<true, false>(span);
        } else {
          SumDecoded<false, false>(span);
        }
        WaveBarrier();  // scratch is free
      }
      exchange_.NextRound();
    }
    exchange_.Finish(exchange_.rank() == 0 ? non_finite_ : 0);
  }

  QRD_DEVICE void TwoShot() {
#pragma unroll 1
    for (uint32_t step = 0; step < args_.steps; ++step) {
      const uint64_t index = TileOfStep(step);
#pragma unroll 1
      for (uint32_t owner = NextRank(exchange_.rank()); owner != exchange_.rank();
           owner = NextRank(owner)) {
        SendTile(owner, wave_, OwnedTile(args_, owner, index));
      }
      const TileSpan own = OwnedTile(args_, exchange_.rank(), index);
      PrefetchTile<kDtype>(Input(), own);
      epilogue_.Prefetch(own);
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
      const uint8_t* inbox = exchange_.Slot(exchange_.rank(), 0, wave_);
      exchange_.NextRound();
      if (own.elements != 0) Push(ReduceOwned(inbox, own));
      PrefetchOperands(index);
      PrefetchTile<kDtype>(Input(),
                           OwnedTile(args_, NextRank(exchange_.rank()), TileOfStep(step + 1)));
      if (!exchange_.Meet()) return;
      exchange_.Acquire();
#pragma unroll 1
      for (uint32_t owner = NextRank(exchange_.rank()); owner != exchange_.rank();
           owner = NextRank(owner)) {
        const TileSpan span = OwnedTile(args_, owner, index);
        if (span.elements == 0) continue;
        const uint8_t* wire = exchange_.Slot(exchange_.rank(), owner, wave_);
        if (IsWhole(span)) {
          StoreDecoded<true>(wire, span);
        } else {
          StoreDecoded<false>(wire, span);
        }
      }
      exchange_.NextRound();
    }
    exchange_.Finish(non_finite_);
  }

  // Sharded rows: the first half of two_shot. An owner gets the tiles that its rows touch, whole,
  // and keeps what is its own.
  QRD_DEVICE void Scatter(const RmsNormArgs& norm) {
    const bool is_done = RunTurns(
        [&](uint32_t owner, uint64_t index) { return OwnedRowsTile(args_, norm, owner, index); },
        [&](const TileSpan& own) {
          if (IsWhole(own)) {
            SumDecoded<true, true>(own);
          } else {
            SumDecoded<false, true>(own);
          }
        });
    if (is_done) exchange_.FinishPart(non_finite_);
  }

  // two_shot whose sums stay encoded, in the wire pools (kernel_args.h).
  QRD_DEVICE void SumToWire() {
    const bool is_done =
        RunTurns([&](uint32_t owner, uint64_t index) { return OwnedTile(args_, owner, index); },
                 [&](const TileSpan& own) {
                   const uint8_t* inbox = exchange_.Slot(exchange_.rank(), 0, wave_);
                   PutIntoPools(own, ReduceOwned(inbox, own));
                 });
    if (!is_done) return;
    // Nobody's rows may begin before all ranks' tiles are in the pools.
    if (!exchange_.PassRoundApart()) return;
    exchange_.Finish(non_finite_);
  }

 private:
  using Format = TileFormat<kCodec, kDtype>;
  using Operand = typename Epilogue::Operand;

  QRD_DEVICE uint64_t TileOfStep(uint32_t step) const {
    return (uint64_t{step} * args_.blocks + exchange_.block()) * kWaves + wave_;
  }
  QRD_DEVICE void PrefetchNext(uint64_t tile, uint64_t tiles) const {
    if (tile < tiles) PrefetchTile<kDtype>(Input(), SpanOf(tile, args_.count));
  }
  // Of what the other owners will send.
  QRD_DEVICE void PrefetchOperands(uint64_t index) const {
    if constexpr (Epilogue::kHasResidual) {
#pragma unroll 1
      for (uint32_t owner = NextRank(exchange_.rank()); owner != exchange_.rank();
           owner = NextRank(owner)) {
        epilogue_.Prefetch(OwnedTile(args_, owner, index));
      }
    }
  }
  QRD_DEVICE uint32_t NextRank(uint32_t rank) const {
    return rank + 1 == args_.world_size ? 0 : rank + 1;
  }
  QRD_DEVICE bool IsWhole(const TileSpan& span) const {
    return args_.aligned && span.elements == kTile;
  }
  QRD_DEVICE const void* Input() const { return args_.inputs[exchange_.rank()]; }

  QRD_DEVICE uint32_t EncodeInput(const TileSpan& span) const {
    return IsWhole(span) ? EncodeTile<kCodec, kDtype, false, true>(Input(), span, scratch_)
                         : EncodeTile<kCodec, kDtype, false, false>(Input(), span, scratch_);
  }

  // A tile of the input, encoded, to its owner's slot `position`; it may be empty.
  QRD_DEVICE void SendTile(uint32_t owner, uint32_t position, const TileSpan& span) const {
    if (span.elements == 0) return;
    const uint32_t bytes = EncodeInput(span);
    WaveBarrier();
    CopyTile<true>(scratch_, bytes, exchange_.Slot(owner, exchange_.rank(), position));
    WaveBarrier();
  }

  // The first half of two_shot, for any cut: tile_of(owner, index) of every owner goes to it, and
  // reduce(own) gets each tile of the rank's own, when all have sent theirs. False: give up.
  template <typename TileOf, typename Reduce>
  QRD_DEVICE bool RunTurns(const TileOf& tile_of, const Reduce& reduce) {
#pragma unroll 1
    for (uint32_t step = 0; step < args_.steps; ++step) {
      const uint64_t first = (uint64_t{step} * args_.blocks + exchange_.block()) * args_.turn_tiles;
      SendTurn(tile_of, first);
      const TileSpan own =
          wave_ < args_.turn_tiles ? tile_of(exchange_.rank(), first + wave_) : TileSpan{0, 0};
      PrefetchTile<kDtype>(Input(), own);
      epilogue_.Prefetch(own);
      if (!exchange_.Meet()) return false;
      exchange_.Acquire();
      if (own.elements != 0) reduce(own);
      exchange_.NextRound();
    }
    return true;
  }

  // Tiles `first` to first + turn_tiles - 1 of every other owner, encoded by all waves in turn: few
  // tiles of many owners keep them all busy.
  template <typename TileOf>
  QRD_DEVICE void SendTurn(const TileOf& tile_of, uint64_t first) const {
    const uint32_t tiles = args_.turn_tiles, sends = (args_.world_size - 1) * tiles;
#pragma unroll 1
    for (uint32_t i = wave_; i < sends; i += kWaves) {
      uint32_t owner = exchange_.rank() + 1 + i / tiles;
      if (owner >= args_.world_size) owner -= args_.world_size;
      SendTile(owner, i % tiles, tile_of(owner, first + i % tiles));
    }
  }

  // Sends the tile in scratch to every other rank.
  QRD_DEVICE void Push(uint32_t bytes) const {
    WaveBarrier();
#pragma unroll 1
    for (uint32_t peer = NextRank(exchange_.rank()); peer != exchange_.rank();
         peer = NextRank(peer)) {
      CopyTile<true>(scratch_, bytes, exchange_.Slot(peer, exchange_.rank(), wave_));
    }
    WaveBarrier();
  }

  // The tile in scratch, to its place in every wire pool.
  QRD_DEVICE void PutIntoPools(const TileSpan& span, uint32_t bytes) const {
    WaveBarrier();
#pragma unroll 1
    for (uint32_t pool = 0; pool < args_.wire_pool_count; ++pool) {
      CopyTile<true>(scratch_, bytes,
                     args_.wire_pools[pool] + span.first / kTile * uint64_t{Format::kBytes});
    }
    WaveBarrier();
  }

  // What came out of the codec.
  template <bool kWhole>
  QRD_DEVICE void StoreCoded(const TileSpan& span, uint32_t octet, const Operand& operand,
                             const typename Format::Coded& coded, uint32_t* non_finite) const {
    Floats y = Format::Decode(coded, octet);
    if constexpr (!kWhole) ClearTail(span, octet, y);  // padding is not counted
    epilogue_.template Store<kWhole>(
        exchange_.rank(), span, octet, operand,
        RoundDecoded<kDtype>(y, Format::Octets::MayBeNan(coded.meta), non_finite));
  }
  template <bool kWhole>
  QRD_DEVICE Operand LoadOperand(const TileSpan& span, uint32_t octet) const {
    return epilogue_.template Load<kWhole>(exchange_.rank(), span, octet);
  }

  // Adds what `wire` holds for octets of one round.
  template <bool kWhole>
  QRD_DEVICE void AddDecoded(const uint8_t* wire, uint32_t groups, uint32_t round,
                             Floats (&sums)[Walk<kWhole>::kStep]) const {
    using W = Walk<kWhole>;
    typename Format::Coded coded[W::kStep];
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      coded[i] = Format::template Load<true>(wire, groups, W::OctetAt(round, i));
    }
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      AddTo(sums[i], Format::Decode(coded[i], W::OctetAt(round, i)));
    }
  }

  // All contributions, the own one from scratch (one_shot) or, kExactOwn, as it is.
  template <bool kWhole, bool kExactOwn>
  QRD_DEVICE void SumDecoded(const TileSpan& span) {
    using W = Walk<kWhole>;
    const uint32_t groups = kWhole ? Format::kGroups : Format::GroupsOf(span.elements);
#pragma unroll 1
    for (uint32_t round = 0; round < W::kRounds; ++round) {
      if (!kWhole && W::OctetAt(round, 0) >= groups * Format::kGroupLanes) return;
      Floats sums[W::kStep];
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) ClearSums(sums[i]);
#pragma unroll 1
      for (uint32_t r = 0; r < args_.world_size; ++r) {
        const bool is_own = r == exchange_.rank();
        if (kExactOwn && is_own) {
          AddInput<kWhole>(span, round, sums);
        } else {
          AddDecoded<kWhole>(is_own ? scratch_ : exchange_.Slot(exchange_.rank(), r, wave_), groups,
                             round, sums);
        }
      }
      Operand operands[W::kStep];
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        operands[i] = LoadOperand<kWhole>(span, W::OctetAt(round, i));
      }
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        const uint32_t octet = W::OctetAt(round, i);
        FinishSums(args_, sums[i]);
        if constexpr (!kWhole) ClearTail(span, octet, sums[i]);
        uint32_t non_finite = 0;
        epilogue_.template Store<kWhole>(exchange_.rank(), span, octet, operands[i],
                                         RoundOctet<kDtype>(sums[i], &non_finite));
        if (epilogue_.Owns(span, octet)) non_finite_ += non_finite;
      }
    }
  }

  // two_shot, second phase: from the inbox to scratch. Returns the bytes there.
  QRD_DEVICE uint32_t ReduceOwned(const uint8_t* inbox, const TileSpan& span) {
    const uint32_t groups = IsWhole(span) ? Format::kGroups : Format::GroupsOf(span.elements);
    if (IsWhole(span)) {
      ReduceTile<true>(inbox, groups, span);
    } else {
      ReduceTile<false>(inbox, groups, span);
    }
    return groups * Format::kGroupBytes;
  }

  template <bool kWhole>
  QRD_DEVICE void ReduceTile(const uint8_t* inbox, uint32_t groups, const TileSpan& span) {
    using W = Walk<kWhole>;
#pragma unroll 1
    for (uint32_t round = 0; round < W::kRounds; ++round) {
      Floats sums[W::kStep];
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) ClearSums(sums[i]);
      const bool has_octet = kWhole || W::OctetAt(round, 0) < groups * Format::kGroupLanes;
#pragma unroll 1
      for (uint32_t r = 0; r < args_.world_size; ++r) {
        if (r == exchange_.rank()) {
          AddInput<kWhole>(span, round, sums);
        } else if (has_octet) {
          AddDecoded<kWhole>(inbox + uint64_t{r} * kWaves * kSlotBytes, groups, round, sums);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        const uint32_t octet = W::OctetAt(round, i);
        const Operand operand = LoadOperand<kWhole>(span, octet);
        FinishSums(args_, sums[i]);
        if (!kWhole) ClearTail(span, octet, sums[i]);
        typename Format::Coded coded;
        coded.meta = Format::Octets::EncodeFloats(sums[i], &coded.planes);
        if (!has_octet) continue;
        Format::Store(scratch_, groups, octet, coded.planes, coded.meta);
        StoreCoded<kWhole>(span, octet, operand, coded, &non_finite_);
      }
    }
  }

  template <bool kWhole>
  QRD_DEVICE void AddInput(const TileSpan& span, uint32_t round,
                           Floats (&sums)[Walk<kWhole>::kStep]) const {
    using W = Walk<kWhole>;
    Octet<kDtype> x[W::kStep];
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) {
      x[i] = LoadTileOctet<kDtype, kWhole>(Input(), span, W::OctetAt(round, i));
    }
#pragma unroll
    for (uint32_t i = 0; i < W::kStep; ++i) AddTo(sums[i], Widen<kDtype>(x[i]));
  }

  // The tail of the last group is padded with +0 before it is encoded, not with sums of what the
  // padding of the inputs decoded to.
  static QRD_DEVICE void ClearTail(const TileSpan& span, uint32_t octet, Floats& sums) {
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) {
      if (octet * kOctet + j >= span.elements) sums.v[j] = 0;
    }
  }

  template <bool kWhole>
  QRD_DEVICE void StoreDecoded(const uint8_t* wire, const TileSpan& span) {
    using W = Walk<kWhole>;
    const uint32_t groups = kWhole ? Format::kGroups : Format::GroupsOf(span.elements);
    uint32_t ignored = 0;  // its owner counts
#pragma unroll 1
    for (uint32_t round = 0; round < W::kRounds; ++round) {
      if (!kWhole && W::OctetAt(round, 0) >= groups * Format::kGroupLanes) return;
      typename Format::Coded coded[W::kStep];
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        coded[i] = Format::template Load<true>(wire, groups, W::OctetAt(round, i));
      }
      Operand operands[W::kStep];
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        operands[i] = LoadOperand<kWhole>(span, W::OctetAt(round, i));
      }
#pragma unroll
      for (uint32_t i = 0; i < W::kStep; ++i) {
        StoreCoded<kWhole>(span, W::OctetAt(round, i), operands[i], coded[i], &ignored);
      }
    }
  }

  const AllReduceArgs& args_;
  Exchange exchange_;
  Epilogue epilogue_;
  const uint32_t wave_;
  uint8_t* const scratch_;
  uint32_t non_finite_ = 0;
};

}  // namespace qrd::gpu
