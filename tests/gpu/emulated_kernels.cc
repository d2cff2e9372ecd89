// SPDX-License-Identifier: Apache-2.0
#include "emulated_kernels.h"

namespace qrd::gpu {

// One specialisation a codec, each in a generated file.
template <Codec kCodec>
const EmulatedKernels& EmulatedOf(Dtype dtype);

std::span<const Codec> EmulatedCodecs() { return kAllCodecs; }

const EmulatedKernels& EmulatedKernelsOf(Codec codec, Dtype dtype) {
  switch (codec) {
    case Codec::kNone:
      return EmulatedOf<Codec::kNone>(dtype);
    case Codec::kFp8:
      return EmulatedOf<Codec::kFp8>(dtype);
    case Codec::kInt8:
      return EmulatedOf<Codec::kInt8>(dtype);
    case Codec::kInt6:
      return EmulatedOf<Codec::kInt6>(dtype);
    case Codec::kInt4:
      return EmulatedOf<Codec::kInt4>(dtype);
    case Codec::kFp4:
      return EmulatedOf<Codec::kFp4>(dtype);
    case Codec::kInt3:
      return EmulatedOf<Codec::kInt3>(dtype);
    case Codec::kLp4:
      return EmulatedOf<Codec::kLp4>(dtype);
    case Codec::kLp3:
      return EmulatedOf<Codec::kLp3>(dtype);
    case Codec::kLp3c:
      return EmulatedOf<Codec::kLp3c>(dtype);
    case Codec::kLp2:
      return EmulatedOf<Codec::kLp2>(dtype);
  }
  return EmulatedOf<Codec::kNone>(dtype);
}

}  // namespace qrd::gpu
