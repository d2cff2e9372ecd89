// SPDX-License-Identifier: Apache-2.0
#include "kernels/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/backend.h"
#include "kernels/codec_kernels.h"
#include "kernels/float_environment.h"
#include "kernels/simd_targets.h"
#include "kernels/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/all_reduce.cc"  // NOLINT: this file, once per instruction set
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/all_reduce-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// The elements of one tile.
struct Block {
  uint64_t first;
  size_t count;
};

// Calls fn(Block) for every tile of the range.
template <typename Fn>
HWY_INLINE void ForEachTile(uint64_t count, TileRange range, const Fn& fn) {
  for (uint64_t tile = range.first; tile < range.last; ++tile) {
    const uint64_t first = tile * kTileElements;
    fn(Block{.first = first, .count = static_cast<size_t>(std::min(kTileElements, count - first))});
  }
}

// Results of large operations go past the caches, except in place (the lines are there already) and
// where an output does not start at a cache line (tiles are whole lines, so all its tiles are
// alike).
StoreMode StoreModeOf(const LaunchParams& params) {
  const uint64_t bytes = params.count * DtypeBytes(params.dtype);
  StoreMode mode;
  if (bytes < kStreamTrafficBytesMin / (2 * params.world_size)) return mode;
  mode.prefetch = true;
  for (uint32_t r = 0; r < params.world_size; ++r) {
    const bool aligned = reinterpret_cast<uintptr_t>(params.outputs[r]) % kLineBytes == 0;
    if (aligned && params.outputs[r] != params.inputs[r]) mode.stream_mask |= 1u << r;
  }
  return mode;
}

// Orders streaming stores before whatever the caller publishes next.
void Finish(const StoreMode& mode) {
  if (mode.stream_mask != 0) hwy::FlushStream();
}

// World size 1: the output is the input, bit for bit.
template <Dtype kDtype>
uint64_t CopyTiles(const LaunchParams& params, TileRange range) {
  using T = StorageOf<kDtype>;
  const StoreMode mode = StoreModeOf(params);
  uint64_t nonfinite = 0;
  ForEachTile(params.count, range, [&](const Block& block) {
    const T* x = static_cast<const T*>(params.inputs[0]) + block.first;
    T* y = static_cast<T*>(params.outputs[0]) + block.first;
    nonfinite += CountNonFinite<kDtype>(x, block.count);
    if (x != y) {
      StoreBlock(reinterpret_cast<std::byte*>(y), reinterpret_cast<const std::byte*>(x),
                 block.count * sizeof(T), mode.stream_mask != 0);
    }
  });
  Finish(mode);
  return nonfinite;
}

// Codec none: one_shot and two_shot give the same bits.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg>
uint64_t SumTiles(const LaunchParams& params, TileRange range) {
  using T = StorageOf<kDtype>;
  const StoreMode mode = StoreModeOf(params);
  uint64_t nonfinite = 0;
  ForEachTile(params.count, range, [&](const Block& block) {
    const T* inputs[kWorldSizeMax] = {};
    T* outputs[kWorldSizeMax] = {};
    for (uint32_t r = 0; r < params.world_size; ++r) {
      inputs[r] = static_cast<const T*>(params.inputs[r]) + block.first;
      outputs[r] = static_cast<T*>(params.outputs[r]) + block.first;
    }
    nonfinite +=
        SumTile<kDtype, kWorldSize, kAvg>(inputs, outputs, params.world_size, block.count, mode);
  });
  Finish(mode);
  return nonfinite;
}

template <Dtype kDtype, bool kAvg>
uint64_t SumTilesOfWorld(const LaunchParams& params, TileRange range) {
  switch (params.world_size) {
    case 2:
      return SumTiles<kDtype, 2, kAvg>(params, range);
    case 4:
      return SumTiles<kDtype, 4, kAvg>(params, range);
    case 8:
      return SumTiles<kDtype, 8, kAvg>(params, range);
    default:
      return SumTiles<kDtype, 0, kAvg>(params, range);
  }
}

// What one tile needs, on the stack of the thread that runs it.
struct Scratch {
  alignas(64) float acc[kTileElements];
  alignas(64) float part[kTileElements];
  alignas(64) std::byte result[kTileElements * sizeof(float)];  // elements of the dtype
};

// Tile -> owner, for tiles that are asked for in ascending order.
class OwnerCursor {
 public:
  OwnerCursor(uint64_t count, uint32_t world_size) : count_(count), world_size_(world_size) {}
  uint32_t Owner(uint64_t tile) {
    while (tile >= owned_.last) owned_ = OwnedTiles(count_, world_size_, ++owner_);
    return owner_;
  }

 private:
  uint64_t count_;
  uint32_t world_size_;
  uint32_t owner_ = 0;
  TileRange owned_ = OwnedTiles(count_, world_size_, 0);
};

