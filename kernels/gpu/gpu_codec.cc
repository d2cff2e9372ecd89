// SPDX-License-Identifier: Apache-2.0
// Loading of kernels, names of devices, and encode and decode as operations of their own.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

// Enough blocks to fill any device; kernels stride over the rest.
constexpr uint32_t kCodecGridBlocks = 4096;

absl::Status LoadKernel(const void* kernel, bool is_collective, Codec codec, Dtype dtype) {
  hipFuncAttributes attributes;
  hipError_t error = hipFuncGetAttributes(&attributes, kernel);
  if (error != hipSuccess) return FromRuntime(error, "hipFuncGetAttributes");
  if (!is_collective) return absl::OkStatus();
  int blocks = 0;
  error = hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBlockThreads, 0);
  if (error != hipSuccess)
    return FromRuntime(error, "hipOccupancyMaxActiveBlocksPerMultiprocessor");
  if (blocks < static_cast<int>(BlocksPerProcessor(codec))) {
    return absl::InternalError(
        absl::StrCat("collective ", std::string(Name(codec)), " ", std::string(Name(dtype)), ": ",
                     blocks, " blocks fit on a multiprocessor, want ", BlocksPerProcessor(codec)));
  }
  return absl::OkStatus();
}

absl::Status LaunchCodec(const void* kernel, CodecArgs args, uint64_t count, hipStream_t stream) {
  if (count == 0) return absl::OkStatus();
  args.count = count;
  const auto bits =
      reinterpret_cast<uintptr_t>(args.values) | reinterpret_cast<uintptr_t>(args.wire);
  args.aligned = bits % 16 == 0;
  const uint64_t tiles_of_block = 4;
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(
      (TileCount(count) + tiles_of_block - 1) / tiles_of_block, kCodecGridBlocks));
  void* arguments[] = {&args};
  return FromRuntime(
      hipLaunchKernel(kernel, dim3(blocks), dim3(kBlockThreads), arguments, 0, stream),
      "hipLaunchKernel");
}

absl::Status NotBuilt(Codec codec, Dtype dtype) {
  return absl::UnimplementedError(absl::StrCat("codec = ", static_cast<uint32_t>(codec),
                                               ", dtype = ", static_cast<uint32_t>(dtype),
                                               ": not built into this gpu backend"));
}

}  // namespace

absl::Status FromRuntime(hipError_t error, const char* call) {
  if (error == hipSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", hipGetErrorString(error)));
}

absl::StatusOr<std::string> DeviceTarget(int device) {
  hipDeviceProp_t properties;
  const hipError_t error = hipGetDeviceProperties(&properties, device);
  if (error != hipSuccess) return FromRuntime(error, "hipGetDeviceProperties");
#if defined(QRD_GPU_CUDA)
  return absl::StrCat("sm_", properties.major, properties.minor);
#else
  const std::string name = properties.gcnArchName;
  return name.substr(0, name.find(':'));
#endif
}

absl::Status LoadKernels(std::span<const int> devices) {
  int before = 0;
  if (const hipError_t error = hipGetDevice(&before); error != hipSuccess) {
    return FromRuntime(error, "hipGetDevice");
  }
  absl::Status status;
  for (const int device : devices) {
    status.Update(FromRuntime(hipSetDevice(device), "hipSetDevice"));
    for (const Codec codec : kAllCodecs) {
      for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
        const KernelTable* table = KernelsOf(codec, dtype);
        if (table == nullptr) continue;
        for (const void* kernel : {table->one_shot, table->two_shot}) {
          status.Update(LoadKernel(kernel, true, codec, dtype));
        }
        for (const void* kernel :
             {table->encode, table->encode_fp32, table->decode, table->decode_fp32}) {
          status.Update(LoadKernel(kernel, false, codec, dtype));
        }
        const RmsNormKernelTable* fused = RmsNormKernelsOf(codec, dtype);
        if (fused == nullptr) continue;
        static_assert(sizeof(RmsNormKernelTable) == 6 * sizeof(void*));  // all of them
        for (const void* kernel :
             {fused->one_shot, fused->two_shot, fused->scatter, fused->sum_to_wire}) {
          if (kernel != nullptr) status.Update(LoadKernel(kernel, true, codec, dtype));
        }
        for (const void* kernel : {fused->wire_rows, fused->wide_wire_rows}) {
          status.Update(LoadKernel(kernel, false, codec, dtype));
        }
      }
    }
    for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
      const RowsKernelTable& rows = *RowsKernelsOf(dtype);
      static_assert(sizeof(RowsKernelTable) == 5 * sizeof(void*));  // all of them
      for (const void* kernel : {rows.add_rms_norm, rows.norm, rows.quantize}) {
        status.Update(LoadKernel(kernel, false, Codec::kNone, dtype));
      }
      for (const void* kernel : {rows.owned_rows, rows.owned_sums}) {
        status.Update(LoadKernel(kernel, true, Codec::kNone, dtype));
      }
    }
  }
  status.Update(FromRuntime(hipSetDevice(before), "hipSetDevice"));
  return status;
}

absl::Status LaunchEncode(Codec codec, Dtype dtype, bool from_fp32, const void* x, uint64_t count,
                          std::byte* wire, hipStream_t stream) {
  const KernelTable* table = KernelsOf(codec, dtype);
  if (table == nullptr) return NotBuilt(codec, dtype);
  CodecArgs args = {const_cast<void*>(x), reinterpret_cast<uint8_t*>(wire), count, false};
  return LaunchCodec(from_fp32 ? table->encode_fp32 : table->encode, args, count, stream);
}

absl::Status LaunchDecode(Codec codec, Dtype dtype, bool to_fp32, const std::byte* wire,
                          uint64_t count, void* y, hipStream_t stream) {
  const KernelTable* table = KernelsOf(codec, dtype);
  if (table == nullptr) return NotBuilt(codec, dtype);
  CodecArgs args = {y, reinterpret_cast<uint8_t*>(const_cast<std::byte*>(wire)), count, false};
  return LaunchCodec(to_fp32 ? table->decode_fp32 : table->decode, args, count, stream);
}

}  // namespace qrd::gpu
