// SPDX-License-Identifier: Apache-2.0
#include "kernels/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "kernels/backend.h"
#include "kernels/codec_kernels.h"
#include "kernels/float_environment.h"
#include "kernels/simd_targets.h"
#include "kernels/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/all_reduce.cc"  // NOLINT: this file, once per instruction set
#include "hwy/foreach_target.h"                     // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/all_reduce-inl.h"
#include "kernels/all_reduce_store-inl.h"
#include "kernels/rms_norm_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

// Elements of one tile, or the part of them that a range has.
struct Block {
  uint64_t first;
  size_t count;
};

// Calls fn(Block) for the tiles that the elements [first, last) touch, in ascending order.
template <typename Fn>
HWY_INLINE void ForEachBlock(Elements range, const Fn& fn) {
  for (uint64_t first = range.first; first < range.last;) {
    const uint64_t in_tile = kTileElements - first % kTileElements;
    const auto count = static_cast<size_t>(std::min(in_tile, range.last - first));
    fn(Block{.first = first, .count = count});
    first += count;
  }
}

// World size 1: the result is the input, bit for bit.
template <Dtype kDtype, typename Sink>
uint64_t Copy(const LaunchParams& params, Elements range, Sink& sink) {
  const auto* input = static_cast<const StorageOf<kDtype>*>(params.inputs[0]);
  uint64_t nonfinite = 0;
  ForEachBlock(range, [&](const Block& block) HWY_ATTR {
    nonfinite += CountNonFinite<kDtype>(input + block.first, block.count);
    sink.TakeFrom(block.first, block.count, input + block.first);
  });
  return nonfinite;
}

// Codec none: one_shot and two_shot give the same bits.
template <Dtype kDtype, uint32_t kWorldSize, bool kAvg, typename Sink>
uint64_t Sum(const LaunchParams& params, Elements range, Sink& sink) {
  using T = StorageOf<kDtype>;
  const T* inputs[kWorldSizeMax] = {};
  for (uint32_t r = 0; r < params.world_size; ++r) {
    inputs[r] = static_cast<const T*>(params.inputs[r]);
  }
  uint64_t nonfinite = 0;
  ForEachBlock(range, [&](const Block& block) HWY_ATTR {
    nonfinite += SumBlock<kDtype, kWorldSize, kAvg>(inputs, params.world_size, block.first,
                                                    block.count, sink);
  });
  return nonfinite;
}

template <Dtype kDtype, bool kAvg, typename Sink>
uint64_t SumOfWorld(const LaunchParams& params, Elements range, Sink& sink) {
  switch (params.world_size) {
    case 2:
      return Sum<kDtype, 2, kAvg>(params, range, sink);
    case 4:
      return Sum<kDtype, 4, kAvg>(params, range, sink);
    case 8:
      return Sum<kDtype, 8, kAvg>(params, range, sink);
    default:
      return Sum<kDtype, 0, kAvg>(params, range, sink);
  }
}

// What one tile needs, on the stack of the thread that runs it.
struct Scratch {
  alignas(64) float acc[kTileElements];
  alignas(64) float part[kTileElements];
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

// Element -> owner of its row (ResidualLayout::kSharded), asked for in ascending order.
class OwnedRowCursor {
 public:
  explicit OwnedRowCursor(const LaunchParams& params) : params_(params) {}
  uint32_t Owner(uint64_t element) {
    while (element >= End()) ++owner_;
    return owner_;
  }
  // Of the last answer: the first element that is another owner's.
  uint64_t End() const {
    const RmsNormParams& p = params_.rms_norm;
    return OwnedRows(p.tokens, params_.world_size, owner_).last * p.hidden;
  }

