// SPDX-License-Identifier: Apache-2.0
// Reads NumPy's .npy files, format versions 1 to 3: one dense little-endian array.
//
//   descr        elements
//   <f2          fp16
//   <f4          fp32
//   <f8          double, narrowed to fp32 (nearest even)
//   <u2 <i2 <V2  bfloat16 bits (NumPy has no bfloat16; ml_dtypes saves |V2 or <V2)
//
// Files are hostile input: every length is checked against the file's size before it is used.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/types.h"

namespace qrd::tools {

struct NpyArray {
  Dtype dtype = Dtype::kFp32;  // of the file; fp32 for <f8
  std::vector<uint64_t> shape;
  std::vector<float> values;  // exact for fp16, bf16, fp32
};

// INVALID_ARGUMENT names `name`, what is wrong and what would be right.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view bytes, absl::string_view name);
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);

}  // namespace qrd::tools
