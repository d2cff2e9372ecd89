// SPDX-License-Identifier: Apache-2.0
// What a collective does with a finished octet: it is final, in the dtype, rounded (epilogues, step
// 1), the same bits on every rank. Identity stores it. Residual adds the residual and stores the
// sum. RmsNorm does that, and the block that brings the last tile of a group of rows normalises the
// rows of the group, which are still in the cache; no block waits for another one of its rank.
//
// A collective calls, for the tensors of any rank: Load() early, Store() with what it gave;
// one_shot without a codec also FinishTiles() after each turn, by the whole block.
//
// Thread safety: device functions on the thread's own octet; FinishTiles: a block function.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/rows.h"
#include "kernels/gpu/tile.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

// Neighbouring tiles of a tensor, or other units of 2^n elements.
struct TileRun {
  uint64_t first;  // tile
  uint32_t tiles;
};

// What an epilogue is that adds nothing.
struct NoOperandEpilogue {
  static constexpr bool kHasResidual = false;
  struct Operand {};

  QRD_DEVICE bool Owns(const TileSpan&, uint32_t) const { return true; }
  QRD_DEVICE void Prefetch(const TileSpan&) const {}
  template <bool kWhole>
  QRD_DEVICE Operand Load(uint32_t, const TileSpan&, uint32_t) const {
    return {};
  }
};

template <Dtype kDtype>
class IdentityEpilogue : public NoOperandEpilogue {
 public:
  QRD_DEVICE IdentityEpilogue(const AllReduceArgs& args, uint32_t) : args_(args) {}

  template <bool kWhole>
  QRD_DEVICE void Store(uint32_t rank, const TileSpan& span, uint32_t octet, const Operand&,
                        const Octet<kDtype>& value) const {
    StoreTileOctet<kDtype, kWhole>(args_.outputs[rank], span, octet, value);
  }
  template <uint32_t kUnit>
  QRD_DEVICE void FinishTiles(const TileRun&) const {}

 private:
  const AllReduceArgs& args_;
};

// The sums go to the wire pool: without a codec from here, for all ranks once; else the collective
// puts them there, encoded.
template <Dtype kDtype, bool kHasCodec>
class WireEpilogue : public NoOperandEpilogue {
 public:
  QRD_DEVICE WireEpilogue(const AllReduceArgs& args, uint32_t) : args_(args) {}

  template <bool kWhole>
  QRD_DEVICE void Store(uint32_t rank, const TileSpan& span, uint32_t octet, const Operand&,
                        const Octet<kDtype>& value) const {
    if (kHasCodec || rank != 0) return;
    StoreTileOctet<kDtype, kWhole>(args_.wire_pools[0], span, octet, value);
  }

 private:
  const AllReduceArgs& args_;
};

// The sum with the residual, in residual_out; the norm is another kernel's, or another function's.
template <Dtype kDtype>
class ResidualEpilogue {
 public:
  static constexpr bool kHasResidual = true;
  using Operand = Octet<kDtype>;  // of the residual

  QRD_DEVICE ResidualEpilogue(const RmsNormReduceArgs& args, uint32_t rank)
      : args_(args), rank_(rank) {}

  QRD_DEVICE const RmsNormArgs& norm() const { return args_.norm; }
  // Whether the rank counts the octet.
  QRD_DEVICE bool Owns(const TileSpan&, uint32_t) const { return true; }

  QRD_DEVICE void Prefetch(const TileSpan& span) const {
    const void* residual = args_.norm.residual[rank_];
    if (residual != nullptr) PrefetchTile<kDtype>(residual, span);
  }

  // Rows, and so tiles, end at multiples of an octet, and tensors are aligned.
  template <bool kWhole>
  QRD_DEVICE Operand Load(uint32_t rank, const TileSpan& span, uint32_t octet) const {
    const void* residual = args_.norm.residual[rank];
    if (residual == nullptr || (!kWhole && octet * kOctet >= span.elements)) return {};
    return LoadOctet<kDtype>(residual, span.first + octet * kOctet);
  }
  template <bool kWhole>
  QRD_DEVICE void Store(uint32_t rank, const TileSpan& span, uint32_t octet,
                        const Operand& residual, const Octet<kDtype>& value) const {
    if (!kWhole && octet * kOctet >= span.elements) return;
    StoreOctetKept<kDtype>(args_.norm.residual_out[rank], span.first + octet * kOctet,
                           AddOctets<kDtype>(value, residual));
  }

 protected:
  const RmsNormReduceArgs& args_;
  const uint32_t rank_;
};

// The same of the rank's own rows of a sharded residual; what a tile has of others' is dropped.
template <Dtype kDtype>
class OwnRowsEpilogue : public ResidualEpilogue<kDtype> {
 public:
  using typename ResidualEpilogue<kDtype>::Operand;
  QRD_DEVICE OwnRowsEpilogue(const RmsNormReduceArgs& args, uint32_t rank)
      : ResidualEpilogue<kDtype>(args, rank), own_(OwnedElementsOf(args.norm, rank)) {}

