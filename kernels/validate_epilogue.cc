// SPDX-License-Identifier: Apache-2.0
#include "kernels/validate_epilogue.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd {
namespace {

constexpr uint64_t kAlignment16Bit = 16;  // and of weight
constexpr uint64_t kAlignmentOut8 = 8;
constexpr uint64_t kAlignmentScales = 4;
constexpr uint32_t kTensorsOfRank = 8;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// abseil's string_view is not std::string_view everywhere.
template <typename Field>
std::string Text(Field value) {
  return std::string(Name(value));
}

bool Is16Bit(Dtype dtype) { return dtype == Dtype::kFp16 || dtype == Dtype::kBf16; }

absl::Status ValidateShape(const LaunchParams& p) {
  const RmsNormParams& n = p.rms_norm;
  if (!Is16Bit(p.dtype)) {
    return Invalid("dtype = ", Text(p.dtype), ": want fp16 or bf16 with epilogue rms_norm");
  }
  if (p.op != ReduceOp::kSum) {
    return Invalid("op = ", Text(p.op), ": want sum with epilogue rms_norm");
  }
  if (p.world_size < 1 || p.world_size > kWorldSizeMax) {
    return Invalid("world_size = ", p.world_size, ": want 1 to ", kWorldSizeMax);
  }
  if (n.tokens < 1) return Invalid("tokens = ", n.tokens, ": want at least 1");
  if (n.hidden < kHiddenMin || n.hidden > kHiddenMax || n.hidden % kHiddenMultiple != 0) {
    return Invalid("hidden = ", n.hidden, ": want a multiple of ", kHiddenMultiple, " from ",
                   kHiddenMin, " to ", kHiddenMax);
  }
  // The largest tensor has 2 bytes an element; scales have at most 4 for each 8 elements.
  const uint64_t tokens_max =
      uint64_t{std::numeric_limits<int64_t>::max()} / DtypeBytes(p.dtype) / n.hidden;
  if (n.tokens > tokens_max) {
    return Invalid("tokens = ", n.tokens, ": want at most ", tokens_max,
                   " with hidden = ", n.hidden);
  }
  if (p.count != n.tokens * n.hidden) {
    return Invalid("count = ", p.count, ": want tokens * hidden = ", n.tokens * n.hidden);
  }
  return absl::OkStatus();
}

absl::Status ValidateOptions(const LaunchParams& p) {
  const RmsNormParams& n = p.rms_norm;
  if (!std::isfinite(n.eps) || n.eps < kEpsMin) {
    return Invalid("eps = ", n.eps, ": want a finite number of at least 2^-64");
  }
  if (n.residual_layout != ResidualLayout::kFull && n.residual_layout != ResidualLayout::kSharded) {
    return Invalid("residual_layout = ", static_cast<uint32_t>(n.residual_layout),
                   ": want full (0) or sharded (1)");
  }
  if (n.residual_layout == ResidualLayout::kSharded && p.algorithm != Algorithm::kTwoShot) {
    return Invalid("algorithm = ", Text(p.algorithm),
                   ": want two_shot with residual_layout = sharded");
  }
  if (n.weight_dtype != p.dtype && n.weight_dtype != Dtype::kFp32) {
    return Invalid("weight_dtype = ", Text(n.weight_dtype), " (",
                   static_cast<uint32_t>(n.weight_dtype), "): want ", Text(p.dtype), " or fp32");
  }
  if (n.quant == Quant::kNone) {
    if (n.scale_group != 0) {
      return Invalid("scale_group = ", n.scale_group, ": want 0 with quant = none");
    }
    if (n.divisor != 0) return Invalid("divisor = ", n.divisor, ": want 0 with quant = none");
    return absl::OkStatus();
  }
  if (n.quant != Quant::kE4m3fn && n.quant != Quant::kE4m3fnuz) {
    return Invalid("quant = ", static_cast<uint32_t>(n.quant),
                   ": want none (0), e4m3fn (1) or e4m3fnuz (2)");
  }
  if (n.scale_group != 0 && n.scale_group != kScaleGroup) {
    return Invalid("scale_group = ", n.scale_group, ": want 0 or ", kScaleGroup);
  }
  const float largest = QuantMax(n.quant);
  if (!std::isfinite(n.divisor) || std::signbit(n.divisor) || n.divisor > largest) {
    return Invalid("divisor = ", n.divisor, ": want a number above 0 and at most ", largest,
                   " with quant = ", Text(n.quant), ", or 0 for ", largest);
  }
  return absl::OkStatus();
}

// A tensor of one rank, as the operation wants it.
struct Tensor {
  std::string_view name;
  uint32_t rank = 0;
  uint64_t address = 0;  // 0: not given
  uint64_t bytes = 0;
  uint64_t alignment = 1;
  enum class Need : uint8_t { kRequired, kOptional, kForbidden } need = Need::kRequired;
  bool written = false;
  std::string_view may_take = {};  // the operand of the same rank whose memory it may have
};
using TensorsOfRank = std::array<Tensor, kTensorsOfRank>;

uint64_t Address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// The rows of residual and residual_out that one rank has.
uint64_t ResidualTokens(const RmsNormParams& n, uint32_t rank, uint32_t world_size) {
  if (n.residual_layout == ResidualLayout::kFull) return n.tokens;
  const RowRange rows = OwnedRows(n.tokens, world_size, rank);
  return rows.last - rows.first;
}

TensorsOfRank TensorsOf(const LaunchParams& p, uint32_t r, uint64_t residual_tokens) {
  using Need = Tensor::Need;
  const RmsNormParams& n = p.rms_norm;
  const bool quant = n.quant != Quant::kNone;
  const uint64_t bytes = p.count * DtypeBytes(p.dtype);
  const uint64_t residual_bytes = residual_tokens * n.hidden * DtypeBytes(p.dtype);
  // Of a rank without rows they are not looked at.
  const auto residual_address = [&](const void* tensor) {
    return residual_tokens != 0 ? Address(tensor) : 0;
  };
  const Need with_rows = residual_tokens != 0 ? Need::kRequired : Need::kOptional;
  const uint64_t groups =
      n.scale_group == 0 ? 1 : (n.hidden + uint64_t{n.scale_group} - 1) / n.scale_group;
  const Need with_quant = quant ? Need::kRequired : Need::kForbidden;
  constexpr bool kRead = false, kWritten = true;
  return {{
      {"input", r, Address(p.inputs[r]), bytes, kAlignment16Bit, Need::kRequired, kRead},
      {"residual", r, residual_address(n.residual[r]), residual_bytes, kAlignment16Bit,
       Need::kOptional, kRead},
      {"weight", r, Address(n.weight[r]), n.hidden * DtypeBytes(n.weight_dtype), kAlignment16Bit,
       Need::kRequired, kRead},
      {"residual_out", r, residual_address(n.residual_out[r]), residual_bytes, kAlignment16Bit,
       with_rows, kWritten, "residual"},
      {"out", r, Address(n.out[r]), bytes, kAlignment16Bit,
       quant ? Need::kForbidden : Need::kRequired, kWritten, "input"},
      {"out8", r, Address(n.out8[r]), p.count, kAlignmentOut8, with_quant, kWritten},
      {"scales", r, Address(n.scales[r]), n.tokens * groups * sizeof(float), kAlignmentScales,
       with_quant, kWritten},
      {"mirror", r, Address(n.mirror[r]), bytes, kAlignment16Bit,
       quant ? Need::kOptional : Need::kForbidden, kWritten, "input"},
  }};
}

absl::Status ValidateTensor(const Tensor& t, const LaunchParams& p) {
  const Quant quant = p.rms_norm.quant;
  if (t.address == 0) {
    if (t.need != Tensor::Need::kRequired) return absl::OkStatus();
    return Invalid(std::string(t.name), "[", t.rank, "] = null: want ", t.bytes, " bytes");
  }
  if (t.need == Tensor::Need::kForbidden) {
    return Invalid(std::string(t.name), "[", t.rank,
                   "] is given: want null with quant = ", Text(quant),
                   quant != Quant::kNone ? " (the 16-bit copy is mirror)" : "");
  }
  if (t.address % t.alignment != 0) {
    return Invalid(std::string(t.name), "[", t.rank, "] is misaligned: address % ", t.alignment,
                   " = ", t.address % t.alignment, ", want 0");
  }
  if (t.address > std::numeric_limits<uint64_t>::max() - t.bytes) {
    return Invalid(std::string(t.name), "[", t.rank, "]: ", t.bytes,
                   " bytes reach past the end of the address space");
  }
  return absl::OkStatus();
}

// What the first `ranks` ranks have or none of them: an operation is one for all of them.
absl::Status ValidateOnAllRanks(const char* name, const void* const* tensors, uint32_t ranks,
                                bool of_rows) {
  for (uint32_t r = 1; r < ranks; ++r) {
    if ((tensors[r] == nullptr) == (tensors[0] == nullptr)) continue;
    const uint32_t missing = tensors[r] == nullptr ? r : 0;
    return Invalid(name, "[", missing, "] = null: want it on all ranks",
                   of_rows ? " with rows" : "", " or on none, rank ", r - missing, " has it");
  }
  return absl::OkStatus();
}

// The same start and the same bytes, where the contract allows it.
bool MayBeSame(const Tensor& output, const Tensor& other) {
  return output.rank == other.rank && output.address == other.address &&
         output.may_take == other.name;
}

absl::Status OverlapError(const Tensor& output, const Tensor& other) {
  const std::string allowed = output.may_take.empty()
                                  ? ""
                                  : "equal to " + std::string(output.may_take) + " of its rank or ";
  return Invalid(std::string(output.name), "[", output.rank, "] (", output.bytes,
                 " bytes) overlaps ", std::string(other.name), "[", other.rank, "] (", other.bytes,
                 " bytes): want it ", allowed, "disjoint from every other tensor");
}

absl::Status ValidateOverlap(const std::array<TensorsOfRank, kWorldSizeMax>& tensors,
                             uint32_t world_size) {
  for (uint32_t r = 0; r < world_size; ++r) {
    for (const Tensor& output : tensors[r]) {
      if (!output.written || output.address == 0) continue;
      for (uint32_t other_rank = 0; other_rank < world_size; ++other_rank) {
        for (const Tensor& other : tensors[other_rank]) {
          // Bytes of a tensor that is not there, or of itself; a pair of outputs is met twice.
          if (other.address == 0 || &other == &output) continue;
          const bool overlap = output.address < other.address + other.bytes &&
                               other.address < output.address + output.bytes;
          if (overlap && !MayBeSame(output, other)) return OverlapError(output, other);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRmsNorm(const LaunchParams& params) {
  if (absl::Status status = ValidateShape(params); !status.ok()) return status;
  if (absl::Status status = ValidateOptions(params); !status.ok()) return status;
  const RmsNormParams& n = params.rms_norm;
  std::array<TensorsOfRank, kWorldSizeMax> tensors;
  uint32_t ranks_with_rows = 0;  // the first ones
  for (uint32_t r = 0; r < params.world_size; ++r) {
    const uint64_t residual_tokens = ResidualTokens(n, r, params.world_size);
    ranks_with_rows += residual_tokens != 0;
    tensors[r] = TensorsOf(params, r, residual_tokens);
    for (const Tensor& tensor : tensors[r]) {
      if (absl::Status status = ValidateTensor(tensor, params); !status.ok()) return status;
    }
  }
  for (const absl::Status& status :
       {ValidateOnAllRanks("residual", n.residual, ranks_with_rows,
                           n.residual_layout == ResidualLayout::kSharded),
        ValidateOnAllRanks("mirror", const_cast<const void* const*>(n.mirror), params.world_size,
                           false)}) {
    if (!status.ok()) return status;
  }
  return ValidateOverlap(tensors, params.world_size);
}

absl::Status ValidateRmsNormOfRank(const LaunchParams& params, uint32_t rank, uint32_t world_size) {
  if (absl::Status status = ValidateShape(params); !status.ok()) return status;
  if (absl::Status status = ValidateOptions(params); !status.ok()) return status;
  std::array<TensorsOfRank, kWorldSizeMax> tensors;
  tensors[0] = TensorsOf(params, 0, ResidualTokens(params.rms_norm, rank, world_size));
  for (const Tensor& tensor : tensors[0]) {
    if (absl::Status status = ValidateTensor(tensor, params); !status.ok()) return status;
  }
  return ValidateOverlap(tensors, 1);
}

}  // namespace qrd
