// SPDX-License-Identifier: Apache-2.0
// HIP dialect of kernels/gpu/device.h, which has the specification. gfx9 (wave64) and gfx10 to
// gfx12 (wave32). Compiled and inspected, not run, on the machines this was written on.
#pragma once

#include <hip/hip_runtime.h>

#define QRD_DEVICE __device__ __forceinline__
// HIP's second launch bound counts waves of a SIMD, not blocks: four SIMDs, 256 threads, wave64 (or
// two wave32 SIMDs of twice the waves) make the two the same number.
#define QRD_KERNEL(threads, blocks_per_processor) \
  __global__ void __launch_bounds__(threads, blocks_per_processor)

namespace qrd::gpu {

#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
inline constexpr uint32_t kWaveLanes = 32;
#else
inline constexpr uint32_t kWaveLanes = 64;
#endif

QRD_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
QRD_DEVICE uint32_t BlockIndex() { return blockIdx.x; }
QRD_DEVICE uint32_t GridBlocks() { return gridDim.x; }
QRD_DEVICE uint32_t LaneIndex() { return threadIdx.x % kWaveLanes; }
QRD_DEVICE uint32_t WaveIndex() { return __builtin_amdgcn_readfirstlane(threadIdx.x / kWaveLanes); }

template <typename T>
QRD_DEVICE T& BlockShared() {
  __shared__ T storage;
  return storage;
}
QRD_DEVICE void BlockBarrier() { __syncthreads(); }
QRD_DEVICE bool BlockAll(bool value) { return __syncthreads_and(value) != 0; }
QRD_DEVICE void WaveBarrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

typedef uint32_t Uint4 __attribute__((ext_vector_type(4)));
QRD_DEVICE Vec16 FromUint4(Uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
QRD_DEVICE Uint4 ToUint4(Vec16 v) { return Uint4{v.w[0], v.w[1], v.w[2], v.w[3]}; }
QRD_DEVICE Vec16 Load16(const void* p) { return FromUint4(*static_cast<const Uint4*>(p)); }
QRD_DEVICE Vec16 LoadOnce16(const void* p) {
  return FromUint4(__builtin_nontemporal_load(static_cast<const Uint4*>(p)));
}
QRD_DEVICE void Store16(void* p, Vec16 v) { *static_cast<Uint4*>(p) = ToUint4(v); }
QRD_DEVICE void StoreOnce16(void* p, Vec16 v) {
  __builtin_nontemporal_store(ToUint4(v), static_cast<Uint4*>(p));
}
typedef uint32_t Uint2 __attribute__((ext_vector_type(2)));
QRD_DEVICE void StoreOnce8(void* p, uint32_t low, uint32_t high) {
  __builtin_nontemporal_store(Uint2{low, high}, static_cast<Uint2*>(p));
}

// gfx9 has no prefetch into its L2.
QRD_DEVICE void PrefetchLine(const void*) {}

// Exact exchanges by ds_swizzle in runs of 32 lanes, ds_bpermute between them; no memory is
// touched.
template <uint32_t kMask>
QRD_DEVICE uint32_t LaneXor(uint32_t v) {
  static_assert(kMask < kWaveLanes);
  if constexpr (kMask >= 32) {
    return __builtin_amdgcn_ds_bpermute(static_cast<int>((LaneIndex() ^ kMask) * 4), v);
  } else {
    return __builtin_amdgcn_ds_swizzle(v, 0x1F | kMask << 10);
  }
}
// DPP moves at the rate of the ALU: quad_perm, row_half_mirror, row_mirror.
template <uint32_t kMask>
QRD_DEVICE uint32_t ReducePartner(uint32_t v) {
  constexpr int kControl = kMask == 1 ? 0xB1 : kMask == 2 ? 0x4E : kMask == 4 ? 0x141 : 0x140;
  return __builtin_amdgcn_mov_dpp(v, kControl, 0xF, 0xF, true);
}

typedef int16_t Short2 __attribute__((ext_vector_type(2)));
typedef uint16_t Ushort2 __attribute__((ext_vector_type(2)));
QRD_DEVICE uint32_t MaxS16x2(uint32_t a, uint32_t b) {
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Short2, a),
                                                                __builtin_bit_cast(Short2, b)));
}
QRD_DEVICE uint32_t MinS16x2(uint32_t a, uint32_t b) {
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_min(__builtin_bit_cast(Short2, a),
                                                                __builtin_bit_cast(Short2, b)));
}
QRD_DEVICE uint32_t MaxU16x2(uint32_t a, uint32_t b) {
  return __builtin_bit_cast(uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Ushort2, a),
                                                                __builtin_bit_cast(Ushort2, b)));
}
// v_perm_b32: bytes 0 to 3 of the selector's values are the second operand, 4 to 7 the first.
QRD_DEVICE uint32_t PackLow16(uint32_t a, uint32_t b) {
  return __builtin_amdgcn_perm(b, a, 0x05040100);
}
QRD_DEVICE uint32_t PackHigh16(uint32_t a, uint32_t b) {
  return __builtin_amdgcn_perm(b, a, 0x07060302);
}