  QRD_DEVICE bool Owns(const TileSpan& span, uint32_t octet) const {
    const uint64_t element = span.first + octet * kOctet;
    return element >= own_.first && element < own_.last;
  }
  QRD_DEVICE void Prefetch(const TileSpan& span) const {
    if (span.first >= own_.first && span.first + span.elements <= own_.last)
      ResidualEpilogue<kDtype>::Prefetch(span);
  }
  template <bool kWhole>
  QRD_DEVICE Operand Load(uint32_t rank, const TileSpan& span, uint32_t octet) const {
    if (!Owns(span, octet)) return {};
    return ResidualEpilogue<kDtype>::template Load<kWhole>(rank, span, octet);
  }
  template <bool kWhole>
  QRD_DEVICE void Store(uint32_t rank, const TileSpan& span, uint32_t octet,
                        const Operand& residual, const Octet<kDtype>& value) const {
    if (!Owns(span, octet)) return;
    ResidualEpilogue<kDtype>::template Store<kWhole>(rank, span, octet, residual, value);
  }

 private:
  const ElementRange own_;
};

// And the rows that a block completes.
template <Dtype kDtype>
class RmsNormEpilogue : public ResidualEpilogue<kDtype> {
 public:
  QRD_DEVICE RmsNormEpilogue(const RmsNormReduceArgs& args, uint32_t rank)
      : ResidualEpilogue<kDtype>(args, rank), rows_(args.norm, rank, Shared().rows) {
    if (ThreadIndex() == 0) Shared().count[0] = 0;
  }

  // The block has brought `run` of its rank's residual_out: at most a unit a wave.
  template <uint32_t kUnit>
  QRD_DEVICE void FinishTiles(const TileRun& run) {
    DrainStores();
    BlockBarrier();
    EpilogueShared& shared = Shared();
    turn_ ^= 1;
    // The other turn's count was last read before the barrier.
    if (ThreadIndex() == 0) shared.count[turn_] = 0;
    if (ThreadIndex() < kGroupsOfRun) Arrive<kUnit>(run, ThreadIndex());
    BlockBarrier();
    AcquirePayload();
    RunGroups(shared.count[turn_ ^ 1]);
  }

 private:
  // That a run can touch: a group has the elements of a tile at least.
  static constexpr uint32_t kGroupsOfRun = kRowWaves + 2;

  struct EpilogueShared {
    RowShared rows;
    uint32_t count[2];
    uint32_t groups[2][kGroupsOfRun];  // that this block has completed
  };
  static QRD_DEVICE EpilogueShared& Shared() { return BlockShared<EpilogueShared>(); }

  // Group `index` of those that the run touches.
  template <uint32_t kUnit>
  QRD_DEVICE void Arrive(const TileRun& run, uint32_t index) const {
    if (run.tiles == 0) return;
    const uint64_t group_elements = uint64_t{args_.norm.rows_per_group} * args_.norm.hidden;
    const uint64_t run_end = run.first + run.tiles;
    const uint64_t group = run.first * kUnit / group_elements + index;
    const uint64_t first = group * group_elements;  // element
    if (first >= args_.reduce.count || first >= run_end * kUnit) return;
    const uint64_t left = args_.reduce.count - first;
    const uint64_t last = first + (left < group_elements ? left : group_elements) - 1;
    const uint64_t tiles_begin = first / kUnit, tiles_end = last / kUnit + 1;
    const uint64_t begin = tiles_begin > run.first ? tiles_begin : run.first;
    const uint64_t end = tiles_end < run_end ? tiles_end : run_end;
    uint32_t* arrived = &args_.reduce.controls[rank_]->row_groups[group];
    const auto mine = static_cast<uint32_t>(end - begin);
    // Releases what the block stored, and acquires what others did.
    if (AddAcqRelDevice(arrived, mine) + mine != tiles_end - tiles_begin) return;
    StoreRelaxedSystem(arrived, 0);
    EpilogueShared& shared = Shared();
    shared.groups[turn_ ^ 1][AddBlock(&shared.count[turn_ ^ 1], 1)] = static_cast<uint32_t>(group);
  }

  QRD_DEVICE void RunGroups(uint32_t groups) {
    const uint32_t step = rows_.pass_rows();
    const uint64_t rows = uint64_t{groups} * args_.norm.rows_per_group;
#pragma unroll 1
    for (uint64_t i = 0; i < rows; i += step) {
      uint64_t first = RowAt(i);
      uint64_t second = step == 2 && i + 1 < rows ? RowAt(i + 1) : args_.norm.tokens;
      if (first >= args_.norm.tokens) {  // behind the last group's end
        first = second;
        second = args_.norm.tokens;
        if (first >= args_.norm.tokens) continue;
      }
      rows_.template Run<RowSource::kStored>(nullptr, first, second, second < args_.norm.tokens);
    }
  }
  QRD_DEVICE uint64_t RowAt(uint64_t i) const {
    const uint32_t each = args_.norm.rows_per_group;
    if (each == 1) return Shared().groups[turn_ ^ 1][i];
    return uint64_t{Shared().groups[turn_ ^ 1][i / each]} * each + i % each;
  }

  using ResidualEpilogue<kDtype>::args_;
  using ResidualEpilogue<kDtype>::rank_;
  uint32_t turn_ = 0;
  Rows<kDtype> rows_;
};

}  // namespace qrd::gpu
