// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/plan_quality.h"

#include <algorithm>
#include <memory>

#include "kernels/backend.h"

namespace qrd::tools {

PlanQuality::PlanQuality(const TensorSource& source, Dtype dtype, ReduceOp op, uint32_t ranks,
                         uint64_t count)
    : dtype_(dtype), op_(op), count_(count), inputs_(ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    inputs_[rank].resize(std::max<uint64_t>(count * DtypeBytes(dtype), 1));
    source.Fill(rank, dtype, count, inputs_[rank].data());
    pointers_.push_back(inputs_[rank].data());
  }
}

absl::StatusOr<Quality> PlanQuality::Of(Codec codec, Algorithm algorithm) const {
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  std::vector<std::vector<std::byte>> outputs(inputs_.size());
  LaunchParams params;
  params.codec = codec;
  params.algorithm = algorithm;
  params.dtype = dtype_;
  params.op = op_;
  params.world_size = static_cast<uint32_t>(inputs_.size());
  params.count = count_;
  for (size_t rank = 0; rank < inputs_.size(); ++rank) {
    outputs[rank].resize(inputs_[rank].size());
    params.inputs[rank] = pointers_[rank];
    params.outputs[rank] = outputs[rank].data();
  }
  if (absl::Status status = backend->Validate(params); !status.ok()) return status;
  backend->Run(params, {0, TileCount(count_)});
  return MeasureInputs(dtype_, op_, pointers_, count_, outputs[0].data());
}

}  // namespace qrd::tools
