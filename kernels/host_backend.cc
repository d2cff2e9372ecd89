// SPDX-License-Identifier: Apache-2.0
// The host backend: arenas are sealed memfds, ranks read each other through them, and a collective
// is a loop over tiles (kernels/all_reduce.h). There is no wire, so AUTO means codec none.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/all_reduce.h"
#include "kernels/backend.h"
#include "kernels/codec.h"
#include "kernels/host_memory.h"
#include "kernels/types.h"
#include "kernels/validate_epilogue.h"

namespace qrd {
namespace {

// Every byte offset of a tensor fits in a signed 64-bit number.
constexpr uint64_t TensorBytesMax() { return std::numeric_limits<int64_t>::max(); }

// Starting value of the plan, until measured: one_shot up to this many bytes / world_size.
constexpr uint64_t kOneShotBytesMaxTimesWorldSize = 1'835'008;

// abseil's string_view is not std::string_view everywhere.
template <typename Field>
std::string Text(Field value) {
  return std::string(Name(value));
}

// The names that a column of instances.def has, in order.
template <typename Field>
std::string Available(Field KernelInstance::*field) {
  std::vector<Field> seen;
  std::string names;
  for (const KernelInstance& instance : AllInstances()) {
    if (std::ranges::find(seen, instance.*field) != seen.end()) continue;
    seen.push_back(instance.*field);
    if (!names.empty()) names += ", ";
    names += Name(instance.*field);
  }
  return names;
}

template <typename Field>
bool Exists(Field KernelInstance::*field, Field value) {
  return std::ranges::any_of(AllInstances(),
                             [&](const KernelInstance& i) { return i.*field == value; });
}

template <typename Field>
absl::Status Unknown(const char* name, Field KernelInstance::*field, Field value) {
  return absl::UnimplementedError(absl::StrCat(name, " = ", static_cast<uint32_t>(value),
                                               ": the host backend has ", Available(field)));
}

absl::Status ValidateInstance(const LaunchParams& p) {
  if (p.epilogue != Epilogue::kNone && p.epilogue != Epilogue::kRmsNorm) {
    return absl::UnimplementedError(absl::StrCat("epilogue = ", static_cast<uint32_t>(p.epilogue),
                                                 ": the host backend has none, rms_norm"));
  }
  if (!Exists(&KernelInstance::codec, p.codec)) {
    return Unknown("codec", &KernelInstance::codec, p.codec);
  }
  if (!Exists(&KernelInstance::algorithm, p.algorithm)) {
    return Unknown("algorithm", &KernelInstance::algorithm, p.algorithm);
  }
  if (!Exists(&KernelInstance::dtype, p.dtype)) {
    return Unknown("dtype", &KernelInstance::dtype, p.dtype);
  }
  if (p.op != ReduceOp::kSum && p.op != ReduceOp::kAvg) {
    return absl::UnimplementedError(
        absl::StrCat("op = ", static_cast<uint32_t>(p.op), ": the host backend has sum, avg"));
  }
  if (p.world_size < 1 || p.world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size = ", p.world_size, ": want 1 to ", kWorldSizeMax));
  }
  if (!HasAllReduce(p.algorithm, p.codec, p.dtype, p.world_size, p.epilogue)) {
    return absl::UnimplementedError(absl::StrCat(
        "codec = ", Text(p.codec), ", algorithm = ", Text(p.algorithm), ", dtype = ", Text(p.dtype),
        ", world_size = ", p.world_size, ", epilogue = ", Text(p.epilogue),
        ": not in the host backend's list of instances"));
  }
  const uint64_t count_max = TensorBytesMax() / DtypeBytes(p.dtype);
  if (p.count > count_max) {
    return absl::InvalidArgumentError(absl::StrCat("count = ", p.count, ": want at most ",
                                                   count_max, " elements of ", Text(p.dtype)));
  }
  return absl::OkStatus();
}

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
                                                   ", want 0 for ", Text(p.dtype)));
  }
  if (address > std::numeric_limits<uint64_t>::max() - p.count * element_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "[", rank, "]: ", p.count * element_bytes,
                     " bytes reach past the end of the address space"));
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

class HostBackend final : public Backend {
 public:
  std::string_view name() const override { return "host"; }
  std::string target() const override { return SimdTargetName(); }
  std::vector<DeviceInfo> devices() const override {
    return {{.id = "host", .description = CpuDescription(), .memory_bytes = TotalMemoryBytes()}};
  }
  std::span<const KernelInstance> instances() const override { return AllInstances(); }

  absl::Status Validate(const LaunchParams& params) const override {
    if (params.epilogue == Epilogue::kRmsNorm) {
      // First: that fp32 has no RMSNorm is a rule, not a gap in the list of instances.
      if (absl::Status status = ValidateRmsNorm(params); !status.ok()) return status;
      return ValidateInstance(params);
    }
    if (absl::Status status = ValidateInstance(params); !status.ok()) return status;
    if (params.count == 0) return absl::OkStatus();
    for (uint32_t r = 0; r < params.world_size; ++r) {
      for (const absl::Status& status : {ValidateTensor("inputs", r, params.inputs[r], params),
                                         ValidateTensor("outputs", r, params.outputs[r], params)}) {
        if (!status.ok()) return status;
      }
    }
    return ValidateOverlap(params);
  }

  Codec AutoCodec(Dtype, uint64_t, uint32_t) const override { return Codec::kNone; }

  // Two ranks: one_shot sends the same wire bytes as two_shot and quantizes once.
  Algorithm AutoAlgorithm(Codec, Dtype, uint64_t payload_bytes,
                          uint32_t world_size) const override {
    return world_size <= 2 || payload_bytes <= kOneShotBytesMaxTimesWorldSize / world_size
               ? Algorithm::kOneShot
               : Algorithm::kTwoShot;
  }

  absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t bytes) override {
    return AllocateSealedArena(bytes);
  }

  uint64_t UnitCount(const LaunchParams& params) const override { return AllReduceUnits(params); }
  uint64_t Run(const LaunchParams& params, TileRange range) override {
    return AllReduceRange(params, range);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeHostBackend() { return std::make_unique<HostBackend>(); }

}  // namespace qrd
