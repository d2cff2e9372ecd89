// SPDX-License-Identifier: Apache-2.0
// RMSNorm and FP8 of whole rows by a block: steps 2 to 9 of the contract of epilogues. A thread
// holds a row's octets in registers from the load to the last store: eight slots, of one row of up
// to 16384 elements or of two of up to 8192, whose waits then overlap: neighbours, or the same row
// of two ranks. Slot s, thread t: octet
// (s % slots of a row) * kBlockThreads + t, so a wave has a run of neighbouring octets.
//
// Sum of squares, in the order of the contract: a tree over the octet, then over lanes at distance
// 1, 2, 4, ..., then over waves, each level of neighbours; what is missing is +0. Maxima as
// integers. Both cross the waves in parallel: every wave writes a partial, passes the barrier, and
// reduces all partials itself.
//
// Thread safety: block functions, all threads together.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/fp8.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/sums.h"
#include "kernels/gpu/values.h"

namespace qrd::gpu {

inline constexpr uint32_t kRowSlots = 8;
inline constexpr uint32_t kRowWaves = kBlockThreads / kWaveLanes;
inline constexpr uint32_t kSlotElements = kBlockThreads * kOctet;
static_assert(kRowSlots * kSlotElements == kHiddenMax);
static_assert(kRowSlots / 2 * kSlotElements == kNarrowHidden);

struct RowShared {
  // Two sets in turn: a barrier a use is enough.
  float sums[2][kRowSlots * kRowWaves];
  uint32_t maxima[2][kRowWaves];  // of the first row below, of the second above
};

// The rows that rank `owner` has of a sharded residual, as elements.
struct ElementRange {
  uint64_t first, last;
};
QRD_DEVICE ElementRange OwnedElementsOf(const RmsNormArgs& norm, uint32_t owner) {
  const bool has_extra = owner < norm.rows_extra;
  const uint64_t first = norm.rows_each * owner + (has_extra ? owner : norm.rows_extra);
  return {first * norm.hidden, (first + norm.rows_each + (has_extra ? 1 : 0)) * norm.hidden};
}

// Where the values of a row come from.
enum class RowSource {
  kStored,   // residual_out has the sum with the residual
  kReduced,  // the residual is added here
  kNormed,   // the norm is there: FP8 only
};

// kToAll: the rank's results go to all ranks; a pass has rows of one rank. kNarrow: a pass is one
// row of at most half of the slots, which takes fewer registers.
template <Dtype kDtype, bool kToAll = false, bool kNarrow = false>
class Rows {
 public:
  QRD_DEVICE Rows(const RmsNormArgs& args, uint32_t rank, RowShared& shared)
      : args_(args),
        first_rank_(rank),
        second_rank_(rank),
        octets_(args.hidden / kOctet),
        is_wide_(!kNarrow && args.hidden > kRowSlots / 2 * kSlotElements),
        shared_(shared) {}

  // Rows of a pass.
  QRD_DEVICE uint32_t pass_rows() const { return is_wide_ ? 1 : 2; }

  // Row `first` and, if has_second, `second`: of a pass of two rows only.
  template <RowSource kSource>
  QRD_DEVICE void Run(const void* reduced, uint64_t first, uint64_t second, bool has_second) {
    first_ = first * args_.hidden;
    second_ = second * args_.hidden;
    has_second_ = has_second;
    set_ ^= 1;
    Octet<kDtype> x[kRowSlots];
    Load<kSource>(reduced, x);
    if constexpr (kSource != RowSource::kNormed) Normalize(x);
    Quantize(first, second, x);
  }

  static constexpr uint32_t kHalf = kRowSlots / 2;

  // Row `row` for rank `rank`. `source` has the sums: Load(element), early, then Finish() of what
  // that gave.
  template <typename Source>
  QRD_DEVICE void RunFrom(const Source& source, uint64_t row, uint32_t rank) {
    first_rank_ = second_rank_ = rank;
    first_ = second_ = row * args_.hidden;
    has_second_ = false;
    set_ ^= 1;
    Octet<kDtype> x[kRowSlots];
    AddFrom(source, x);
    Normalize(x);
    Quantize(row, row, x);
  }

