// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/devices.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

constexpr int kPciAddressBytes = 32;

absl::StatusOr<Device> Describe(int ordinal) {
  Device device;
  device.ordinal = ordinal;
  unsigned char uuid[16];
  QRD_RETURN_IF_RUNTIME_ERROR(DeviceUuid(ordinal, uuid));
  device.uuid = FormatUuid(uuid);
  char pci[kPciAddressBytes] = {};
  QRD_RETURN_IF_RUNTIME_ERROR(hipDeviceGetPCIBusId(pci, kPciAddressBytes, ordinal));
  device.pci_address = absl::AsciiStrToLower(pci);
  hipDeviceProp_t properties;
  QRD_RETURN_IF_RUNTIME_ERROR(hipGetDeviceProperties(&properties, ordinal));
  device.info.id = device.uuid;
  device.info.description = absl::StrCat(properties.name, " (", device.pci_address, ")");
  device.info.memory_bytes = properties.totalGlobalMem;
  return device;
}

}  // namespace

std::string FormatUuid(const unsigned char bytes[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", bytes[i]);
    text += hex;
  }
  return text;
}

absl::StatusOr<Devices> Devices::Find() {
  int count = 0;
  if (const hipError_t error = hipGetDeviceCount(&count); error != hipSuccess || count == 0) {
    (void)hipGetLastError();
    return absl::NotFoundError(absl::StrCat("no GPU: ", error == hipSuccess
                                                            ? "the runtime finds no device"
                                                            : hipGetErrorString(error)));
  }
  Devices devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    absl::StatusOr<Device> device = Describe(ordinal);
    if (!device.ok()) return device.status();
    devices.devices_.push_back(*std::move(device));
  }
  return devices;
}

absl::StatusOr<const Device*> Devices::Get(std::string_view name) const {
  const std::string lower = absl::AsciiStrToLower(std::string(name));
  const auto found = std::ranges::find_if(devices_, [&](const Device& device) {
    return name == device.uuid || lower == device.pci_address;
  });
  if (found != devices_.end()) return &*found;
  return absl::NotFoundError(
      absl::StrCat("no device ", std::string(name), "; this node has ",
                   absl::StrJoin(devices_, ", ", [](std::string* text, const Device& device) {
                     absl::StrAppend(text, device.uuid, " (", device.pci_address, ")");
                   })));
}

}  // namespace qrd::gpu