QRD_DEVICE uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
QRD_DEVICE float BitsFloat(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// v_cvt_f32_ubyteN.
template <uint32_t kByte>
QRD_DEVICE float ByteToFloat(uint32_t w, float bias) {
  return static_cast<float>(w >> 8 * kByte & 0xFF) - bias;
}

class Lookup8 {
 public:
  QRD_DEVICE Lookup8(uint32_t table_low, uint32_t table_high, uint32_t nibbles) {
    bytes_[0] = __builtin_amdgcn_perm(table_high, table_low, nibbles & 0x07070707u);
    bytes_[1] = __builtin_amdgcn_perm(table_high, table_low, nibbles >> 4 & 0x07070707u);
  }
  template <uint32_t kIndex>
  QRD_DEVICE float Half() const {
    return ByteToFloat<kIndex / 2>(bytes_[kIndex % 2], 0) * 0.5f;
  }

 private:
  uint32_t bytes_[2];  // of the even and of the odd nibbles
};

QRD_DEVICE float Reciprocal(float x) { return 1.0f / x; }
QRD_DEVICE float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// Correctly rounded by default (-fhip-fp32-correctly-rounded-divide-sqrt).
QRD_DEVICE float Divide(float a, float b) { return a / b; }
QRD_DEVICE float Sqrt(float v) { return __builtin_sqrtf(v); }
QRD_DEVICE float Abs(float v) { return __builtin_fabsf(v); }
QRD_DEVICE float AtLeast(float v, float t) { return v >= t ? 1.0f : 0.0f; }
QRD_DEVICE uint32_t FloorBits(float v) { return static_cast<uint32_t>(v) + 0x4B000000u; }
QRD_DEVICE uint32_t HalfFloorBits(float v) { return (static_cast<uint32_t>(v) >> 1) + 0x4B000002u; }
QRD_DEVICE uint32_t PushSign(uint32_t acc, uint32_t bits) {
  return __builtin_amdgcn_alignbit(acc, bits, 31);
}
QRD_DEVICE uint32_t TrailingZeros(uint32_t v) { return __builtin_ctz(v); }

typedef _Float16 Half2 __attribute__((ext_vector_type(2)));
QRD_DEVICE uint32_t RoundPairFp16(float a, float b) {
  return __builtin_bit_cast(uint32_t, Half2{static_cast<_Float16>(a), static_cast<_Float16>(b)});
}
QRD_DEVICE float Fp16Low(uint32_t w) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(w)));
}
QRD_DEVICE float Fp16High(uint32_t w) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16_t>(w >> 16)));
}
#if defined(__gfx950__)
typedef __bf16 Bfloat2 __attribute__((ext_vector_type(2)));
// v_cvt_pk_bf16_f32.
QRD_DEVICE uint32_t RoundPairBf16(float a, float b) {
  return __builtin_bit_cast(uint32_t, Bfloat2{static_cast<__bf16>(a), static_cast<__bf16>(b)});
}
#else
QRD_DEVICE uint32_t RoundBf16(uint32_t bits) {
  const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
  // The carry would turn some NaNs into numbers.
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC00000 : rounded;
}
QRD_DEVICE uint32_t RoundPairBf16(float a, float b) {
  return PackHigh16(RoundBf16(FloatBits(a)), RoundBf16(FloatBits(b)));
}
#endif

