// SPDX-License-Identifier: Apache-2.0
// The sink of collectives (all_reduce_store-inl.h) for Epilogue::kRmsNorm, compiled once per
// instruction set: gathers reduced elements into rows and turns each complete row into the outputs
// of all ranks. Rows may begin and end anywhere in a tile.
//
// With a sharded residual a row's owner makes the results of all ranks.
//
// A row is computed once for all ranks whose residual and weight hold the same bytes, which is all
// of them in practice; comparing is cheaper than computing. Ranks that differ get their own.
//
// Thread safety: one thread a sink.

// Per-target include guard.
#if defined(QRD_KERNELS_RMS_NORM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_RMS_NORM_ROWS_INL_H_
#undef QRD_KERNELS_RMS_NORM_ROWS_INL_H_
#else
#define QRD_KERNELS_RMS_NORM_ROWS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/all_reduce_store-inl.h"
#include "kernels/backend.h"
#include "kernels/rms_norm-inl.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

template <Dtype kDtype>
class RmsNormRows {
 public:
  using T = uint16_t;
  static constexpr bool kHasOwners = true;  // of rows, if the operation says so
  static constexpr size_t kRun = kRunBytes / sizeof(T);

  // Takes elements from `first` on, the start of a row.
  RmsNormRows(const LaunchParams& params, uint64_t first)
      : params_(params),
        p_(params.rms_norm),
        row_(first / p_.hidden),
        divisor_(p_.divisor == 0 ? QuantMax(p_.quant) : p_.divisor) {
    is_sharded_ = p_.residual_layout == ResidualLayout::kSharded;
    if (is_sharded_) {
      while (row_ >= owned_.last) NextOwner();
    } else {
      FindEqualWeights();
    }
    UseWeightOf(owner_);
    // As without an epilogue, for the bytes that this one reads and writes.
    const uint64_t tensors = p_.quant == Quant::kNone ? 4 : 3;
    stream_ = params.count * sizeof(T) >= kStreamTrafficBytesMin / (tensors * params.world_size);
  }

  HWY_INLINE T* Place() { return reduced_ + filled_; }
  template <uint32_t kWorldSize>
  HWY_INLINE void TakeRun(uint64_t first, const T* run, bool more) {
    TakeFrom(first, kRun, run);
  }
  HWY_INLINE void TakeFrom(uint64_t first, size_t count, const T* from) {
    std::memcpy(Place(), from, count * sizeof(T));
    Take(first, count);
  }
  HWY_INLINE void Take(uint64_t first, size_t count) {
    filled_ += count;
    if (filled_ >= p_.hidden) FinishRows();
  }
  void Finish() {
    if (stream_) hwy::FlushStream();
  }

 private:
  // weight_of_[r]: the first rank whose weight holds the same bytes.
  void FindEqualWeights() {
    const size_t bytes = p_.hidden * DtypeBytes(p_.weight_dtype);
    for (uint32_t r = 0; r < params_.world_size; ++r) {
      weight_of_[r] = r;
      for (uint32_t other = 0; other < r && weight_of_[r] == r; ++other) {
        if (weight_of_[other] == other && Same(p_.weight[r], p_.weight[other], bytes)) {
          weight_of_[r] = other;
        }
      }
    }
  }
  void UseWeightOf(uint32_t rank) {
    MakeGainsOf(p_.weight_dtype, p_.weight[rank], p_.hidden, p_.gemma, s_.gain);
    gain_of_ = rank;
  }
  static bool Same(const void* a, const void* b, size_t bytes) {
    return a == b || std::memcmp(a, b, bytes) == 0;
  }

  HWY_NOINLINE void FinishRows() {
    size_t at = 0;
    for (; filled_ - at >= p_.hidden; at += p_.hidden) FinishRow(reduced_ + at);
    filled_ -= at;
    std::memmove(reduced_, reduced_ + at, filled_ * sizeof(T));
  }

  void NextOwner() { owned_ = OwnedRows(p_.tokens, params_.world_size, ++owner_); }

