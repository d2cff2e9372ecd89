// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/rms_norm_operands.h"

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "daemon/session/descriptor_validation.h"
#include "kernels/validate_epilogue.h"

namespace qrd {
namespace {

constexpr uint8_t kHasResidual = 1, kHasMirror = 2;

template <typename... Args>
absl::Status Invalid(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

absl::Status CheckBytes(const shm::RmsNorm& n) {
  if (n.quant > static_cast<uint8_t>(Quant::kE4m3fnuz)) {
    return Invalid("rms_norm.quant is %d: want 0 (none), 1 (e4m3fn) or 2 (e4m3fnuz)", n.quant);
  }
  if (n.gemma > 1) return Invalid("rms_norm.gemma is %d: want 0 or 1", n.gemma);
  if (n.weight_dtype < 1 || n.weight_dtype > 3) {
    return Invalid("rms_norm.weight_dtype is %d: want 1 (fp16), 2 (bf16) or 3 (fp32)",
                   n.weight_dtype);
  }
  if (n.operands > (kHasResidual | kHasMirror)) {
    return Invalid("rms_norm.operands is %d: want 0 to 3", n.operands);
  }
  if (n.residual_layout > static_cast<uint8_t>(ResidualLayout::kSharded)) {
    return Invalid("rms_norm.residual_layout is %d: want 0 (full) or 1 (sharded)",
                   n.residual_layout);
  }
  for (size_t i = 0; i < sizeof(n.reserved); ++i) {
    if (n.reserved[i] != 0) return Invalid("rms_norm.reserved[%d] is %d: want 0", i, n.reserved[i]);
  }
  return absl::OkStatus();
}

// The contract's checks speak of ranks; here there is one.
absl::Status Check(const LaunchParams& params, uint32_t rank, uint32_t world_size) {
  const absl::Status status = ValidateRmsNormOfRank(params, rank, world_size);
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrReplaceAll(std::string(status.message()), {{"[0]", ""}}));
}

// Tensors whose bytes can be counted without overflow. Others fail in Check().
bool HasShape(const LaunchParams& p) {
  const RmsNormParams& n = p.rms_norm;
  return n.hidden != 0 && n.hidden <= kHiddenMax &&
         n.tokens <= uint64_t{std::numeric_limits<int64_t>::max()} / 4 / n.hidden &&
         p.count == n.tokens * n.hidden;
}

class Reader {
 public:
  Reader(RmsNormOperands* operands, ArenaTable* arenas) : operands_(operands), arenas_(arenas) {}

  // The tensor's address; null if it is not there.
  std::byte* Find(const char* name, const shm::Tensor& tensor, bool there, uint64_t elements,
                  uint64_t element_bytes, const char* count_name = "count") {
    if (!status.ok()) return nullptr;
    if (!there) {
      if (tensor.arena_id != 0 || tensor.generation != 0 || tensor.offset_bytes != 0) {
        status = Invalid("%s is given (arena_id %d): want 0, it is not an operand", name,
                         tensor.arena_id);
      }
      return nullptr;
    }
    absl::StatusOr<ArenaTable::Pin> pin =
        CheckTensor(name, tensor, elements, element_bytes, arenas_, count_name);
    if (!pin.ok()) {
      status = pin.status();
      return nullptr;
    }
    std::byte* address = pin->data() + tensor.offset_bytes;
    operands_->pins[next_pin_++] = *std::move(pin);
    return address;
  }

  absl::Status status;

 private:
  RmsNormOperands* const operands_;
  ArenaTable* const arenas_;
  size_t next_pin_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RmsNormOperands>> ReadRmsNorm(const shm::Descriptor& d,
                                                             uint32_t rank, uint32_t world_size,
                                                             ArenaTable* arenas) {
  const shm::RmsNorm& from = d.rms_norm;
  if (absl::Status status = CheckBytes(from); !status.ok()) return status;
  auto operands = std::make_unique<RmsNormOperands>();
  LaunchParams launch;
  launch.dtype = d.dtype;
  launch.op = d.op;
  launch.count = d.count;
  launch.world_size = 1;
  launch.epilogue = Epilogue::kRmsNorm;
  RmsNormParams& n = launch.rms_norm;
  n.tokens = from.tokens;
  n.hidden = from.hidden;
  n.eps = std::bit_cast<float>(from.eps_bits);
  n.gemma = from.gemma != 0;
  n.weight_dtype = static_cast<Dtype>(from.weight_dtype);
  n.quant = static_cast<Quant>(from.quant);
  n.scale_group = from.scale_group;
  n.divisor = std::bit_cast<float>(from.divisor_bits);
  n.residual_layout = static_cast<ResidualLayout>(from.residual_layout);
  if (!HasShape(launch)) {
    const absl::Status status = Check(launch, rank, world_size);
    return status.ok() ? Invalid("rms_norm.tokens is %d: too large", n.tokens) : status;
  }
  const bool quant = n.quant != Quant::kNone;
  const uint64_t element_bytes = DtypeBytes(d.dtype);
  const uint64_t scales = n.scale_group == kScaleGroup
                              ? n.tokens * ((n.hidden + uint64_t{kScaleGroup} - 1) / kScaleGroup)
                              : n.tokens;
  uint64_t residual_count = d.count;
  if (n.residual_layout == ResidualLayout::kSharded) {
    const RowRange rows = OwnedRows(n.tokens, world_size, rank);
    residual_count = (rows.last - rows.first) * n.hidden;
    operands->has_rows = residual_count != 0;
  }
  const bool has_rows = operands->has_rows;
  const char* const residual_name =
      n.residual_layout == ResidualLayout::kSharded ? "own rows * hidden" : "count";
  Reader reader(operands.get(), arenas);
  launch.inputs[0] = reader.Find("input", d.input, true, d.count, element_bytes);
  n.residual[0] =
      reader.Find("residual", from.residual, has_rows && (from.operands & kHasResidual) != 0,
                  residual_count, element_bytes, residual_name);
  n.weight[0] =
      reader.Find("weight", from.weight, true, n.hidden, DtypeBytes(n.weight_dtype), "hidden");
  n.residual_out[0] = reader.Find("residual_out", from.residual_out, has_rows, residual_count,
                                  element_bytes, residual_name);
  n.out[0] = reader.Find("output", d.output, !quant, d.count, element_bytes);
  n.out8[0] = reinterpret_cast<uint8_t*>(reader.Find("out8", from.out8, quant, d.count, 1));
  n.scales[0] = reinterpret_cast<float*>(
      reader.Find("scales", from.scales, quant, scales, sizeof(float), "the number of scales"));
  n.mirror[0] =
      reader.Find("mirror", from.mirror, (from.operands & kHasMirror) != 0, d.count, element_bytes);
  if (!reader.status.ok()) return reader.status;
  if (absl::Status status = Check(launch, rank, world_size); !status.ok()) return status;
  operands->input = launch.inputs[0];
  operands->params = n;
  return operands;
}

void AddRank(const RmsNormOperands& from, uint32_t rank, RmsNormParams* to) {
  const RmsNormParams& n = from.params;
  if (rank == 0) *to = n;
  to->residual[rank] = n.residual[0];
  to->weight[rank] = n.weight[0];
  to->residual_out[rank] = n.residual_out[0];
  to->out[rank] = n.out[0];
  to->out8[rank] = n.out8[0];
  to->scales[rank] = n.scales[0];
  to->mirror[rank] = n.mirror[0];
}

}  // namespace qrd