  // The sum of a row of all ranks' inputs, rounded; kSlots: kRowSlots for wide rows, else half.
  template <uint32_t kSlots>
  QRD_DEVICE void Sum(const AllReduceArgs& reduce, uint64_t row, Octet<kDtype> (&sum)[kSlots],
                      uint32_t* non_finite) {
    first_ = row * args_.hidden;
    SumSlots<kSlots>(reduce, sum, non_finite);
  }

  // Sums and what follows them, of a pass as Run() has it.
  QRD_DEVICE void RunSums(const AllReduceArgs& reduce, uint64_t first, uint64_t second,
                          bool has_second, uint32_t* non_finite) {
    first_ = first * args_.hidden;
    second_ = second * args_.hidden;
    has_second_ = has_second;
    set_ ^= 1;
    Octet<kDtype> x[kRowSlots];
    SumSlots<kRowSlots>(reduce, x, non_finite);
    AddResidual(x);
    Normalize(x);
    Quantize(first, second, x);
  }

 private:
  template <uint32_t kSlots>
  QRD_DEVICE void SumSlots(const AllReduceArgs& reduce, Octet<kDtype> (&sum)[kSlots],
                           uint32_t* non_finite) const {
#pragma unroll
    for (uint32_t half = 0; half < kSlots; half += kHalf) {
      Floats sums[kHalf];
#pragma unroll
      for (uint32_t s = 0; s < kHalf; ++s) ClearSums(sums[s]);
#pragma unroll 1
      for (uint32_t r = 0; r < reduce.world_size; ++r) {
        Octet<kDtype> x[kHalf];
#pragma unroll
        for (uint32_t s = 0; s < kHalf; ++s) {
          x[s] = HasOctet(half + s) ? LoadOctet<kDtype>(reduce.inputs[r], ElementOf(half + s))
                                    : Octet<kDtype>{};
        }
#pragma unroll
        for (uint32_t s = 0; s < kHalf; ++s) AddTo(sums[s], Widen<kDtype>(x[s]));
      }
#pragma unroll
      for (uint32_t s = 0; s < kHalf; ++s) {
        sum[half + s] = Octet<kDtype>{};
        if (!HasOctet(half + s)) continue;
        FinishSums(reduce, sums[s]);
        sum[half + s] = RoundOctet<kDtype>(sums[s], non_finite);
      }
    }
  }

 public:
  // The inputs of a row that comes next, to the cache.
  QRD_DEVICE void PrefetchInputs(const AllReduceArgs& reduce, uint64_t row) const {
    PrefetchRow(reduce.inputs, reduce.world_size, row);
  }
  // And what ranks first, first + step, ... add to the sum of a row.
  QRD_DEVICE void PrefetchResiduals(uint32_t first, uint32_t step, uint32_t ranks,
                                    uint64_t row) const {
    for (uint32_t r = first; r < ranks; r += step) PrefetchRow(args_.residual + r, 1, row);
  }

  // What follows a row's sum, for a rank and, of a row that is not wide, for a second one.
  template <uint32_t kSlots>
  QRD_DEVICE void RunSum(const Octet<kDtype> (&sum)[kSlots], uint64_t row, uint32_t first_rank,
                         uint32_t second_rank, bool has_second) {
    first_rank_ = first_rank;
    second_rank_ = second_rank;
    first_ = second_ = row * args_.hidden;
    has_second_ = has_second;
    set_ ^= 1;
    Octet<kDtype> x[kRowSlots];
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) {
      x[s] = HasOctet(s) ? sum[s % kSlots] : Octet<kDtype>{};
    }
    AddResidual(x);
    Normalize(x);
    Quantize(row, row, x);
  }

