// SPDX-License-Identifier: Apache-2.0
// The codecs that convert by an instruction where a device has one, with stand-ins for it.
#include "emulated_kernels-inl.h"

namespace qrd::gpu {

QRD_EMULATED_INSTANCE(kFp8)
QRD_EMULATED_INSTANCE(kFp4)

const EmulatedKernels& EmulatedKernelsOf(Codec codec, Dtype dtype) {
  return codec == Codec::kFp8 ? EmulatedOf<Codec::kFp8>(dtype) : EmulatedOf<Codec::kFp4>(dtype);
}

std::span<const Codec> EmulatedCodecs() {
  static constexpr Codec kCodecs[] = {Codec::kFp8, Codec::kFp4};
  return kCodecs;
}

}  // namespace qrd::gpu
