// SPDX-License-Identifier: Apache-2.0
// Golden cases against the GPU backend of this build, in process: codecs as kernels, all-reduces
// with all ranks on one device.
//
// Thread safety: none. Ownership: backend, groups and device memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/golden_check.h"
#include "client/tools/qrbench/golden_epilogue.h"
#include "client/tools/qrbench/gpu.h"

namespace qrd::tools {

class GoldenGpu {
 public:
  // On the first device. FAILED_PRECONDITION or NOT_FOUND as MakeGpuBackend says.
  static absl::StatusOr<std::unique_ptr<GoldenGpu>> Open();

  // As the functions of these names in golden_check.h.
  CaseResult CheckCodecCase(const GoldenFolder& folder, const GoldenCase& c);
  CaseResult CheckReduceCase(const GoldenFolder& folder, const GoldenCase& c);
  EpilogueRunner Runner();

 private:
  using Bytes = std::vector<std::byte>;
  GoldenGpu(std::unique_ptr<Backend> backend, std::unique_ptr<Gpu> gpu);

  // Device memory of at least so many bytes, kept from case to case, one an index.
  absl::StatusOr<std::byte*> Room(size_t index, uint64_t bytes);
  absl::StatusOr<Bytes> RunCodec(const GoldenCase& c, bool encode, std::span<const std::byte> from,
                                 uint64_t result_bytes);
  absl::StatusOr<DeviceGroup*> GroupOf(uint32_t ranks);
  // Launches on the group of all ranks and waits.
  absl::Status Launch(const LaunchParams& params);
  absl::StatusOr<std::vector<EpilogueResults>> RunEpilogue(const EpilogueCase& c,
                                                           LaunchParams params,
                                                           const EpilogueTensors& tensors);
  absl::StatusOr<std::vector<Bytes>> AllReduce(const GoldenCase& c,
                                               const std::vector<Bytes>& inputs);

  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Gpu> gpu_;
  const std::string device_;
  std::vector<std::unique_ptr<Arena>> rooms_;
  std::map<uint32_t, std::unique_ptr<DeviceGroup>> groups_;
};

}  // namespace qrd::tools
