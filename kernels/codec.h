// SPDX-License-Identifier: Apache-2.0
// Encode and decode messages of the wire format on the host: SIMD with run-time dispatch, the same
// bytes on every instruction set. kernels/reference.h has the scalar program that defines them.
//
// Thread safety: pure functions. Floating-point environment: round to nearest, no flush to zero
// (callers that may run with FTZ/DAZ set use ScopedFloatEnvironment of
// kernels/float_environment.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/types.h"

namespace qrd {

// Encodes `count` elements of `dtype` at `x` (aligned to the element) into EncodedBytes(codec,
// dtype, count) bytes at `wire`. No byte past that is written.
void Encode(Codec codec, Dtype dtype, const void* x, uint64_t count, std::byte* wire);

// The same for fp32 values under the rules of `dtype` (the owner's sums). Codec kNone writes the
// values rounded to the dtype.
void EncodeFp32(Codec codec, Dtype dtype, const float* x, uint64_t count, std::byte* wire);

// Decodes to fp32; every NaN is 0x7FC00000. Any bytes are valid input: a hostile message gives some
// numbers, never an out-of-bounds access. No element past count is written.
void Decode(Codec codec, Dtype dtype, const std::byte* wire, uint64_t count, float* y);

// R(): fp32 to the dtype, nearest even, overflow to Inf, canonical NaN.
void RoundToDtype(Dtype dtype, const float* y, uint64_t count, void* out);
// Exact.
void WidenToFp32(Dtype dtype, const void* x, uint64_t count, float* y);

// Instruction set in use, for example "AVX3_SPR", "AVX2", "NEON", "SCALAR".
const char* SimdTargetName();

}  // namespace qrd
