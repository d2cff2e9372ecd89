// SPDX-License-Identifier: Apache-2.0
// What a backend that is not enqueued answers to calls about devices.
#include "kernels/backend.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd {
namespace {

absl::Status NotEnqueued(const Backend& backend, const char* what) {
  return absl::UnimplementedError(
      absl::StrCat("the ", std::string(backend.name()), " backend has no ", what));
}

// What a row's owner sends to another rank: what its consumers read.
uint64_t RowBytes(const LaunchParams& p) {
  const RmsNormParams& n = p.rms_norm;
  const uint64_t element_bytes = DtypeBytes(p.dtype);
  if (n.quant == Quant::kNone) return n.hidden * element_bytes;
  const uint64_t scales =
      n.scale_group == 0 ? 1 : (n.hidden + uint64_t{n.scale_group} - 1) / n.scale_group;
  return n.hidden + scales * sizeof(float) +
         (n.mirror[0] != nullptr ? n.hidden * element_bytes : 0);
}

uint64_t ShardedBytesSent(const LaunchParams& p, uint32_t rank) {
  uint64_t bytes = 0;
  for (uint32_t owner = 0; owner < p.world_size; ++owner) {
    const RowRange rows = OwnedRows(p.rms_norm.tokens, p.world_size, owner);
    if (owner == rank) {
      bytes += (p.world_size - 1) * (rows.last - rows.first) * RowBytes(p);
    } else if (p.codec == Codec::kNone) {  // the owner reads them where they are
      bytes += (rows.last - rows.first) * p.rms_norm.hidden * DtypeBytes(p.dtype);
    } else if (rows.first != rows.last) {
      const uint64_t first = rows.first * p.rms_norm.hidden / kTileElements * kTileElements;
      const uint64_t last = TileCount(rows.last * p.rms_norm.hidden) * kTileElements;
      bytes += EncodedBytes(p.codec, p.dtype, std::min(last, p.count) - first);
    }
  }
  return bytes;
}

}  // namespace

uint64_t WireBytesSent(const LaunchParams& params, uint32_t rank) {
  if (params.epilogue == Epilogue::kRmsNorm && params.world_size > 1 &&
      params.rms_norm.residual_layout == ResidualLayout::kSharded) {
    return ShardedBytesSent(params, rank);
  }
  return WireBytesSent(params.codec, params.algorithm, params.dtype, params.world_size, rank,
                       params.count);
}

absl::StatusOr<std::string> Backend::FindDevice(std::string_view) const {
  return NotEnqueued(*this, "devices to choose from");
}

absl::StatusOr<std::unique_ptr<DeviceGroup>> Backend::PlaceGroup(std::string_view,
                                                                 std::span<const std::string>) {
  return NotEnqueued(*this, "devices to place a group on");
}

absl::StatusOr<std::unique_ptr<Arena>> Backend::AllocateDeviceArena(std::string_view, uint64_t) {
  return NotEnqueued(*this, "device memory");
}

absl::StatusOr<std::unique_ptr<Arena>> Backend::ImportArena(std::string_view, std::string_view,
                                                            uint64_t, uint64_t) {
  return NotEnqueued(*this, "import of device memory");
}

absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> Backend::MakeDeviceVisible(void*, uint64_t) {
  return NotEnqueued(*this, "device to show host memory to");
}

absl::StatusOr<std::string> Backend::collective_library() const {
  return NotEnqueued(*this, "collective library");
}

absl::Status Backend::RunCodec(std::string_view, const CodecParams&) {
  return NotEnqueued(*this, "codecs on a device");
}

}  // namespace qrd
