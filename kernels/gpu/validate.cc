// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/validate.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/types.h"
#include "kernels/validate_epilogue.h"

namespace qrd::gpu {
namespace {

absl::Status ValidateTensor(const char* name, uint32_t rank, const void* data,
                            const LaunchParams& p) {
  const uint64_t address = reinterpret_cast<uintptr_t>(data);
  const uint64_t element_bytes = DtypeBytes(p.dtype);
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "[", rank, "] = null: want ", p.count, " elements"));
  }
  if (address % element_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, "[", rank, "] is misaligned: address % ",
                                                   element_bytes, " = ", address % element_bytes,
                                                   ", want 0 for ", std::string(Name(p.dtype))));
  }
  return absl::OkStatus();
}

absl::Status ValidateOverlap(const LaunchParams& p) {
  const uint64_t bytes = p.count * DtypeBytes(p.dtype);
  const auto overlap = [bytes](const void* a, const void* b) {
    const uint64_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + bytes && y < x + bytes;
  };
  const auto error = [bytes](uint32_t rank, const char* name, uint32_t other) {
    return absl::InvalidArgumentError(
        absl::StrCat("outputs[", rank, "] overlaps ", name, "[", other, "] within ", bytes,
                     " bytes: want outputs[", rank, "] equal to inputs[", rank,
                     "] or disjoint from every other tensor"));
  };
  for (uint32_t r = 0; r < p.world_size; ++r) {
    for (uint32_t other = 0; other < p.world_size; ++other) {
      const bool in_place = other == r && p.outputs[r] == p.inputs[r];
      if (!in_place && overlap(p.outputs[r], p.inputs[other])) return error(r, "inputs", other);
      if (other < r && overlap(p.outputs[r], p.outputs[other])) return error(r, "outputs", other);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateLaunch(const LaunchParams& p, uint32_t world_size) {
  if (p.epilogue != Epilogue::kNone && p.epilogue != Epilogue::kRmsNorm) {
    return absl::UnimplementedError(absl::StrCat("epilogue = ", static_cast<uint32_t>(p.epilogue),
                                                 ": the gpu backend has none, rms_norm"));
  }
  if (p.world_size != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size = ", p.world_size, ": want ", world_size, ", the communicator's"));
  }
  const bool has_norm = p.epilogue == Epilogue::kRmsNorm;
  if (has_norm) {
    // First: that fp32 has no RMSNorm is a rule, not a kernel that is missing.
    if (absl::Status status = ValidateRmsNorm(p); !status.ok()) return status;
  }
  if (p.dtype != Dtype::kFp16 && p.dtype != Dtype::kBf16 && p.dtype != Dtype::kFp32) {
    return absl::UnimplementedError(absl::StrCat("dtype = ", static_cast<uint32_t>(p.dtype),
                                                 ": the gpu backend has fp16, bf16, fp32"));
  }
  if (p.algorithm < Algorithm::kOneShot || p.algorithm > Algorithm::kLibrary) {
    return absl::UnimplementedError(
        absl::StrCat("algorithm = ", static_cast<uint32_t>(p.algorithm),
                     ": the gpu backend has one_shot, two_shot, library"));
  }
  if (p.algorithm == Algorithm::kLibrary && p.codec != Codec::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec = ", std::string(Name(p.codec)), ": algorithm library has none only"));
  }
  if (static_cast<uint32_t>(p.codec) >= kCodecCount || KernelsOf(p.codec, p.dtype) == nullptr) {
    return absl::UnimplementedError(absl::StrCat("codec = ", static_cast<uint32_t>(p.codec),
                                                 ": not built into this gpu backend for ",
                                                 std::string(Name(p.dtype))));
  }
  if (p.op != ReduceOp::kSum && p.op != ReduceOp::kAvg) {
    return absl::UnimplementedError(
        absl::StrCat("op = ", static_cast<uint32_t>(p.op), ": the gpu backend has sum, avg"));
  }
  const uint64_t count_max =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / DtypeBytes(p.dtype) / 2;
  if (p.count > count_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("count = ", p.count, ": want at most ", count_max));
  }
  if (has_norm && p.algorithm == Algorithm::kLibrary) {
    return absl::UnimplementedError("algorithm = library: has no rms_norm");
  }
  if (has_norm && RmsNormKernelsOf(p.codec, p.dtype) == nullptr) {
    return absl::UnimplementedError(absl::StrCat("codec = ", static_cast<uint32_t>(p.codec),
                                                 ": not built into this gpu backend for ",
                                                 std::string(Name(p.dtype)), " with rms_norm"));
  }
  if (p.count == 0 || has_norm) return absl::OkStatus();
  for (uint32_t r = 0; r < p.world_size; ++r) {
    for (const absl::Status& status : {ValidateTensor("inputs", r, p.inputs[r], p),
                                       ValidateTensor("outputs", r, p.outputs[r], p)}) {
      if (!status.ok()) return status;
    }
  }
  return ValidateOverlap(p);
}

}  // namespace qrd::gpu