#if defined(__gfx950__) && !defined(QRD_NO_FP8_CONVERT)
// OCP E4M3 on gfx950 (v_cvt_pk_fp8_f32); gfx942 has the FNUZ form, which has other bytes. The clamp
// makes it saturate. (Not for decoding: 0x7F is 480 on the wire, here it is NaN.)
#define QRD_HAS_E4M3_CONVERT 1
QRD_DEVICE uint32_t EncodeE4m3Pair(float a, float b) {
  a = __builtin_amdgcn_fmed3f(a, -448.0f, 448.0f);
  b = __builtin_amdgcn_fmed3f(b, -448.0f, 448.0f);
  return __builtin_amdgcn_cvt_pk_fp8_f32(a, b, 0, false) & 0xFFFF;
}
// v_cvt_scalef32_pk_fp4_f32 and back, with the scale 1: that operand's exponent alone counts, and
// scales on the wire have mantissas.
#define QRD_HAS_E2M1_CONVERT 1
template <int kByte>
QRD_DEVICE uint32_t PutE2m1Pair(uint32_t codes, float a, float b) {
  a = __builtin_amdgcn_fmed3f(a, -6.0f, 6.0f);
  b = __builtin_amdgcn_fmed3f(b, -6.0f, 6.0f);
  return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(codes, a, b, 1.0f, kByte);
}
template <int kByte>
QRD_DEVICE void GetE2m1Pair(uint32_t codes, float* pair) {
  const auto values = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(codes, 1.0f, kByte);
  pair[0] = values[0];
  pair[1] = values[1];
}
#endif

QRD_DEVICE void StoreReleaseSystem(uint32_t* p, uint32_t v) {
  __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
QRD_DEVICE void StoreRelaxedSystem(uint32_t* p, uint32_t v) {
  __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
QRD_DEVICE uint32_t LoadRelaxedSystem(const uint32_t* p) {
  return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
QRD_DEVICE void AcquireSystem() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
// A release waits for the stores of its own wave only, so each wave waits until its own have been
// taken by the cache that the releasing wave then writes back (one block, one compute unit).
QRD_DEVICE void DrainStores() {
#if defined(__GFX12__)
  asm volatile("s_wait_storecnt 0" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
  asm volatile("s_waitcnt_vscnt null, 0" ::: "memory");
#else
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}
// The waves of a block share the cache that the acquiring wave has emptied.
QRD_DEVICE void AcquirePayload() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); }

// 100 MHz on gfx9 and later.
#if HIP_VERSION >= 50300000
QRD_DEVICE uint64_t ClockNs() { return wall_clock64() * 10; }
#else
QRD_DEVICE uint64_t ClockNs() { return __builtin_amdgcn_s_memrealtime() * 10; }
#endif
QRD_DEVICE void SpinPause() { __builtin_amdgcn_s_sleep(1); }

QRD_DEVICE void AtomicAddDevice(uint64_t* p, uint64_t v) {
  __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
QRD_DEVICE bool ArriveDevice(uint32_t* counter, uint32_t n) {
  const uint32_t old =
      __hip_atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  if (old != n - 1) return false;
  __hip_atomic_store(counter, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return true;
}
QRD_DEVICE uint32_t AddAcqRelDevice(uint32_t* counter, uint32_t n) {
  return __hip_atomic_fetch_add(counter, n, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
QRD_DEVICE uint32_t AddBlock(uint32_t* counter, uint32_t n) {
  return __hip_atomic_fetch_add(counter, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

}  // namespace qrd::gpu