 private:
  const LaunchParams& params_;
  uint32_t owner_ = 0;
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

// Blocks may begin at any boundary of a codec group: groups do not depend on each other.
template <Algorithm kAlgorithm, Dtype kDtype, typename Sink>
uint64_t CodedSum(const LaunchParams& params, Elements range, Sink& sink) {
  const CodecKernels& codec = KernelsFor(params.codec);
  Scratch s;
  OwnerCursor owners(params.count, params.world_size);
  uint64_t nonfinite = 0;
  ForEachBlock(range, [&](const Block& block) HWY_ATTR {
    if constexpr (kAlgorithm == Algorithm::kTwoShot) {
      Accumulate<kDtype>(params, block, codec, owners.Owner(block.first / kTileElements), s);
      codec.round_trip_tile(kDtype, s.acc, static_cast<uint32_t>(block.count), s.acc);
    } else {
      Accumulate<kDtype>(params, block, codec, kWorldSizeMax, s);
    }
    nonfinite += RoundBlock<kDtype>(s.acc, block.count, sink.Place());
    sink.Take(block.first, block.count);
  });
  return nonfinite;
}

// Sharded rows: each element's sum is that of its row's owner. A block has rows of several owners
// where they meet, and is then summed for each.
template <Dtype kDtype, typename Sink>
uint64_t CodedSumOfOwners(const LaunchParams& params, Elements range, Sink& sink) {
  using T = StorageOf<kDtype>;
  const CodecKernels& codec = KernelsFor(params.codec);
  Scratch s;
  alignas(64) T sums[kTileElements];
  OwnedRowCursor owners(params);
  uint64_t nonfinite = 0;
  ForEachBlock(range, [&](const Block& block) HWY_ATTR {
    for (size_t at = 0; at < block.count;) {
      const uint32_t owner = owners.Owner(block.first + at);
      const size_t end = std::min<uint64_t>(owners.End() - block.first, block.count);
      Accumulate<kDtype>(params, block, codec, owner, s);
      if (at == 0 && end == block.count) {  // one owner's, as almost all are
        nonfinite += RoundBlock<kDtype>(s.acc, block.count, sink.Place());
        sink.Take(block.first, block.count);
        return;
      }
      RoundBlock<kDtype>(s.acc, block.count, sums);
      std::memcpy(sink.Place() + at, sums + at, (end - at) * sizeof(T));
      at = end;
    }
    nonfinite += CountNonFinite<kDtype>(sink.Place(), block.count);
    sink.Take(block.first, block.count);
  });
  return nonfinite;
}

template <typename Sink>
bool IsSharded(const LaunchParams& params) {
  return Sink::kHasOwners && params.rms_norm.residual_layout == ResidualLayout::kSharded;
}

template <Algorithm kAlgorithm, Codec kCodec, Dtype kDtype, typename Sink>
uint64_t RunInto(const LaunchParams& params, Elements range, Sink& sink) {
  uint64_t nonfinite = 0;
  if (params.world_size == 1) {
    nonfinite = Copy<kDtype>(params, range, sink);
  } else if constexpr (kCodec == Codec::kNone) {
    nonfinite = params.op == ReduceOp::kAvg ? SumOfWorld<kDtype, true>(params, range, sink)
                                            : SumOfWorld<kDtype, false>(params, range, sink);
  } else if (IsSharded<Sink>(params)) {
    if constexpr (Sink::kHasOwners) nonfinite = CodedSumOfOwners<kDtype>(params, range, sink);
  } else {
    nonfinite = CodedSum<kAlgorithm, kDtype>(params, range, sink);
  }
  sink.Finish();
  return nonfinite;
}

template <Algorithm kAlgorithm, Codec kCodec, Dtype kDtype, Epilogue kEpilogue>
uint64_t RunInstance(const LaunchParams& params, Elements range) {
  if constexpr (kEpilogue == Epilogue::kRmsNorm) {
    RmsNormRows<kDtype> sink(params, range.first);
    return RunInto<kAlgorithm, kCodec, kDtype>(params, range, sink);
  } else {
    StoreOutputs<kDtype> sink(params);
    return RunInto<kAlgorithm, kCodec, kDtype>(params, range, sink);
  }
}

using RunFn = uint64_t (*)(const LaunchParams&, Elements);
constexpr size_t kDtypes = 4, kAlgorithms = 3;  // their numbers start at 1
constexpr size_t kEpilogues = 2;
constexpr size_t TableIndex(Algorithm algorithm, Codec codec, Dtype dtype, Epilogue epilogue) {
  return ((static_cast<size_t>(algorithm) * kCodecCount + static_cast<size_t>(codec)) * kDtypes +
          static_cast<size_t>(dtype)) *
             kEpilogues +
         static_cast<size_t>(epilogue);
}

uint64_t RunElements(const LaunchParams& params, Elements range) {
  static constexpr auto kTable = [] {
    std::array<RunFn, kAlgorithms * kCodecCount * kDtypes * kEpilogues> table{};
#define QRD_INSTANCE_WITH(algorithm, codec, dtype, epilogue)                      \
  table[TableIndex(Algorithm::algorithm, Codec::codec, Dtype::dtype, epilogue)] = \
      &RunInstance<Algorithm::algorithm, Codec::codec, Dtype::dtype, epilogue>;
#define QRD_INSTANCE(algorithm, codec, dtype, world_size_min, world_size_max, epilogue) \
  QRD_INSTANCE_WITH(algorithm, codec, dtype, Epilogue::kNone)                           \
  QRD_INSTANCE_WITH(algorithm, codec, dtype, Epilogue::epilogue)
#include "kernels/instances.def"
#undef QRD_INSTANCE
#undef QRD_INSTANCE_WITH
    return table;
  }();
  return kTable[TableIndex(params.algorithm, params.codec, params.dtype, params.epilogue)](params,
                                                                                           range);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qrd {

HWY_EXPORT(RunElements);

bool HasAllReduce(Algorithm algorithm, Codec codec, Dtype dtype, uint32_t world_size,
                  Epilogue epilogue) {
  return std::ranges::any_of(AllInstances(), [&](const KernelInstance& instance) {
    return instance.algorithm == algorithm && instance.codec == codec && instance.dtype == dtype &&
           instance.world_size_min <= world_size && world_size <= instance.world_size_max &&
           (epilogue == Epilogue::kNone || epilogue == instance.epilogue);
  });
}

uint64_t AllReduceUnitElements(const LaunchParams& params) {
  if (params.epilogue == Epilogue::kNone) return kTileElements;
  const uint64_t hidden = params.rms_norm.hidden;
  // The fewest rows that end where a codec group ends, then as many of these as make a tile.
  const uint64_t group =
      params.world_size == 1 ? 1 : ShapeOf(params.codec, params.dtype).group_elements;
  const uint64_t step = hidden / std::gcd(hidden, group) * group;
  return (kTileElements + step - 1) / step * step;
}

uint64_t AllReduceUnits(const LaunchParams& params) {
  const uint64_t unit = AllReduceUnitElements(params);
  return params.count / unit + (params.count % unit != 0);
}

uint64_t AllReduceRange(const LaunchParams& params, TileRange range) {
  // Going on without a kernel would leave outputs unwritten: Validate must have been called.
  if (!HasAllReduce(params.algorithm, params.codec, params.dtype, params.world_size,
                    params.epilogue)) {
    std::abort();
  }
  if (range.first >= range.last) return 0;
  const ScopedFloatEnvironment float_environment;
  const uint64_t unit = AllReduceUnitElements(params);
  // Compared as units: the end of the last one may lie past what 64 bits hold.
  const uint64_t last = range.last > params.count / unit ? params.count : range.last * unit;
  return HWY_DYNAMIC_DISPATCH(RunElements)(params, {range.first * unit, last});
}

}  // namespace qrd
#endif  // HWY_ONCE
