// SPDX-License-Identifier: Apache-2.0
// The steps after the sum as operations of their own.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/gpu/plan.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

// Blocks of a launch; they stride over the rest.
constexpr uint64_t kRowsGridBlocks = 65536;

absl::Status LaunchBlocks(const void* kernel, RowsArgs args, uint64_t blocks, hipStream_t stream) {
  void* arguments[] = {&args};
  return FromRuntime(hipLaunchKernel(kernel, dim3(static_cast<uint32_t>(blocks)),
                                     dim3(kBlockThreads), arguments, 0, stream),
                     "hipLaunchKernel");
}

absl::Status LaunchRows(const void* kernel, RowsArgs args, hipStream_t stream) {
  int device = 0, processors = 0;
  QRD_RETURN_IF_RUNTIME_ERROR(hipGetDevice(&device));
  QRD_RETURN_IF_RUNTIME_ERROR(
      hipDeviceGetAttribute(&processors, hipDeviceAttributeMultiprocessorCount, device));
  const uint64_t tokens = args.norm.tokens;
  // Two rows at a time once there are enough for all blocks that run at once.
  const auto resident = static_cast<uint64_t>(processors) * kRowsBlocks;
  args.pass_rows = tokens * args.local_count <= 2 * resident ? 1 : 2;
  const uint64_t blocks = std::clamp<uint64_t>((tokens + args.pass_rows - 1) / args.pass_rows, 1,
                                               kRowsGridBlocks / args.local_count);
  return LaunchBlocks(kernel, args, blocks * args.local_count, stream);
}

RowsArgs ArgsOf(const RmsNormParams& params, uint32_t ranks) {
  RowsArgs args = {};
  args.norm = MakeRmsNormArgs(params, ranks);
  args.local_count = ranks;
  for (uint32_t r = 0; r < ranks; ++r) args.local[r] = static_cast<uint8_t>(r);
  return args;
}

absl::Status CheckRanks(uint64_t ranks) {
  if (ranks >= 1 && ranks <= kWorldSizeMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("ranks = ", ranks, ": want 1 to ", kWorldSizeMax));
}

absl::Status NotBuilt(Dtype dtype) {
  return absl::UnimplementedError(
      absl::StrCat("dtype = ", static_cast<uint32_t>(dtype), ": rows have kernels for fp16, bf16"));
}

}  // namespace

absl::Status LaunchAddRmsNorm(Dtype dtype, const RmsNormParams& params,
                              std::span<const void* const> reduced, hipStream_t stream) {
  const RowsKernelTable* kernels = RowsKernelsOf(dtype);
  if (kernels == nullptr) return NotBuilt(dtype);
  if (absl::Status status = CheckRanks(reduced.size()); !status.ok()) return status;
  RowsArgs args = ArgsOf(params, static_cast<uint32_t>(reduced.size()));
  std::ranges::copy(reduced, args.reduced);
  return LaunchRows(kernels->add_rms_norm, args, stream);
}

absl::Status LaunchNorm(Dtype dtype, const RmsNormReduceArgs& args, hipStream_t stream) {
  const RowsKernelTable* kernels = RowsKernelsOf(dtype);
  if (kernels == nullptr) return NotBuilt(dtype);
  return LaunchRows(kernels->norm, RowsOf(args), stream);
}

absl::Status LaunchWireRows(Codec codec, Dtype dtype, const RmsNormReduceArgs& args,
                            const uint8_t* wire, hipStream_t stream) {
  const RmsNormKernelTable* kernels = RmsNormKernelsOf(codec, dtype);
  if (kernels == nullptr) return NotBuilt(dtype);
  RowsArgs rows = RowsOf(args);
  rows.wire = wire;
  const void* kernel =
      rows.norm.hidden <= kNarrowHidden ? kernels->wire_rows : kernels->wide_wire_rows;
  return LaunchBlocks(kernel, rows, std::min(rows.norm.tokens * rows.local_count, kRowsGridBlocks),
                      stream);
}

absl::Status LaunchQuantizeFp8(Dtype dtype, const RmsNormParams& params, uint32_t ranks,
                               hipStream_t stream) {
  const RowsKernelTable* kernels = RowsKernelsOf(dtype);
  if (kernels == nullptr) return NotBuilt(dtype);
  if (absl::Status status = CheckRanks(ranks); !status.ok()) return status;
  if (params.quant == Quant::kNone) {
    return absl::InvalidArgumentError("quant = none: want e4m3fn or e4m3fnuz");
  }
  return LaunchRows(kernels->quantize, ArgsOf(params, ranks), stream);
}

}  // namespace qrd::gpu
