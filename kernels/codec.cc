// SPDX-License-Identifier: Apache-2.0
#include "kernels/codec.h"

#include <array>

#include "kernels/codec_kernels.h"
#include "kernels/reference.h"

namespace qrd {
namespace {

template <Codec codec>
constexpr CodecKernels ScalarKernels() {
  return {
      [](Dtype dtype, const float* x, uint32_t count, std::byte* wire) {
        ReferenceEncodeFp32(codec, dtype, x, count, wire);
      },
      [](Dtype dtype, const std::byte* wire, uint32_t count, float* y) {
        ReferenceDecode(codec, dtype, wire, count, y);
      },
      [](Dtype dtype, const float* x, uint32_t count, float* y) {
        std::array<std::byte, kTileElements * 4> wire;
        ReferenceEncodeFp32(codec, dtype, x, count, wire.data());
        ReferenceDecode(codec, dtype, wire.data(), count, y);
      }};
}

constexpr CodecKernels kKernels[kCodecCount] = {
    ScalarKernels<Codec::kNone>(), ScalarKernels<Codec::kFp8>(),  ScalarKernels<Codec::kInt8>(),
    ScalarKernels<Codec::kInt6>(), ScalarKernels<Codec::kInt4>(), ScalarKernels<Codec::kFp4>(),
    ScalarKernels<Codec::kInt3>(), ScalarKernels<Codec::kLp4>(),  ScalarKernels<Codec::kLp3>(),
    ScalarKernels<Codec::kLp3c>(), ScalarKernels<Codec::kLp2>()};

}  // namespace

const CodecKernels& KernelsFor(Codec codec) { return kKernels[static_cast<size_t>(codec)]; }

void Encode(Codec codec, Dtype dtype, const void* x, uint64_t count, std::byte* wire) {
  ReferenceEncode(codec, dtype, x, count, wire);
}
void EncodeFp32(Codec codec, Dtype dtype, const float* x, uint64_t count, std::byte* wire) {
  ReferenceEncodeFp32(codec, dtype, x, count, wire);
}
void Decode(Codec codec, Dtype dtype, const std::byte* wire, uint64_t count, float* y) {
  ReferenceDecode(codec, dtype, wire, count, y);
}
void RoundToDtype(Dtype dtype, const float* y, uint64_t count, void* out) {
  ReferenceRoundToDtype(dtype, y, count, out);
}
void WidenToFp32(Dtype dtype, const void* x, uint64_t count, float* y) {
  ReferenceWidenToFp32(dtype, x, count, y);
}
const char* SimdTargetName() { return "SCALAR"; }

}  // namespace qrd
