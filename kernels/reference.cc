// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference.h"

namespace qrd {

void ReferenceEncode(Codec, Dtype, const void*, uint64_t, std::byte*) {}
void ReferenceEncodeFp32(Codec, Dtype, const float*, uint64_t, std::byte*) {}
void ReferenceDecode(Codec, Dtype, const std::byte*, uint64_t, float*) {}
void ReferenceRoundToDtype(Dtype, const float*, uint64_t, void*) {}
void ReferenceWidenToFp32(Dtype, const void*, uint64_t, float*) {}
uint16_t ReferenceRoundToFp16(float) { return 0; }
uint16_t ReferenceRoundToBf16(float) { return 0; }
float ReferenceWidenFp16(uint16_t) { return 0; }
float ReferenceWidenBf16(uint16_t) { return 0; }
void ReferenceAllReduce(Codec, Algorithm, Dtype, ReduceOp, uint32_t, uint64_t, const void* const*,
                        void*) {}

}  // namespace qrd
