// SPDX-License-Identifier: Apache-2.0
// In place of kernels/gpu/gpu_backend.cc in a build without a GPU.
#include "kernels/backend.h"

namespace qrd {

absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(std::string_view) {
  return absl::FailedPreconditionError(
      "this build has no GPU backend: configure with -DQRD_GPU=hip or -DQRD_GPU=cuda");
}

}  // namespace qrd
