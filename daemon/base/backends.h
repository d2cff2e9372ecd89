// SPDX-License-Identifier: Apache-2.0
// The backends of this daemon: the host always, GPUs if there are any.
//
// Thread safety: immutable once made. Ownership: owns the backends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "qrd/v1/types.pb.h"

namespace qrd {

struct Backends {
  std::unique_ptr<Backend> host;
  std::unique_ptr<Backend> gpu;  // null: none
  absl::Status gpu_status;       // why there is none

  // `mode`: Config.gpu, and Config.collective_library. Fails only if it is "required".
  static absl::StatusOr<Backends> Make(const std::string& mode,
                                       const std::string& collective_library = "auto");
  static Backends HostOnly(std::unique_ptr<Backend> host = MakeHostBackend());

  // Host first.
  std::vector<const Backend*> all() const;
  // UNSPECIFIED is the host. FAILED_PRECONDITION says why there are no GPUs.
  absl::StatusOr<Backend*> Get(v1::Backend which) const;
  // Of all GPUs.
  uint64_t device_memory_bytes() const;
};

}  // namespace qrd
