// SPDX-License-Identifier: Apache-2.0
#include "client/src/rms_norm_call.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "client/core/error.h"
#include "client/src/arguments.h"

namespace qrd::client {
namespace {

constexpr uint32_t kHiddenMin = 8, kHiddenMax = 16384, kHiddenMultiple = 8;
constexpr uint32_t kScaleGroup = 128;
constexpr float kEpsMin = 0x1p-64f;
constexpr size_t kNormBytesMin = offsetof(qrd_rms_norm, mirror) + sizeof(void*);

size_t DtypeBytes(qrd_dtype dtype) { return dtype == QRD_FP32 ? 4 : 2; }

qrd_status CheckShape(qrd_dtype dtype, const qrd_rms_norm& n) {
  if (dtype != QRD_FP16 && dtype != QRD_BF16) {
    return Fail(QRD_INVALID_ARGUMENT, "dtype: %d, want QRD_FP16 (1) or QRD_BF16 (2) with RMSNorm",
                static_cast<int>(dtype));
  }
  if (n.tokens < 1) return Fail(QRD_INVALID_ARGUMENT, "norm.tokens: 0, want at least 1");
  if (n.hidden < kHiddenMin || n.hidden > kHiddenMax || n.hidden % kHiddenMultiple != 0) {
    return Fail(QRD_INVALID_ARGUMENT, "norm.hidden: %u, want a multiple of %u from %u to %u",
                n.hidden, kHiddenMultiple, kHiddenMin, kHiddenMax);
  }
  const uint64_t tokens_max = uint64_t{INT64_MAX} / 4 / n.hidden;
  if (n.tokens > tokens_max) {
    return Fail(QRD_INVALID_ARGUMENT,
                "norm.tokens: %" PRIu64 ", want at most %" PRIu64 " with hidden %u", n.tokens,
                tokens_max, n.hidden);
  }
  return QRD_OK;
}

qrd_status CheckOptions(qrd_dtype dtype, const qrd_rms_norm& n) {
  if (!std::isfinite(n.eps) || n.eps < kEpsMin) {
    return Fail(QRD_INVALID_ARGUMENT, "norm.eps: %g, want a finite number of at least 2^-64",
                static_cast<double>(n.eps));
  }
  if (n.weight_dtype != dtype && n.weight_dtype != QRD_FP32) {
    return Fail(QRD_INVALID_ARGUMENT, "norm.weight_dtype: %d, want %d (dtype) or QRD_FP32 (3)",
                static_cast<int>(n.weight_dtype), static_cast<int>(dtype));
  }
  if (n.quant != QRD_QUANT_NONE && n.quant != QRD_E4M3FN && n.quant != QRD_E4M3FNUZ) {
    return Fail(QRD_INVALID_ARGUMENT,
                "norm.quant: %d, want QRD_QUANT_NONE (0), QRD_E4M3FN (1) or QRD_E4M3FNUZ (2)",
                static_cast<int>(n.quant));
  }
  if (n.residual_layout != QRD_RESIDUAL_FULL && n.residual_layout != QRD_RESIDUAL_SHARDED) {
    return Fail(QRD_INVALID_ARGUMENT,
                "norm.residual_layout: %d, want QRD_RESIDUAL_FULL (0) or QRD_RESIDUAL_SHARDED (1)",
                static_cast<int>(n.residual_layout));
  }
  const bool quant = n.quant != QRD_QUANT_NONE;
  if (n.scale_group != 0 && (n.scale_group != kScaleGroup || !quant)) {
    return Fail(QRD_INVALID_ARGUMENT, "norm.scale_group: %u, want 0%s", n.scale_group,
                quant ? " or 128" : " without quant");
  }
  const float largest = n.quant == QRD_E4M3FN ? 448.0f : n.quant == QRD_E4M3FNUZ ? 240.0f : 0.0f;
  // NaN fails this too; -0 is another number than 0 to the daemon.
  if (!(n.divisor >= 0 && n.divisor <= largest) || std::signbit(n.divisor)) {
    const auto value = static_cast<double>(n.divisor);
    if (!quant) return Fail(QRD_INVALID_ARGUMENT, "norm.divisor: %g, want 0 without quant", value);
    return Fail(QRD_INVALID_ARGUMENT, "norm.divisor: %g, want 0 to %g, 0 for the largest", value,
                static_cast<double>(largest));
  }
  return QRD_OK;
}

void ListOperands(const void* input, const RankPlace& place, RmsNormCall* call) {
  const qrd_rms_norm& n = call->norm;
  const size_t element = DtypeBytes(call->dtype);
  const size_t count = n.tokens * n.hidden;
  const bool sharded = n.residual_layout == QRD_RESIDUAL_SHARDED;
  const size_t residual_count = sharded ? OwnedRowsOf(n.tokens, place).count * n.hidden : count;
  call->has_rows = residual_count != 0;
  const size_t groups = n.scale_group == 0 ? 1 : (n.hidden + kScaleGroup - 1) / kScaleGroup;
  const auto set = [&](RmsNormCall::Index index, const char* name, const void* ptr, size_t bytes,
                       bool read, bool written) {
    call->operands[index] = {name, const_cast<void*>(ptr), ptr == nullptr ? 0 : bytes, read,
                             written};
  };
  set(RmsNormCall::kInput, "input", input, count * element, true, false);
  set(RmsNormCall::kResidual, "norm.residual", n.residual, residual_count * element, true, false);
  set(RmsNormCall::kWeight, "norm.weight", n.weight, n.hidden * DtypeBytes(n.weight_dtype), true,
      false);
  set(RmsNormCall::kResidualOut, "norm.residual_out", n.residual_out, residual_count * element,
      false, true);
  set(RmsNormCall::kOut, "norm.out", n.out, count * element, false, true);
  set(RmsNormCall::kOut8, "norm.out8", n.out8, count, false, true);
  set(RmsNormCall::kScales, "norm.scales", n.scales, n.tokens * groups * sizeof(float), false,
      true);
  set(RmsNormCall::kMirror, "norm.mirror", n.mirror, count * element, false, true);
}

qrd_status CheckPresence(const RmsNormCall& call) {
  const bool quant = call.norm.quant != QRD_QUANT_NONE;
  const auto check = [&](RmsNormCall::Index index, bool wanted, const char* when) {
    const RmsNormOperand& operand = call.operands[index];
    if ((operand.ptr != nullptr) == wanted) return QRD_OK;
    return Fail(QRD_INVALID_ARGUMENT, "%s: %s, want %s%s", operand.name,
                wanted ? "NULL" : "not NULL", wanted ? "a tensor" : "NULL", when);
  };
  qrd_status status = check(RmsNormCall::kInput, true, "");
  if (status == QRD_OK) status = check(RmsNormCall::kWeight, true, "");
  if (status == QRD_OK && call.has_rows) status = check(RmsNormCall::kResidualOut, true, "");
  if (status == QRD_OK) {
    status = check(RmsNormCall::kOut, !quant,
                   quant ? " with quant (the 16-bit copy is mirror)" : " without quant");
  }
  const char* when = quant ? " with quant" : " without quant";
  if (status == QRD_OK) status = check(RmsNormCall::kOut8, quant, when);
  if (status == QRD_OK) status = check(RmsNormCall::kScales, quant, when);
  if (status == QRD_OK && !quant) status = check(RmsNormCall::kMirror, false, when);
  return status;
}

qrd_status CheckAddresses(const RmsNormCall& call) {
  for (int i = 0; i < static_cast<int>(kRmsNormOperandsMax); ++i) {
    const RmsNormOperand& operand = call.operands[static_cast<size_t>(i)];
    if (operand.bytes == 0) continue;
    if (qrd_status status = CheckRange(operand.name, operand.ptr, operand.bytes);
        status != QRD_OK) {
      return status;
    }
    const uintptr_t alignment = i == RmsNormCall::kOut8 ? 8 : i == RmsNormCall::kScales ? 4 : 16;
    if (reinterpret_cast<uintptr_t>(operand.ptr) % alignment != 0) {
      return Fail(QRD_INVALID_ARGUMENT, "%s: %p is not aligned to %zu bytes", operand.name,
                  operand.ptr, static_cast<size_t>(alignment));
    }
  }
  return QRD_OK;
}

// The pairs of the contract: the same start and size.
bool MayShare(int first, int second) {
  return (first == RmsNormCall::kResidual && second == RmsNormCall::kResidualOut) ||
         (first == RmsNormCall::kInput &&
          (second == RmsNormCall::kOut || second == RmsNormCall::kMirror));
}

qrd_status CheckOverlap(RmsNormCall* call) {
  for (int second = 0; second < static_cast<int>(kRmsNormOperandsMax); ++second) {
    RmsNormOperand& b = call->operands[static_cast<size_t>(second)];
    for (int first = 0; first < second; ++first) {
      const RmsNormOperand& a = call->operands[static_cast<size_t>(first)];
      if (a.bytes == 0 || b.bytes == 0) continue;
      const auto x = reinterpret_cast<uintptr_t>(a.ptr), y = reinterpret_cast<uintptr_t>(b.ptr);
      if (x >= y + b.bytes || y >= x + a.bytes) continue;
      if (x == y && a.bytes == b.bytes && b.same_as < 0) b.same_as = first;
      if (!a.written && !b.written) continue;  // inputs may overlap
      if (x == y && MayShare(first, second)) continue;
      return Fail(
          QRD_INVALID_ARGUMENT,
          "%s: %p, %zu bytes, overlaps %s: %p, %zu bytes; only residual_out may be residual, "
          "and out or mirror may be input",
          b.name, b.ptr, b.bytes, a.name, a.ptr, a.bytes);
    }
  }
  return QRD_OK;
}

}  // namespace

OwnedRows OwnedRowsOf(uint64_t tokens, const RankPlace& place) {
  const uint64_t each = tokens / place.world_size, extra = tokens % place.world_size;
  return {each * place.rank + std::min<uint64_t>(place.rank, extra),
          each + (place.rank < extra ? 1 : 0)};
}

qrd_status CheckRmsNorm(const void* input, qrd_dtype dtype, const qrd_rms_norm* norm,
                        const RankPlace& place, RmsNormCall* call) {
  if (norm == nullptr) return Fail(QRD_INVALID_ARGUMENT, "norm: NULL");
  if (qrd_status status =
          CheckStruct("norm", norm, norm->struct_bytes, kNormBytesMin, sizeof(qrd_rms_norm));
      status != QRD_OK) {
    return status;
  }
  // A caller of an older header has fewer fields: the others are as in QRD_RMS_NORM_INIT.
  call->norm = QRD_RMS_NORM_INIT;
  std::memcpy(&call->norm, norm, std::min(norm->struct_bytes, sizeof(qrd_rms_norm)));
  call->dtype = dtype;
  qrd_status status = CheckShape(dtype, call->norm);
  if (status == QRD_OK) status = CheckOptions(dtype, call->norm);
  if (status != QRD_OK) return status;
  ListOperands(input, place, call);
  status = CheckPresence(*call);
  if (status == QRD_OK) status = CheckAddresses(*call);
  return status == QRD_OK ? CheckOverlap(call) : status;
}

void FillDescriptor(const RmsNormCall& call, const RmsNormOperands& operands,
                    shm::Descriptor* descriptor) {
  const qrd_rms_norm& n = call.norm;
  std::memset(static_cast<void*>(descriptor), 0, sizeof(*descriptor));
  descriptor->kind = shm::Kind::kAllReduce;
  descriptor->dtype = static_cast<shm::Dtype>(call.dtype);
  descriptor->op = shm::ReduceOp::kSum;
  descriptor->count = n.tokens * n.hidden;
  descriptor->epilogue = 1;
  descriptor->input = operands.buffers[RmsNormCall::kInput].tensor;
  descriptor->output = operands.buffers[RmsNormCall::kOut].tensor;
  shm::RmsNorm& r = descriptor->rms_norm;
  r.residual = operands.buffers[RmsNormCall::kResidual].tensor;
  r.weight = operands.buffers[RmsNormCall::kWeight].tensor;
  r.residual_out = operands.buffers[RmsNormCall::kResidualOut].tensor;
  r.out8 = operands.buffers[RmsNormCall::kOut8].tensor;
  r.scales = operands.buffers[RmsNormCall::kScales].tensor;
  r.mirror = operands.buffers[RmsNormCall::kMirror].tensor;
  r.tokens = n.tokens;
  r.hidden = n.hidden;
  r.eps_bits = std::bit_cast<uint32_t>(n.eps);
  r.divisor_bits = std::bit_cast<uint32_t>(n.divisor);
  r.scale_group = n.scale_group;
  r.quant = static_cast<uint8_t>(n.quant);
  r.gemma = n.gemma != 0 ? 1 : 0;
  r.weight_dtype = static_cast<uint8_t>(n.weight_dtype);
  r.operands =
      static_cast<uint8_t>((n.residual != nullptr ? 1 : 0) | (n.mirror != nullptr ? 2 : 0));
  r.residual_layout = static_cast<uint8_t>(n.residual_layout);
}

}  // namespace qrd::client
