// SPDX-License-Identifier: Apache-2.0
// CUDA dialect of kernels/gpu/device.h, which has the specification. sm_90 and later.
#pragma once

#define QRD_DEVICE __device__ __forceinline__
#define QRD_KERNEL(threads, blocks_per_processor) \
  __global__ void __launch_bounds__(threads, blocks_per_processor)

namespace qrd::gpu {

inline constexpr uint32_t kWaveLanes = 32;

QRD_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
QRD_DEVICE uint32_t BlockIndex() { return blockIdx.x; }
QRD_DEVICE uint32_t GridBlocks() { return gridDim.x; }
QRD_DEVICE uint32_t LaneIndex() { return threadIdx.x & 31; }
// The same on all lanes; the shuffle tells the compiler so.
QRD_DEVICE uint32_t WaveIndex() { return __shfl_sync(~0u, threadIdx.x >> 5, 0); }

template <typename T>
QRD_DEVICE T& BlockShared() {
  __shared__ T storage;
  return storage;
}
QRD_DEVICE void BlockBarrier() { __syncthreads(); }
QRD_DEVICE bool BlockAll(bool value) { return __syncthreads_and(value) != 0; }
QRD_DEVICE void WaveBarrier() { __syncwarp(); }

QRD_DEVICE Vec16 FromUint4(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
QRD_DEVICE Vec16 Load16(const void* p) { return FromUint4(*static_cast<const uint4*>(p)); }
QRD_DEVICE Vec16 LoadOnce16(const void* p) {
  return FromUint4(__ldcs(static_cast<const uint4*>(p)));
}
QRD_DEVICE void Store16(void* p, Vec16 v) {
  *static_cast<uint4*>(p) = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
}
QRD_DEVICE void StoreOnce16(void* p, Vec16 v) {
  __stcs(static_cast<uint4*>(p), make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
}
QRD_DEVICE void StoreOnce8(void* p, uint32_t low, uint32_t high) {
  __stcs(static_cast<uint2*>(p), make_uint2(low, high));
}

QRD_DEVICE void PrefetchLine(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

template <uint32_t kMask>
QRD_DEVICE uint32_t LaneXor(uint32_t v) {
  return __shfl_xor_sync(~0u, v, kMask);
}
template <uint32_t kMask>
QRD_DEVICE uint32_t ReducePartner(uint32_t v) {
  return LaneXor<kMask>(v);
}

QRD_DEVICE uint32_t MaxS16x2(uint32_t a, uint32_t b) { return __vmaxs2(a, b); }
QRD_DEVICE uint32_t MinS16x2(uint32_t a, uint32_t b) { return __vmins2(a, b); }
QRD_DEVICE uint32_t MaxU16x2(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }
QRD_DEVICE uint32_t PackLow16(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
QRD_DEVICE uint32_t PackHigh16(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

QRD_DEVICE uint32_t FloatBits(float value) { return __float_as_uint(value); }
QRD_DEVICE float BitsFloat(uint32_t bits) { return __uint_as_float(bits); }

template <uint32_t kByte>
QRD_DEVICE float ByteToFloat(uint32_t w, float bias) {
  return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7650 + kByte)) - (0x1p23f + bias);
}

class Lookup8 {
 public:
  QRD_DEVICE Lookup8(uint32_t table_low, uint32_t table_high, uint32_t nibbles) {
    const uint32_t selectors = nibbles & 0x77777777u;
    bytes_[0] = __byte_perm(table_low, table_high, selectors);
    bytes_[1] = __byte_perm(table_low, table_high, selectors >> 16);
  }
  // Half of the byte that nibble kIndex chose.
  template <uint32_t kIndex>
  QRD_DEVICE float Half() const {
    // 2^22 + b / 2 has b as its low byte.
    return __uint_as_float(__byte_perm(bytes_[kIndex / 4], 0x4A800000u, 0x7650 + kIndex % 4)) -
           0x1p22f;
  }

 private:
  uint32_t bytes_[2];
};

QRD_DEVICE float Reciprocal(float x) { return __frcp_rn(x); }
QRD_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
QRD_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
QRD_DEVICE float Sqrt(float v) { return __fsqrt_rn(v); }
QRD_DEVICE float Abs(float v) { return fabsf(v); }
QRD_DEVICE float AtLeast(float v, float t) { return v >= t ? 1.0f : 0.0f; }
QRD_DEVICE uint32_t FloorBits(float v) { return __float_as_uint(__fadd_rz(v, 0x1p23f)); }
QRD_DEVICE uint32_t HalfFloorBits(float v) {
  return __float_as_uint(__fmaf_rz(v, 0.5f, 0x1p23f + 2));
}
QRD_DEVICE uint32_t PushSign(uint32_t acc, uint32_t bits) { return __funnelshift_l(bits, acc, 1); }
QRD_DEVICE uint32_t TrailingZeros(uint32_t v) { return __ffs(static_cast<int>(v)) - 1; }

QRD_DEVICE uint32_t RoundPairFp16(float a, float b) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}
QRD_DEVICE uint32_t RoundPairBf16(float a, float b) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}
QRD_DEVICE float Fp16Low(uint32_t w) {
  float value;
  asm("{ .reg .f16 h, g; mov.b32 {h, g}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(w));
  return value;
}
QRD_DEVICE float Fp16High(uint32_t w) {
  float value;
  asm("{ .reg .f16 h, g; mov.b32 {h, g}, %1; cvt.f32.f16 %0, g; }" : "=f"(value) : "r"(w));
  return value;
}

#define QRD_HAS_E4M3_CONVERT 1
QRD_DEVICE uint32_t EncodeE4m3Pair(float a, float b) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
  return pair;
}

QRD_DEVICE void StoreReleaseSystem(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
QRD_DEVICE void StoreRelaxedSystem(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
QRD_DEVICE uint32_t LoadRelaxedSystem(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
QRD_DEVICE void AcquireSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// The barrier and the release are cumulative in the PTX memory model.
QRD_DEVICE void DrainStores() {}
QRD_DEVICE void AcquirePayload() {}

QRD_DEVICE uint64_t ClockNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
QRD_DEVICE void SpinPause() { __nanosleep(20); }

QRD_DEVICE void AtomicAddDevice(uint64_t* p, uint64_t v) {
  atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v));
}
QRD_DEVICE bool ArriveDevice(uint32_t* counter, uint32_t n) {
  __threadfence();
  const bool last = atomicInc(counter, n - 1) == n - 1;
  __threadfence();
  return last;
}
QRD_DEVICE uint32_t AddAcqRelDevice(uint32_t* counter, uint32_t n) {
  uint32_t old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(counter)), "r"(n)
               : "memory");
  return old;
}
QRD_DEVICE uint32_t AddBlock(uint32_t* counter, uint32_t n) { return atomicAdd(counter, n); }

}  // namespace qrd::gpu
