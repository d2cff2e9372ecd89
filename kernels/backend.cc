// SPDX-License-Identifier: Apache-2.0
// What a backend that is not enqueued answers to calls about devices.
#include "kernels/backend.h"

#include "absl/strings/str_cat.h"

namespace qrd {
namespace {

absl::Status NotEnqueued(const Backend& backend, const char* what) {
  return absl::UnimplementedError(
      absl::StrCat("the ", std::string(backend.name()), " backend has no ", what));
}

}  // namespace

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