 private:
  using D = DtypeOnDevice<kDtype>;
  static constexpr uint32_t kMagnitudes = 0x7FFF7FFFu;

  // A line a thread, of rows of all tensors.
  QRD_DEVICE void PrefetchRow(const void* const* tensors, uint32_t count, uint64_t row) const {
    constexpr uint32_t kLine = 128;
    const uint32_t row_bytes = args_.hidden * 2, lines = (row_bytes + kLine - 1) / kLine;
    for (uint32_t i = ThreadIndex(); i < lines * count; i += kBlockThreads) {
      const auto* tensor = static_cast<const uint8_t*>(tensors[i / lines]);
      if (tensor != nullptr) PrefetchLine(tensor + row * row_bytes + i % lines * kLine);
    }
  }

  QRD_DEVICE uint32_t RankOf(uint32_t slot) const {
    return slot < kHalf || is_wide_ ? first_rank_ : second_rank_;
  }

  QRD_DEVICE uint32_t OctetOf(uint32_t slot) const {
    return (is_wide_ ? slot : slot % kHalf) * kBlockThreads + ThreadIndex();
  }
  // Some thread of the block has data in the slot.
  QRD_DEVICE bool SlotIsUsed(uint32_t slot) const {
    if (kNarrow && slot >= kHalf) return false;
    const uint32_t k = is_wide_ ? slot : slot % kHalf;
    return k * kBlockThreads < octets_ && (slot < kHalf || is_wide_ || has_second_);
  }
  QRD_DEVICE bool HasOctet(uint32_t slot) const {
    return SlotIsUsed(slot) && OctetOf(slot) < octets_;
  }
  QRD_DEVICE uint64_t ElementOf(uint32_t slot) const {
    return (slot < kHalf || is_wide_ ? first_ : second_) + OctetOf(slot) * kOctet;
  }

