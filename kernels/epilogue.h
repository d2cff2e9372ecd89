// SPDX-License-Identifier: Apache-2.0
// What a collective does after the sum: nothing, or residual + RMSNorm (+ FP8), one operation.
// Arithmetic, order of sums, special rows, shapes, aliasing and errors: the contract of epilogues
// (design), restated where it is implemented.
//
// Thread safety: plain data. Ownership: none; pointers name the caller's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/types.h"

namespace qrd {

enum class Epilogue : uint8_t { kNone = 0, kRmsNorm = 1 };
// FP8 format of `out8`. Every backend has both; hardware conversions are used where they give the
// same bytes.
enum class Quant : uint8_t { kNone = 0, kE4m3fn = 1, kE4m3fnuz = 2 };

// Who has which rows of `residual` and `residual_out`.
//   full     every rank has all rows and does the epilogue of all
//   sharded  rank r has the rows OwnedRows(tokens, world_size, r) only. It reduces them (a
//            reduce-scatter, algorithm two_shot), does their epilogue, and every rank gets what the
//            consumers read: out, or out8, scales and mirror, of all rows
enum class ResidualLayout : uint8_t { kFull = 0, kSharded = 1 };

// Rows [first, last).
struct RowRange {
  uint64_t first;
  uint64_t last;
};
// The rows of a rank, neighbours; the first ranks take the odd ones, and with fewer rows than ranks
// the last ranks have none.
constexpr RowRange OwnedRows(uint64_t tokens, uint32_t world_size, uint32_t rank) {
  const uint64_t each = tokens / world_size, extra = tokens % world_size;
  const uint64_t first = each * rank + (rank < extra ? rank : extra);
  return {first, first + each + (rank < extra ? 1 : 0)};
}

inline constexpr uint32_t kHiddenMin = 8;
inline constexpr uint32_t kHiddenMax = 16384;
inline constexpr uint32_t kHiddenMultiple = 8;
inline constexpr uint32_t kScaleGroup = 128;
inline constexpr float kEpsMin = 0x1p-64f;

// Largest finite value of a format: 448 or 240; 0 for kNone.
constexpr float QuantMax(Quant quant) {
  return quant == Quant::kE4m3fn ? 448.0f : quant == Quant::kE4m3fnuz ? 240.0f : 0.0f;
}
std::string_view Name(Epilogue epilogue);      // "none", "rms_norm"
std::string_view Name(Quant quant);            // "none", "e4m3fn", "e4m3fnuz"
std::string_view Name(ResidualLayout layout);  // "full", "sharded"
std::optional<Epilogue> ParseEpilogue(std::string_view name);
std::optional<Quant> ParseQuant(std::string_view name);

// Operands and options of Epilogue::kRmsNorm; D is the operation's dtype (fp16 or bf16), and its
// count is tokens * hidden. Arrays are by rank. All tensors are contiguous, row-major. Sharded:
// residual and residual_out are [OwnedRows, hidden], and not looked at (may be null) of a rank
// without rows.
//
// The sum of a sharded row: the owner's contribution as it is, the others' after the codec, rounded
// once (no second quantization as in two_shot). Groups of the codec lie on the flat tensor, as
// always; one that reaches over the end of the owner's rows is sent whole.
struct RmsNormParams {
  uint64_t tokens = 0;
  uint32_t hidden = 0;
  float eps = 0;
  bool gemma = false;  // gain 1 + weight
  Dtype weight_dtype = Dtype::kBf16;
  Quant quant = Quant::kNone;
  uint32_t scale_group = 0;  // elements of a scale: 0 (the row) or 128
  float divisor = 0;         // 0: QuantMax(quant)
  ResidualLayout residual_layout = ResidualLayout::kFull;
  const void* residual[kWorldSizeMax] = {};  // [tokens, hidden] D; null (on all ranks): +0
  const void* weight[kWorldSizeMax] = {};    // [hidden] weight_dtype
  void* residual_out[kWorldSizeMax] = {};    // [tokens, hidden] D; may be residual
  void* out[kWorldSizeMax] = {};             // [tokens, hidden] D, without quant; may be the input
  uint8_t* out8[kWorldSizeMax] = {};         // [tokens, hidden], with quant
  float* scales[kWorldSizeMax] = {};         // [tokens] or [tokens, ceil(hidden / 128)], with quant
  void* mirror[kWorldSizeMax] = {};          // like out, with quant, optional; may be the input
};

}  // namespace qrd
