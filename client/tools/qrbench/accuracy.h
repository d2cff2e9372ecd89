// SPDX-License-Identifier: Apache-2.0
// `qrbench accuracy`: what each codec does to given tensors, computed in process: no daemon, no
// times.
//
// Thread safety: pure function that prints.
#pragma once

#include <string>
#include <vector>

#include "client/tools/qrbench/tensors.h"
#include "kernels/types.h"

namespace qrd::tools {

struct AccuracySettings {
  std::vector<Dtype> dtypes;
  std::vector<Codec> codecs;
  std::vector<Algorithm> algorithms;
  ReduceOp op = ReduceOp::kSum;
  uint32_t ranks = 2;
  uint64_t count = 0;
  TensorSource source;
  std::string output = "table";  // table, markdown, csv, json
};

// An exit code.
int RunAccuracy(const AccuracySettings& settings);

}  // namespace qrd::tools