  template <RowSource kSource>
  QRD_DEVICE void Load(const void* reduced, Octet<kDtype> (&x)[kRowSlots]) const {
    const void* from = kSource == RowSource::kStored   ? args_.residual_out[first_rank_]
                       : kSource == RowSource::kNormed ? args_.normed[first_rank_]
                                                       : reduced;
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) {
      x[s] = HasOctet(s) ? LoadOctet<kDtype>(from, ElementOf(s)) : Octet<kDtype>{};
    }
    if constexpr (kSource == RowSource::kReduced) AddResidual(x);
  }

  QRD_DEVICE void AddResidual(Octet<kDtype> (&x)[kRowSlots]) const {
    Octet<kDtype> y[kHalf];
#pragma unroll
    for (uint32_t half = 0; half < kRowSlots; half += kHalf) {
      const uint32_t rank = RankOf(half);
      const void* residual = args_.residual[rank];
#pragma unroll
      for (uint32_t s = 0; s < kHalf; ++s) {
        y[s] = residual != nullptr && HasOctet(half + s)
                   ? LoadOctet<kDtype>(residual, ElementOf(half + s))
                   : Octet<kDtype>{};
      }
#pragma unroll
      for (uint32_t s = 0; s < kHalf; ++s) {
        if (!HasOctet(half + s)) continue;
        x[half + s] = AddOctets<kDtype>(x[half + s], y[s]);
        StoreOctetKept<kDtype>(args_.residual_out[rank], ElementOf(half + s), x[half + s]);
      }
    }
  }

  // Residuals plus the sums of `source`; all loads come first.
  template <typename Source>
  QRD_DEVICE void AddFrom(const Source& source, Octet<kDtype> (&x)[kRowSlots]) const {
    const void* residual = args_.residual[first_rank_];
    typename Source::Loaded sums[kRowSlots];
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) {
      x[s] = Octet<kDtype>{};
      if (!HasOctet(s)) continue;
      if (residual != nullptr) x[s] = LoadOctet<kDtype>(residual, ElementOf(s));
      sums[s] = source.Load(ElementOf(s));
    }
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) {
      if (!HasOctet(s)) continue;
      x[s] = AddOctets<kDtype>(source.Finish(sums[s], ElementOf(s)), x[s]);
      StoreOctetKept<kDtype>(args_.residual_out[first_rank_], ElementOf(s), x[s]);
    }
  }

  // Squares are exact, so a multiply-add rounds as the addition alone would.
  static QRD_DEVICE float SumSquares(const Octet<kDtype>& octet) {
    const Floats x = Widen<kDtype>(octet);
    float pairs[kOctet / 2];
#pragma unroll
    for (uint32_t j = 0; j < kOctet / 2; ++j) {
      pairs[j] = Fma(x.v[2 * j + 1], x.v[2 * j + 1], x.v[2 * j] * x.v[2 * j]);
    }
    return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
  }

  // One level of the tree over lanes for kCount values of each lane; each half of a pair of lanes
  // goes on with half of the values.
  template <uint32_t kDistance, uint32_t kCount>
  static QRD_DEVICE void FoldLanes(float (&v)[kRowSlots]) {
    const bool is_upper = (LaneIndex() & kDistance) != 0;
#pragma unroll
    for (uint32_t i = 0; i < kCount / 2; ++i) {
      const float sent = is_upper ? v[i] : v[i + kCount / 2];
      const float kept = is_upper ? v[i + kCount / 2] : v[i];
      v[i] = kept + Float(LaneXor<kDistance>(Bits(sent)));
    }
  }

  // The sums of squares of both rows.
  QRD_DEVICE void SumRows(const Octet<kDtype> (&x)[kRowSlots], float* first, float* second) {
    float v[kRowSlots];
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) v[s] = SlotIsUsed(s) ? SumSquares(x[s]) : 0.0f;
    FoldLanes<1, 8>(v);
    FoldLanes<2, 4>(v);
    FoldLanes<4, 2>(v);
    float sum = v[0];
    sum += Float(LaneXor<8>(Bits(sum)));
    sum += Float(LaneXor<16>(Bits(sum)));
    if constexpr (kWaveLanes == 64) sum += Float(LaneXor<kWaveLanes / 2>(Bits(sum)));
    const uint32_t lane = LaneIndex(), wave = WaveIndex();
    if (lane < kRowSlots) {
      const uint32_t slot = (lane & 1) * 4 + (lane & 2) + (lane >> 2);
      shared_.sums[set_][slot * kRowWaves + wave] = sum;
    }
    BlockBarrier();
    // 16 lanes a half: the first row's, the second's; of a wide row both.
    const float* partials = shared_.sums[set_];
    float part;
    if constexpr (kRowSlots * kRowWaves == 64) {
      part = partials[2 * (lane % 32)] + partials[2 * (lane % 32) + 1];
    } else {
      part = partials[lane % 32];
    }
    part += Float(ReducePartner<1>(Bits(part)));
    part += Float(ReducePartner<2>(Bits(part)));
    part += Float(ReducePartner<4>(Bits(part)));
    part += Float(ReducePartner<8>(Bits(part)));
    const float other = Float(LaneXor<16>(Bits(part)));
    const bool is_second = (lane & 16) != 0;
    *first = is_wide_ ? part + other : is_second ? other : part;
    *second = is_wide_ ? *first : is_second ? part : other;
  }

  QRD_DEVICE float Rstd(float sum_of_squares) const {
    const float mean = Divide(sum_of_squares, static_cast<float>(args_.hidden));
    return Reciprocal(Sqrt(mean + args_.eps));
  }

  QRD_DEVICE Floats LoadGain(uint32_t slot) const {
    const uint32_t octet = OctetOf(slot);
    const auto* weight = static_cast<const uint8_t*>(args_.weight[RankOf(slot)]);
    Floats gain;
    if (args_.weight_is_fp32) {
      const Vec16 low = Load16(weight + octet * kOctet * 4),
                  high = Load16(weight + octet * kOctet * 4 + 16);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j)
        gain.v[j] = Float(low.w[j]), gain.v[4 + j] = Float(high.w[j]);
    } else {
      const Vec16 v = Load16(weight + octet * kOctet * 2);
      gain = Widen<kDtype>(Octet<kDtype>{{v.w[0], v.w[1], v.w[2], v.w[3]}});
    }
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) gain.v[j] = gain.v[j] + args_.gain_bias;
    return gain;
  }

  QRD_DEVICE void Normalize(Octet<kDtype> (&x)[kRowSlots]) {
    float first, second;
    SumRows(x, &first, &second);
    const float first_rstd = Rstd(first), second_rstd = Rstd(second);
#pragma unroll
    for (uint32_t k = 0; k < kHalf; ++k) {
      if (!HasOctet(k)) continue;
      Floats gain = LoadGain(k);
      NormalizeSlot(k, first_rstd, gain, x[k]);
      if (!HasOctet(k + kHalf)) continue;
      if (is_wide_ || second_rank_ != first_rank_) gain = LoadGain(k + kHalf);
      NormalizeSlot(k + kHalf, second_rstd, gain, x[k + kHalf]);
    }
  }

  QRD_DEVICE void NormalizeSlot(uint32_t slot, float rstd, const Floats& gain,
                                Octet<kDtype>& x) const {
    Floats y = Widen<kDtype>(x);
#pragma unroll
    for (uint32_t j = 0; j < kOctet; ++j) y.v[j] = (y.v[j] * rstd) * gain.v[j];
    uint32_t ignored = 0;
    x = RoundOctet<kDtype>(y, &ignored);
    ForEachTarget(slot, [&](uint32_t rank) {
      void* normed = args_.normed[rank];
      if (normed != nullptr) StoreOctetKept<kDtype>(normed, ElementOf(slot), x);
    });
  }
  // Calls store(rank) for those that get the results of a slot. Owners start with different ones,
  // so that they use different links.
  template <typename StoreTo>
  QRD_DEVICE void ForEachTarget(uint32_t slot, StoreTo store) const {
    if constexpr (kToAll) {
#pragma unroll 1
      for (uint32_t i = 0, rank = first_rank_; i < args_.world_size; ++i) {
        store(rank);
        rank = rank + 1 == args_.world_size ? 0 : rank + 1;
      }
    } else {
      store(RankOf(slot));
    }
  }

  QRD_DEVICE void Quantize(uint64_t first_row, uint64_t second_row,
                           const Octet<kDtype> (&x)[kRowSlots]) {
    if (args_.quant == Quant::kNone) return;
    if (args_.scale_groups) {
      QuantizeGroups(first_row, second_row, x);
    } else {
      QuantizeRows(first_row, second_row, x);
    }
  }

  static QRD_DEVICE uint32_t MaxPair(const Octet<kDtype>& x) {
    return MaxU16x2(MaxU16x2(x.w[0] & kMagnitudes, x.w[1] & kMagnitudes),
                    MaxU16x2(x.w[2] & kMagnitudes, x.w[3] & kMagnitudes));
  }

  struct Scaling {
    float scale;
    bool is_poisoned;
  };
  // `top`: the largest magnitude as bits of the dtype.
  QRD_DEVICE Scaling ScalingOf(uint32_t top) const {
    if (top >= D::kInf16) return {Float(kPoisonedScaleBits), true};
    const float amax = kDtype == Dtype::kFp16 ? Fp16Low(top) : Float(top << 16);
    return {ScaleOf(amax, args_.divisor), false};
  }

  QRD_DEVICE void StoreCodes(uint32_t slot, const Octet<kDtype>& x, const Divider& divider,
                             bool is_poisoned) const {
    Floats y = Widen<kDtype>(x);
    divider.Divide(y);
    uint32_t low, high;
    EncodeFp8(args_.quant, y, &low, &high);
    if (is_poisoned) low = high = Fp8NanWord(args_.quant);
    ForEachTarget(
        slot, [&](uint32_t rank) { StoreOnce8(args_.out8[rank] + ElementOf(slot), low, high); });
  }

  QRD_DEVICE void QuantizeRows(uint64_t first_row, uint64_t second_row,
                               const Octet<kDtype> (&x)[kRowSlots]) {
    uint32_t first = 0, second = 0;
#pragma unroll
    for (uint32_t k = 0; k < kHalf; ++k) {
      first = MaxU16x2(first, MaxPair(x[k]));
      second = MaxU16x2(second, MaxPair(x[k + kHalf]));
    }
    uint32_t tops = WaveMaxU16x2(MaxU16x2(PackLow16(first, second), PackHigh16(first, second)));
    const uint32_t wave = WaveIndex();
    if (LaneIndex() == 0) shared_.maxima[set_][wave] = tops;
    BlockBarrier();
    tops = shared_.maxima[set_][LaneIndex() % kRowWaves];
    tops = MaxU16x2(tops, ReducePartner<1>(tops));
    tops = MaxU16x2(tops, ReducePartner<2>(tops));
    if constexpr (kRowWaves == 8) tops = MaxU16x2(tops, ReducePartner<4>(tops));
    uint32_t first_top = tops & 0xFFFF, second_top = tops >> 16;
    if (is_wide_) first_top = second_top = MaxU32(first_top, second_top);
    QuantizeHalf<0>(first_top, first_row, true, x);
    QuantizeHalf<kHalf>(second_top, second_row, has_second_, x);
  }

  template <uint32_t kFirstSlot>
  QRD_DEVICE void QuantizeHalf(uint32_t top, uint64_t row, bool has_scale,
                               const Octet<kDtype> (&x)[kRowSlots]) const {
    const Scaling scaling = ScalingOf(top);
    if (ThreadIndex() == 0 && has_scale) {
      ForEachTarget(kFirstSlot, [&](uint32_t rank) { args_.scales[rank][row] = scaling.scale; });
    }
    const Divider divider(scaling.scale);
#pragma unroll
    for (uint32_t s = kFirstSlot; s < kFirstSlot + kHalf; ++s) {
      if (HasOctet(s)) StoreCodes(s, x[s], divider, scaling.is_poisoned);
    }
  }

  QRD_DEVICE void QuantizeGroups(uint64_t first_row, uint64_t second_row,
                                 const Octet<kDtype> (&x)[kRowSlots]) const {
    constexpr uint32_t kLanes = kScaleGroup / kOctet;
    const uint32_t row_groups = (octets_ + kLanes - 1) / kLanes;
#pragma unroll
    for (uint32_t s = 0; s < kRowSlots; ++s) {
      if (!SlotIsUsed(s)) continue;
      const uint32_t pair = MaxPair(x[s]);
      const Scaling scaling = ScalingOf(GroupMaxU32<kLanes>(MaxU32(pair & 0xFFFF, pair >> 16)));
      if (!HasOctet(s)) continue;
      const uint32_t octet = OctetOf(s);
      if (octet % kLanes == 0) {
        const uint64_t row = s < kHalf || is_wide_ ? first_row : second_row;
        ForEachTarget(s, [&](uint32_t rank) {
          args_.scales[rank][row * row_groups + octet / kLanes] = scaling.scale;
        });
      }
      StoreCodes(s, x[s], Divider(scaling.scale), scaling.is_poisoned);
    }
  }

  const RmsNormArgs& args_;
  uint32_t first_rank_, second_rank_;
  const uint32_t octets_;  // of a row
  const bool is_wide_;     // a row takes more than half of the slots
  RowShared& shared_;
  uint64_t first_ = 0, second_ = 0;  // elements
  bool has_second_ = false;
  uint32_t set_ = 0;
};

}  // namespace qrd::gpu
