// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process, by names that mean the same in every process: UUID and PCI address.
//
// Thread safety: immutable after Find().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace qrd::gpu {

struct Device {
  int ordinal = 0;  // of the runtime, in this process
  std::string uuid;
  std::string pci_address;
  DeviceInfo info;  // id = uuid
};

class Devices {
 public:
  // NOT_FOUND if there is none, or no driver, with what the runtime says.
  static absl::StatusOr<Devices> Find();

  std::span<const Device> all() const { return devices_; }
  // By UUID or PCI address; NOT_FOUND names the devices that exist.
  absl::StatusOr<const Device*> Get(std::string_view name) const;

 private:
  std::vector<Device> devices_;
};

// "GPU-00112233-4455-6677-8899-aabbccddeeff"
std::string FormatUuid(const unsigned char bytes[16]);

}  // namespace qrd::gpu