// acc = the contributions of all ranks in rank order; that of `exact_rank` is never encoded.
template <Dtype kDtype>
void Accumulate(const LaunchParams& params, const Block& block, const CodecKernels& codec,
                uint32_t exact_rank, Scratch& s) {
  using T = StorageOf<kDtype>;
  for (uint32_t r = 0; r < params.world_size; ++r) {
    const T* x = static_cast<const T*>(params.inputs[r]) + block.first;
    float* const to = r == 0 ? s.acc : s.part;
    WidenBlock<kDtype>(x, block.count, to);
    if (r != exact_rank) codec.round_trip_tile(kDtype, to, static_cast<uint32_t>(block.count), to);
    if (r != 0) AddTo(s.acc, s.part, block.count);
  }
  if (params.op == ReduceOp::kAvg) {
    DivideBy(static_cast<float>(params.world_size), s.acc, block.count);
  }
}

template <Algorithm kAlgorithm, Codec kCodec, Dtype kDtype>
uint64_t CodedTiles(const LaunchParams& params, TileRange range) {
  using T = StorageOf<kDtype>;
  const StoreMode mode = StoreModeOf(params);
  const CodecKernels& codec = KernelsFor(kCodec);
  Scratch s;
  OwnerCursor owners(params.count, params.world_size);
  uint64_t nonfinite = 0;
  ForEachTile(params.count, range, [&](const Block& block) {
    if constexpr (kAlgorithm == Algorithm::kTwoShot) {
      Accumulate<kDtype>(params, block, codec, owners.Owner(block.first / kTileElements), s);
      codec.round_trip_tile(kDtype, s.acc, static_cast<uint32_t>(block.count), s.acc);
    } else {
      Accumulate<kDtype>(params, block, codec, kWorldSizeMax, s);
    }
    nonfinite += RoundBlock<kDtype>(s.acc, block.count, reinterpret_cast<T*>(s.result));
    for (uint32_t r = 0; r < params.world_size; ++r) {
      StoreBlock(reinterpret_cast<std::byte*>(static_cast<T*>(params.outputs[r]) + block.first),
                 s.result, block.count * sizeof(T), (mode.stream_mask >> r & 1) != 0);
    }
  });
  Finish(mode);
  return nonfinite;
}

template <Algorithm kAlgorithm, Codec kCodec, Dtype kDtype>
uint64_t RunInstance(const LaunchParams& params, TileRange range) {
  if (params.world_size == 1) return CopyTiles<kDtype>(params, range);
  if constexpr (kCodec == Codec::kNone) {
    return params.op == ReduceOp::kAvg ? SumTilesOfWorld<kDtype, true>(params, range)
                                       : SumTilesOfWorld<kDtype, false>(params, range);
  } else {
    return CodedTiles<kAlgorithm, kCodec, kDtype>(params, range);
  }
}

using RunFn = uint64_t (*)(const LaunchParams&, TileRange);
constexpr size_t kDtypes = 4, kAlgorithms = 3;  // their numbers start at 1
constexpr size_t TableIndex(Algorithm algorithm, Codec codec, Dtype dtype) {
  return (static_cast<size_t>(algorithm) * kCodecCount + static_cast<size_t>(codec)) * kDtypes +
         static_cast<size_t>(dtype);
}

uint64_t RunTiles(const LaunchParams& params, TileRange range) {
  static constexpr auto kTable = [] {
    std::array<RunFn, kAlgorithms * kCodecCount * kDtypes> table{};
#define QRD_INSTANCE(algorithm, codec, dtype, world_size_min, world_size_max) \
  table[TableIndex(Algorithm::algorithm, Codec::codec, Dtype::dtype)] =       \
      &RunInstance<Algorithm::algorithm, Codec::codec, Dtype::dtype>;
#include "kernels/instances.def"
#undef QRD_INSTANCE
    return table;
  }();
  return kTable[TableIndex(params.algorithm, params.codec, params.dtype)](params, range);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qrd {

HWY_EXPORT(RunTiles);

bool HasAllReduce(Algorithm algorithm, Codec codec, Dtype dtype, uint32_t world_size) {
  return std::ranges::any_of(AllInstances(), [&](const KernelInstance& instance) {
    return instance.algorithm == algorithm && instance.codec == codec && instance.dtype == dtype &&
           instance.world_size_min <= world_size && world_size <= instance.world_size_max;
  });
}

uint64_t AllReduceTiles(const LaunchParams& params, TileRange range) {
  // Going on without a kernel would leave outputs unwritten: Validate must have been called.
  if (!HasAllReduce(params.algorithm, params.codec, params.dtype, params.world_size)) std::abort();
  const ScopedFloatEnvironment float_environment;
  return HWY_DYNAMIC_DISPATCH(RunTiles)(params, range);
}

}  // namespace qrd
#endif  // HWY_ONCE
