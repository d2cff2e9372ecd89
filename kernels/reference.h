// SPDX-License-Identifier: Apache-2.0
// The scalar program that defines the wire format: plain loops over the tables of codec_table.h,
// independent of the SIMD code. Every backend is tested against it, so it is written to be read,
// not to be fast (about 50 MB/s).
//
// Thread safety: pure functions. Floating-point environment as in codec.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace qrd {

// As the functions without "Reference" in kernels/codec.h. `x` of the dtype is aligned to the
// element.
void ReferenceEncode(Codec codec, Dtype dtype, const void* x, uint64_t count, std::byte* wire);
void ReferenceEncodeFp32(Codec codec, Dtype dtype, const float* x, uint64_t count, std::byte* wire);
void ReferenceDecode(Codec codec, Dtype dtype, const std::byte* wire, uint64_t count, float* y);
void ReferenceRoundToDtype(Dtype dtype, const float* y, uint64_t count, void* out);
void ReferenceWidenToFp32(Dtype dtype, const void* x, uint64_t count, float* y);

// One element. Bits of fp16 and bf16 are passed as integers.
uint16_t ReferenceRoundToFp16(float value);
uint16_t ReferenceRoundToBf16(float value);
float ReferenceWidenFp16(uint16_t bits);
float ReferenceWidenBf16(uint16_t bits);

// The result of an all-reduce: `count` elements of `dtype`, the same on every rank. inputs[r] is
// rank r's tensor; output is disjoint from all of them.
void ReferenceAllReduce(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op,
                        uint32_t world_size, uint64_t count, const void* const* inputs,
                        void* output);

// The first half of two_shot, over whole rows: the sums that `owner` makes of all `count` elements,
// of which it keeps its own rows. Its own contribution is exact, the others' crossed a link;
// rounded once.
void ReferenceReduceAtOwner(Codec codec, Dtype dtype, uint32_t world_size, uint64_t count,
                            const void* const* inputs, uint32_t owner, void* output);

}  // namespace qrd
