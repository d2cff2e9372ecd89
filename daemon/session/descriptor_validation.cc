// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/descriptor_validation.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace qrd {
namespace {

template <typename... Args>
absl::Status Invalid(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

absl::Status CheckScalars(const shm::Descriptor& d, uint64_t expected_sequence) {
  const auto number = [](auto value) { return static_cast<uint32_t>(value); };
  if (d.kind != shm::Kind::kAllReduce) {
    return Invalid("kind is %d: want 1 (all_reduce)", number(d.kind));
  }
  if (d.dtype != Dtype::kFp16 && d.dtype != Dtype::kBf16 && d.dtype != Dtype::kFp32) {
    return Invalid("dtype is %d: want 1 (fp16), 2 (bf16) or 3 (fp32)", number(d.dtype));
  }
  if (d.op != ReduceOp::kSum && d.op != ReduceOp::kAvg) {
    return Invalid("op is %d: want 1 (sum) or 2 (avg)", number(d.op));
  }
  if (d.flags != 0) return Invalid("flags is %d: want 0", d.flags);
  if (d.sequence != expected_sequence) {
    return Invalid("sequence is %d: want %d", d.sequence, expected_sequence);
  }
  if (d.timeout_ms > kOperationTimeoutMsMax) {
    return Invalid("timeout_ms is %d: want 0 to %d", d.timeout_ms, kOperationTimeoutMsMax);
  }
  if (d.epilogue > static_cast<uint32_t>(Epilogue::kRmsNorm)) {
    return Invalid("epilogue is %d: want 0 (none) or 1 (rms_norm)", d.epilogue);
  }
  constexpr shm::RmsNorm kNothing{};
  if (d.epilogue == 0 && std::memcmp(&d.rms_norm, &kNothing, sizeof(kNothing)) != 0) {
    return Invalid("rms_norm has other bytes than 0 without an epilogue");
  }
  return absl::OkStatus();
}

// Same start or disjoint. The bounds were checked, so nothing overflows.
absl::Status CheckOverlap(const shm::Tensor& input, const shm::Tensor& output, uint64_t bytes) {
  if (input.arena_id != output.arena_id || input.offset_bytes == output.offset_bytes) {
    return absl::OkStatus();
  }
  const uint64_t low = std::min(input.offset_bytes, output.offset_bytes);
  const uint64_t high = std::max(input.offset_bytes, output.offset_bytes);
  if (high - low >= bytes) return absl::OkStatus();
  return Invalid(
      "output overlaps input: offset_bytes are %d and %d in arena %d, %d bytes each; want "
      "the same start or no overlap",
      output.offset_bytes, input.offset_bytes, input.arena_id, bytes);
}

}  // namespace

absl::StatusOr<ArenaTable::Pin> CheckTensor(const char* field, const shm::Tensor& tensor,
                                            uint64_t count, uint64_t element_bytes,
                                            ArenaTable* arenas, const char* count_name) {
  absl::StatusOr<ArenaTable::Pin> pin = arenas->Lookup(tensor.arena_id, tensor.generation);
  if (!pin.ok()) return Invalid("%s: %s", field, pin.status().message());
  if (tensor.offset_bytes % element_bytes != 0) {
    return Invalid("%s.offset_bytes is %d: want a multiple of %d (the element)", field,
                   tensor.offset_bytes, element_bytes);
  }
  if (tensor.offset_bytes > pin->bytes()) {
    return Invalid("%s.offset_bytes is %d: arena %d has %d bytes", field, tensor.offset_bytes,
                   tensor.arena_id, pin->bytes());
  }
  const uint64_t room = (pin->bytes() - tensor.offset_bytes) / element_bytes;
  if (count > room) {
    return Invalid(
        "%s is %d: %s has room for %d elements of %d bytes (arena %d has %d bytes, "
        "offset_bytes is %d)",
        count_name, count, field, room, element_bytes, tensor.arena_id, pin->bytes(),
        tensor.offset_bytes);
  }
  return pin;
}

absl::StatusOr<ValidatedDescriptor> ValidateDescriptor(const shm::Descriptor& d,
                                                       uint64_t expected_sequence, uint32_t rank,
                                                       uint32_t world_size, ArenaTable* arenas) {
  if (absl::Status status = CheckScalars(d, expected_sequence); !status.ok()) return status;
  ValidatedDescriptor v;
  v.kind = d.kind;
  v.dtype = d.dtype;
  v.op = d.op;
  v.epilogue = d.epilogue;
  v.count = d.count;
  v.timeout_ms = d.timeout_ms;
  if (d.epilogue != 0) {
    absl::StatusOr<std::unique_ptr<RmsNormOperands>> rms_norm =
        ReadRmsNorm(d, rank, world_size, arenas);
    if (!rms_norm.ok()) return rms_norm.status();
    v.input = (*rms_norm)->input;
    v.rms_norm = *std::move(rms_norm);
    return v;
  }
  if (d.count == 0) return v;
  const uint64_t element_bytes = DtypeBytes(d.dtype);
  absl::StatusOr<ArenaTable::Pin> input =
      CheckTensor("input", d.input, d.count, element_bytes, arenas);
  if (!input.ok()) return input.status();
  absl::StatusOr<ArenaTable::Pin> output =
      CheckTensor("output", d.output, d.count, element_bytes, arenas);
  if (!output.ok()) return output.status();
  if (absl::Status s = CheckOverlap(d.input, d.output, d.count * element_bytes); !s.ok()) return s;
  v.input_pin = *std::move(input);
  v.output_pin = *std::move(output);
  v.input = v.input_pin.data() + d.input.offset_bytes;
  v.output = v.output_pin.data() + d.output.offset_bytes;
  return v;
}

}  // namespace qrd
