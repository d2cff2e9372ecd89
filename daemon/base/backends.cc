// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/backends.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace qrd {

absl::StatusOr<Backends> Backends::Make(const std::string& mode,
                                        const std::string& collective_library) {
  Backends backends = HostOnly();
  if (mode == "off") {
    backends.gpu_status = absl::FailedPreconditionError("gpu is off in the configuration");
    return backends;
  }
  absl::StatusOr<std::unique_ptr<Backend>> gpu = MakeGpuBackend(collective_library);
  if (gpu.ok()) {
    backends.gpu = *std::move(gpu);
    backends.gpu_status = absl::OkStatus();
    return backends;
  }
  backends.gpu_status = gpu.status();
  if (mode == "required") {
    return absl::Status(gpu.status().code(),
                        absl::StrCat("gpu is required, but ", gpu.status().message()));
  }
  return backends;
}

Backends Backends::HostOnly(std::unique_ptr<Backend> host) {
  Backends backends;
  backends.host = std::move(host);
  backends.gpu_status = absl::FailedPreconditionError("this daemon has no GPU backend");
  return backends;
}

std::vector<const Backend*> Backends::all() const {
  std::vector<const Backend*> all = {host.get()};
  if (gpu != nullptr) all.push_back(gpu.get());
  return all;
}

absl::StatusOr<Backend*> Backends::Get(v1::Backend which) const {
  if (which != v1::BACKEND_GPU) return host.get();
  if (gpu != nullptr) return gpu.get();
  return absl::FailedPreconditionError(
      absl::StrCat("backend is BACKEND_GPU: ", gpu_status.message()));
}

uint64_t Backends::device_memory_bytes() const {
  uint64_t bytes = 0;
  if (gpu == nullptr) return 0;
  for (const DeviceInfo& device : gpu->devices()) bytes += device.memory_bytes;
  return bytes;
}

}  // namespace qrd
