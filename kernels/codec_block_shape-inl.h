// SPDX-License-Identifier: Apache-2.0
// What encode and decode of the int and fp codecs share.
//
// Thread safety: pure functions.

// Per-target include guard.
#if defined(QRD_KERNELS_CODEC_BLOCK_SHAPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QRD_KERNELS_CODEC_BLOCK_SHAPE_INL_H_
#undef QRD_KERNELS_CODEC_BLOCK_SHAPE_INL_H_
#else
#define QRD_KERNELS_CODEC_BLOCK_SHAPE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/codec_tiles.h"
#include "kernels/codec_vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {

inline constexpr uint32_t kBlockElements = 32;
inline constexpr uint32_t kOctetsPerBlock = kBlockElements / kOctet;
inline constexpr uint32_t kBlocksPerTile = kTileElements / kBlockElements;
// Elements that ChooseScales() takes at once: one block a vector lane.
inline constexpr uint32_t kBlockBatch = kLanes * kBlockElements;
static_assert(kTileElements % kBlockBatch == 0 && kBlockBatch % kUnitElements == 0);

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