  void FinishRow(const T* a) {
    if (is_sharded_) return FinishOwnedRow(a);
    uint32_t pending = (1u << params_.world_size) - 1;
    while (pending != 0) {
      const auto leader = static_cast<uint32_t>(std::countr_zero(pending));
      // Found before anything is written: residual_out may be residual.
      const uint32_t alike = pending & RanksLike(leader);
      if (gain_of_ != weight_of_[leader]) UseWeightOf(weight_of_[leader]);
      Compute(a, ResidualRow(leader));
      for (uint32_t r = leader; r < params_.world_size; ++r) {
        if ((alike >> r & 1) != 0) Store(r);
      }
      pending &= ~alike;
    }
    ++row_;
  }

  // The owner does it, and every rank gets what the consumers read.
  void FinishOwnedRow(const T* a) {
    while (row_ >= owned_.last) NextOwner();
    if (gain_of_ != owner_) UseWeightOf(owner_);
    const uint64_t at = (row_ - owned_.first) * p_.hidden;
    const auto* residual = static_cast<const T*>(p_.residual[owner_]);
    Compute(a, residual != nullptr ? residual + at : nullptr);
    StoreRow(s_.h, static_cast<T*>(p_.residual_out[owner_]) + at,
             p_.residual[owner_] == p_.residual_out[owner_]);
    for (uint32_t r = 0; r < params_.world_size; ++r) StoreNormed(r);
    ++row_;
  }

  const T* ResidualRow(uint32_t rank) const {
    const auto* residual = static_cast<const T*>(p_.residual[rank]);
    return residual != nullptr ? residual + row_ * p_.hidden : nullptr;
  }
  // Ranks from `leader` on with its weight and its residual in this row, as a mask.
  uint32_t RanksLike(uint32_t leader) const {
    uint32_t mask = 1u << leader;
    for (uint32_t r = leader + 1; r < params_.world_size; ++r) {
      if (weight_of_[r] == weight_of_[leader] &&
          Same(ResidualRow(r), ResidualRow(leader), p_.hidden * sizeof(T))) {
        mask |= 1u << r;
      }
    }
    return mask;
  }

  void Compute(const T* a, const T* residual) {
    AddRow<kDtype>(a, residual, p_.hidden, s_.h);
    const float sum_of_squares = SumOfSquares<kDtype>(s_.h, p_.hidden, s_.partial);
    NormalizeRow<kDtype>(s_.h, Rstd(sum_of_squares, p_.hidden, p_.eps), s_.gain, p_.hidden, s_.y);
    if (p_.quant != Quant::kNone) {
      QuantizeRow<kDtype>(p_.quant, p_.hidden, p_.scale_group, divisor_, s_);
    }
  }

  void Store(uint32_t r) const {
    const uint64_t first = row_ * p_.hidden;
    StoreRow(s_.h, static_cast<T*>(p_.residual_out[r]) + first,
             p_.residual[r] == p_.residual_out[r]);
    StoreNormed(r);
  }
  void StoreNormed(uint32_t r) const {
    const uint64_t first = row_ * p_.hidden;
    void* const y = p_.quant == Quant::kNone ? p_.out[r] : p_.mirror[r];
    if (y != nullptr) StoreRow(s_.y, static_cast<T*>(y) + first, y == params_.inputs[r]);
    if (p_.quant == Quant::kNone) return;
    StoreBlock(reinterpret_cast<std::byte*>(p_.out8[r] + first),
               reinterpret_cast<const std::byte*>(s_.codes), p_.hidden, stream_);
    const size_t groups =
        p_.scale_group == 0 ? 1 : (p_.hidden + p_.scale_group - 1) / p_.scale_group;
    std::memcpy(p_.scales[r] + row_ * groups, s_.scales, groups * sizeof(float));
  }
  void StoreRow(const T* row, T* to, bool in_place) const {
    StoreBlock(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(row),
               p_.hidden * sizeof(T), stream_ && !in_place);
  }

  // The rest of a row, then at most a tile and what vectors write past it.
  alignas(kLineBytes) T reduced_[kHiddenMax + kTileElements + kRun];
  RowScratch s_;
  const LaunchParams& params_;
  const RmsNormParams& p_;
  uint64_t row_;
  size_t filled_ = 0;
  uint32_t weight_of_[kWorldSizeMax];
  uint32_t gain_of_ = 0;
  bool is_sharded_ = false;
  uint32_t owner_ = 0;  // sharded: of row_
  RowRange owned_ = OwnedRows(p_.tokens, params_.world_size, 0);
  float divisor_;
  bool stream_ = false;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
