// SPDX-License-Identifier: Apache-2.0
// What kernels/gpu needs from a GPU, under names of our own. This header and the three that it
// includes are the only device code that names a dialect: HIP (Clang for AMD), CUDA (nvcc), and
// "emulated", plain C++ in which every lane is a fiber, so that codecs and collectives are tested
// on machines without a GPU (tests/gpu/emulated_test.cc). Specification:
//
// Shape. A block has up to 1024 threads, x only. Its waves are runs of kWaveLanes threads (64 on
//   gfx9, 32 elsewhere); all lanes of a wave are active wherever a "wave" function is called.
//   BlockIndex(), ThreadIndex(), LaneIndex(), GridBlocks(); WaveIndex(), a wave function.
// Memory of a block. BlockShared<T>(): one T, uninitialised, shared by the block's threads.
// Barriers. BlockBarrier(): all threads of the block arrive; orders their accesses to block and
//   global memory among themselves. BlockAll(b): the same, and the AND of all b. WaveBarrier():
//   orders accesses to block memory among the lanes of a wave.
// Vectors. Vec16: 16 bytes, aligned to 16. Load16/Store16 move one; the Once forms say that the
//   bytes will not be used again soon. StoreOnce8: 8 bytes, aligned to 8. PrefetchLine(p): the 128
//   bytes at p will be read soon; a hint.
// Exchange between lanes. LaneXor<m>(v), m below kWaveLanes: v of lane (own ^ m).
//   ReducePartner<m>(v), m = 1, 2, 4, 8 in this order: v of some lane in the other half of the
//   aligned run of 2m lanes; enough for a reduction whose halves agree already. Both are wave
//   functions.
// Integers. MaxS16x2, MinS16x2, MaxU16x2: two 16-bit lanes in a word. PackLow16(a, b) is
//   a & 0xFFFF | b << 16, PackHigh16(a, b) is a >> 16 | b & 0xFFFF0000.
//   PushSign(acc, bits): acc * 2 plus the top bit of bits. TrailingZeros(v), v not 0.
//   Lookup8 chooses bytes out of a table of 8 by the low 3 bits of the 8 nibbles of a word.
// Floats. All arithmetic is IEEE binary32, nearest even, subnormals kept, no contraction: flags of
//   the build (-fmad=false, -ffp-contract=off) see to operators. Reciprocal(x): 1.0f / x correctly
//   rounded. RoundPairFp16/Bf16(a, b): nearest even, overflow to Inf, a in the low half; a NaN
//   stays a NaN of any payload. Fp16Low/Fp16High(w): exact widening. Abs(v). AtLeast(v, t): 1.0f if
//   v >= t, else 0. ByteToFloat<k>(w, bias): byte k less a whole number. FloorBits(v),
//   HalfFloorBits(v), 0 <= v < 2^22: floor(v) and floor(v / 2) + 2, plus the bits 0x4B000000. Fma:
//   fused, for use where the product is exact. Divide, Sqrt: correctly rounded.
// Conversions that some devices have. QRD_HAS_E4M3_CONVERT: EncodeE4m3Pair(a, b), |v| < 2^16: codes
//   to nearest even, saturating, a in the low byte. QRD_HAS_E2M1_CONVERT: PutE2m1Pair<k>(w, a, b):
//   w with byte k replaced by two such codes, a in the low nibble; GetE2m1Pair<k>(w, pair): back.
//   Both keep the sign of zero.
// Flags between ranks. StoreReleaseSystem: every store that this thread made or observed before it
//   is visible to whoever sees the flag, on any device of the node. LoadRelaxedSystem, then
//   AcquireSystem() once the value is right: loads after it see what the release published.
//   DrainStores(): called by every wave before the BlockBarrier() that precedes the release by
//   another wave: its stores have left the wave. After the barrier behind an acquire by one thread,
//   every wave calls AcquirePayload() before it loads payload.
// Time. ClockNs(): monotonic, resolution about 1 us or better. SpinPause(): call it in spin loops.
// Atomics. AtomicAddDevice (64 bits, relaxed, device scope); ArriveDevice(counter, n): acquire and
//   release, device scope, counts from 0 to n - 1 and back to 0, true for the last of n.
//   AddAcqRelDevice(counter, n): the value before, acquire and release, device scope.
//   AddBlock(counter, n): the same for block memory, relaxed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qrd::gpu {
struct alignas(16) Vec16 {
  uint32_t w[4];
};
}  // namespace qrd::gpu

#if defined(__CUDACC__)
#include "kernels/gpu/device_cuda.h"
#elif defined(__HIP__)
#include "kernels/gpu/device_hip.h"
#else
#include "kernels/gpu/device_emulated.h"
#endif

namespace qrd::gpu {

QRD_DEVICE uint32_t Bits(float value) { return FloatBits(value); }
QRD_DEVICE float Float(uint32_t bits) { return BitsFloat(bits); }

QRD_DEVICE uint32_t MaxU32(uint32_t a, uint32_t b) { return a > b ? a : b; }
QRD_DEVICE uint32_t MinU32(uint32_t a, uint32_t b) { return a < b ? a : b; }

// Maxima over aligned runs of kLanes lanes, in all of them. Wave functions.
template <uint32_t kLanes>
QRD_DEVICE uint32_t GroupMaxU32(uint32_t v) {
  v = MaxU32(v, ReducePartner<1>(v));
  v = MaxU32(v, ReducePartner<2>(v));
  if constexpr (kLanes >= 8) v = MaxU32(v, ReducePartner<4>(v));
  if constexpr (kLanes >= 16) v = MaxU32(v, ReducePartner<8>(v));
  return v;
}
template <uint32_t kLanes>
QRD_DEVICE uint32_t GroupMaxS16x2(uint32_t v) {
  v = MaxS16x2(v, ReducePartner<1>(v));
  v = MaxS16x2(v, ReducePartner<2>(v));
  if constexpr (kLanes >= 8) v = MaxS16x2(v, ReducePartner<4>(v));
  if constexpr (kLanes >= 16) v = MaxS16x2(v, ReducePartner<8>(v));
  return v;
}
// Over the wave.
QRD_DEVICE uint32_t WaveMaxU16x2(uint32_t v) {
  v = MaxU16x2(v, ReducePartner<1>(v));
  v = MaxU16x2(v, ReducePartner<2>(v));
  v = MaxU16x2(v, ReducePartner<4>(v));
  v = MaxU16x2(v, ReducePartner<8>(v));
  v = MaxU16x2(v, LaneXor<16>(v));
  if constexpr (kWaveLanes == 64) v = MaxU16x2(v, LaneXor<kWaveLanes / 2>(v));
  return v;
}

}  // namespace qrd::gpu
