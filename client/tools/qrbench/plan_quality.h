// SPDX-License-Identifier: Apache-2.0
// How accurate a plan is on given tensors, computed in this process by the host backend, whose bits
// are those of every backend.
//
// Thread safety: pure functions; the inputs are made once by the constructor.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/tensors.h"
#include "kernels/types.h"

namespace qrd::tools {

class PlanQuality {
 public:
  // Makes the inputs of all ranks: `count` elements of `dtype` each.
  PlanQuality(const TensorSource& source, Dtype dtype, ReduceOp op, uint32_t ranks, uint64_t count);

  absl::StatusOr<Quality> Of(Codec codec, Algorithm algorithm) const;

 private:
  const Dtype dtype_;
  const ReduceOp op_;
  const uint64_t count_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<const void*> pointers_;
};

}  // namespace qrd::tools
