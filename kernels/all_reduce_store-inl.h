// SPDX-License-Identifier: Apache-2.0
// Where results of a collective go, compiled once per instruction set (Highway's foreach_target):
// copies to every rank's output, past the caches if that is faster.
//
// A sink takes the elements of a collective in ascending order:
//   TakeRun<kWorldSize>(first, run, more)  kRun elements from `first` on, in a buffer of the
//   caller;
//                       kWorldSize 0: known at run time; more: the run after it is complete too
//   Place()             room for the next kTileElements elements and a run; results are made there
//   Take(first, count)  count of them are there, at most kTileElements
//   TakeFrom(first, count, from)  results that lie elsewhere, maybe in the output itself
//   Finish()            all of the range were taken
// By then every rank's input has been read at these elements, so outputs may take its memory.
//
// Thread safety: one thread a sink.

// Per-target include guard.
#if defined(QRD_KERNELS_ALL_REDUCE_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_ALL_REDUCE_STORE_INL_H_
#undef QRD_KERNELS_ALL_REDUCE_STORE_INL_H_
#else
#define QRD_KERNELS_ALL_REDUCE_STORE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/all_reduce.h"
#include "kernels/all_reduce_vector-inl.h"
#include "kernels/backend.h"
#include "kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Results are made and written in runs of this many bytes: long enough for few switches between
// many streams, short enough for reads and writes to overlap (kernels/README.md has the
// measurement).
constexpr size_t kRunBytes = 256;
constexpr size_t kLineBytes = 64;

// kRunBytes from an aligned buffer to an output; `next` is an input of the same rank.
HWY_INLINE void StoreRun(std::byte* HWY_RESTRICT to, const std::byte* HWY_RESTRICT from,
                         bool stream, bool prefetch, const std::byte* HWY_RESTRICT next) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  if (prefetch) {
    for (size_t at = 0; at < kRunBytes; at += kLineBytes) hwy::Prefetch(next + at);
  }
  const auto* source = reinterpret_cast<const uint8_t*>(from);
  auto* target = reinterpret_cast<uint8_t*>(to);
  if (stream) {
    for (size_t at = 0; at < kRunBytes; at += lanes) {
      hn::Stream(hn::LoadU(d, source + at), d, target + at);
    }
  } else {
    for (size_t at = 0; at < kRunBytes; at += lanes) {
      hn::StoreU(hn::LoadU(d, source + at), d, target + at);
    }
  }
}

// Copies a result of any size to an output at any address.
HWY_NOINLINE void StoreBlock(std::byte* HWY_RESTRICT to, const std::byte* HWY_RESTRICT from,
                             size_t bytes, bool stream) {
  size_t at = 0;
  if (stream) {
    const size_t past_line = reinterpret_cast<uintptr_t>(to) % kLineBytes;
    if (past_line != 0) at = std::min(kLineBytes - past_line, bytes);
    std::memcpy(to, from, at);
    for (; at + kRunBytes <= bytes; at += kRunBytes) {
      StoreRun(to + at, from + at, true, false, nullptr);
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
}

// The sink without an epilogue: the result is every rank's output.
template <Dtype kDtype>
class StoreOutputs {
 public:
  using T = StorageOf<kDtype>;
  static constexpr bool kHasOwners = false;
  static constexpr size_t kRun = kRunBytes / sizeof(T);

  // Results of large operations go past the caches, except in place (the lines are there already)
  // and where an output does not start at a cache line (tiles are whole lines, so all its tiles are
  // alike). What is read next is then fetched while results are written, so that both overlap.
  explicit StoreOutputs(const LaunchParams& params) : world_size_(params.world_size) {
    const uint64_t bytes = params.count * sizeof(T);
    prefetch_ = bytes >= kStreamTrafficBytesMin / (2 * world_size_);
    for (uint32_t r = 0; r < world_size_; ++r) {
      inputs_[r] = static_cast<const T*>(params.inputs[r]);
      outputs_[r] = static_cast<T*>(params.outputs[r]);
      const bool aligned = reinterpret_cast<uintptr_t>(outputs_[r]) % kLineBytes == 0;
      if (prefetch_ && aligned && outputs_[r] != inputs_[r]) stream_mask_ |= 1u << r;
    }
  }

  HWY_INLINE T* Place() { return result_; }

  template <uint32_t kWorldSize>
  HWY_INLINE void TakeRun(uint64_t first, const T* run, bool more) {
    // Copies: the stores below might change members, for all that the compiler knows.
    const uint32_t n = kWorldSize != 0 ? kWorldSize : world_size_, stream_mask = stream_mask_;
    const bool prefetch = prefetch_ && more;
    for (uint32_t r = 0; r < n; ++r) {
      StoreRun(reinterpret_cast<std::byte*>(outputs_[r] + first),
               reinterpret_cast<const std::byte*>(run), (stream_mask >> r & 1) != 0, prefetch,
               reinterpret_cast<const std::byte*>(inputs_[r] + first + kRun));
    }
  }

  void Take(uint64_t first, size_t count) { TakeFrom(first, count, result_); }

  void TakeFrom(uint64_t first, size_t count, const T* from) {
    for (uint32_t r = 0; r < world_size_; ++r) {
      if (outputs_[r] + first == from) continue;
      StoreBlock(reinterpret_cast<std::byte*>(outputs_[r] + first),
                 reinterpret_cast<const std::byte*>(from), count * sizeof(T),
                 (stream_mask_ >> r & 1) != 0);
    }
  }

  // Orders streaming stores before whatever the caller publishes next.
  void Finish() {
    if (stream_mask_ != 0) hwy::FlushStream();
  }

 private:
  alignas(kLineBytes) T result_[kTileElements + kRun];
  const T* inputs_[kWorldSizeMax];
  T* outputs_[kWorldSizeMax];
  uint32_t world_size_;
  uint32_t stream_mask_ = 0;  // bit r: rank r's output is written past the caches
  bool prefetch_ = false;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
