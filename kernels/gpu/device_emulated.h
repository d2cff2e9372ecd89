// SPDX-License-Identifier: Apache-2.0
// Emulated dialect of kernels/gpu/device.h, which has the specification: every lane is a fiber of
// one thread, switched at barriers, exchanges and pauses. For tests; slow.
//
// Thread safety: one RunEmulated() at a time per thread.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define QRD_DEVICE inline
#define QRD_KERNEL(threads, blocks_per_processor) void

namespace qrd::gpu {

// 32 or 64: tests are built for both.
#if defined(QRD_EMULATED_WAVE_LANES)
inline constexpr uint32_t kWaveLanes = QRD_EMULATED_WAVE_LANES;
#else
inline constexpr uint32_t kWaveLanes = 32;
#endif

namespace emulated {

inline constexpr size_t kStackBytes = 64 * 1024;
inline constexpr size_t kSharedBytes = 64 * 1024;

// All who share it arrive, then all go on.
struct Rendezvous {
  uint32_t members = 0, arrived = 0, generation = 0;
};
struct Wave {
  Rendezvous rendezvous;
  uint32_t slots[2][kWaveLanes] = {};
};
struct Block {
  Rendezvous rendezvous;
  bool all[2] = {true, true};
  std::unique_ptr<Vec16[]> shared = std::make_unique<Vec16[]>(kSharedBytes / sizeof(Vec16));
};
struct Lane {
  ucontext_t context = {};
  std::unique_ptr<std::byte[]> stack;
  Block* block = nullptr;
  Wave* wave = nullptr;
  uint32_t thread = 0, block_index = 0;
  uint32_t exchanges = 0, block_alls = 0;
  bool done = false;
};
struct Machine {
  ucontext_t scheduler = {};
  Lane* current = nullptr;
  uint32_t grid_blocks = 0;
  const std::function<void()>* kernel = nullptr;
};
inline thread_local Machine machine;

inline Lane& Current() { return *machine.current; }
inline void Yield() { swapcontext(&Current().context, &machine.scheduler); }
inline void Meet(Rendezvous& r) {
  const uint32_t generation = r.generation;
  if (++r.arrived == r.members) {
    r.arrived = 0;
    ++r.generation;
    return;
  }
  while (r.generation == generation) Yield();
}
inline void LaneMain() {
  (*machine.kernel)();
  Current().done = true;
  Yield();
}

}  // namespace emulated

// Runs kernel() on every thread of a grid, all at the same time.
inline void RunEmulated(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
  using namespace emulated;  // NOLINT(google-build-using-namespace)
  std::vector<Block> block_states(blocks);
  std::vector<Wave> waves(static_cast<size_t>(blocks) * (threads / kWaveLanes));
  std::vector<Lane> lanes(static_cast<size_t>(blocks) * threads);
  machine.kernel = &kernel;
  machine.grid_blocks = blocks;
  for (size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    lane.block_index = static_cast<uint32_t>(i / threads);
    lane.thread = static_cast<uint32_t>(i % threads);
    lane.block = &block_states[lane.block_index];
    lane.wave = &waves[i / kWaveLanes];
    lane.block->rendezvous.members = threads;
    lane.wave->rendezvous.members = kWaveLanes;
    lane.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = kStackBytes;
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, LaneMain, 0);
  }
  for (size_t running = lanes.size(); running != 0;) {
    running = 0;
    for (Lane& lane : lanes) {
      if (lane.done) continue;
      machine.current = &lane;
      swapcontext(&machine.scheduler, &lane.context);
      running += !lane.done;
    }
  }
}

inline uint32_t ThreadIndex() { return emulated::Current().thread; }
inline uint32_t BlockIndex() { return emulated::Current().block_index; }
inline uint32_t GridBlocks() { return emulated::machine.grid_blocks; }
inline uint32_t LaneIndex() { return ThreadIndex() % kWaveLanes; }

namespace emulated {
// Every type has its own place, as every variable of a kernel has.
inline size_t ClaimShared(size_t bytes) {
  static size_t claimed = 0;
  const size_t at = claimed;
  claimed += (bytes + sizeof(Vec16) - 1) / sizeof(Vec16);
  if (claimed > kSharedBytes / sizeof(Vec16)) std::abort();
  return at;
}
template <typename T>
inline const size_t kSharedPlace = ClaimShared(sizeof(T));
}  // namespace emulated

template <typename T>
T& BlockShared() {
  return *reinterpret_cast<T*>(emulated::Current().block->shared.get() + emulated::kSharedPlace<T>);
}
inline void BlockBarrier() { emulated::Meet(emulated::Current().block->rendezvous); }
inline bool BlockAll(bool value) {
  emulated::Lane& lane = emulated::Current();
  bool& all = lane.block->all[lane.block_alls++ % 2];
  all = all && value;
  BlockBarrier();
  const bool result = all;
  BlockBarrier();
  all = true;
  return result;
}
inline void WaveBarrier() { emulated::Meet(emulated::Current().wave->rendezvous); }
// Waits for all lanes, as a test that they are there.
inline uint32_t WaveIndex() {
  WaveBarrier();
  return ThreadIndex() / kWaveLanes;
}

inline Vec16 Load16(const void* p) { return *static_cast<const Vec16*>(p); }
inline Vec16 LoadOnce16(const void* p) { return Load16(p); }
inline void Store16(void* p, Vec16 v) { *static_cast<Vec16*>(p) = v; }
inline void StoreOnce16(void* p, Vec16 v) { Store16(p, v); }
inline void StoreOnce8(void* p, uint32_t low, uint32_t high) {
  *static_cast<uint64_t*>(p) = low | uint64_t{high} << 32;
}

inline void PrefetchLine(const void*) {}

template <uint32_t kMask>
uint32_t LaneXor(uint32_t v) {
  emulated::Lane& lane = emulated::Current();
  // Two sets of slots in turn: one meeting an exchange is enough.
  uint32_t* slots = lane.wave->slots[lane.exchanges++ % 2];
  slots[LaneIndex()] = v;
  WaveBarrier();
  return slots[LaneIndex() ^ kMask];
}
template <uint32_t kMask>
uint32_t ReducePartner(uint32_t v) {
  return LaneXor<2 * kMask - 1>(v);  // mirrors, as the least that the specification grants
}

template <typename T, typename Choose>
uint32_t Pairwise(uint32_t a, uint32_t b, Choose choose) {
  const auto low = static_cast<uint16_t>(choose(static_cast<T>(a), static_cast<T>(b)));
  const auto high = static_cast<uint16_t>(choose(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
  return low | uint32_t{high} << 16;
}
inline uint32_t MaxS16x2(uint32_t a, uint32_t b) {
  return Pairwise<int16_t>(a, b, [](int16_t x, int16_t y) { return std::max(x, y); });
}
inline uint32_t MinS16x2(uint32_t a, uint32_t b) {
  return Pairwise<int16_t>(a, b, [](int16_t x, int16_t y) { return std::min(x, y); });
}
inline uint32_t MaxU16x2(uint32_t a, uint32_t b) {
  return Pairwise<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return std::max(x, y); });
}
inline uint32_t PackLow16(uint32_t a, uint32_t b) { return (a & 0xFFFF) | b << 16; }
inline uint32_t PackHigh16(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xFFFF0000); }

inline uint32_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }
inline float BitsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
template <uint32_t kByte>
float ByteToFloat(uint32_t w, float bias) {
  return static_cast<float>(w >> 8 * kByte & 0xFF) - bias;
}

class Lookup8 {
 public:
  Lookup8(uint32_t table_low, uint32_t table_high, uint32_t nibbles)
      : table_(table_low | uint64_t{table_high} << 32), nibbles_(nibbles) {}
  template <uint32_t kIndex>
  float Half() const {
    const uint32_t entry = nibbles_ >> 4 * kIndex & 7;
    return static_cast<float>(table_ >> 8 * entry & 0xFF) * 0.5f;
  }

 private:
  uint64_t table_;
  uint32_t nibbles_;
};

#if defined(QRD_EMULATED_CONVERT)
// Stand-ins for what gfx950 has, so that their users are tested: the code whose value is nearest,
// the even one of two.
template <typename ValueOf>
uint32_t NearestCode(float v, uint32_t last, ValueOf value_of) {
  const float magnitude = std::fabs(v);
  uint32_t best = 0;
  for (uint32_t code = 1; code <= last; ++code) {
    const float distance = std::fabs(value_of(code) - magnitude);
    const float shortest = std::fabs(value_of(best) - magnitude);
    if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
  }
  return best;
}
#define QRD_HAS_E4M3_CONVERT 1
inline uint32_t EncodeE4m3Pair(float a, float b) {
  const auto value = [](uint32_t code) {
    const int exponent = static_cast<int>(code >> 3);
    return exponent == 0 ? std::ldexp(static_cast<float>(code), -9)
                         : std::ldexp(1.0f + static_cast<float>(code & 7) / 8.0f, exponent - 7);
  };
  const auto code = [&](float v) {
    return NearestCode(v, 0x7E, value) | (std::signbit(v) ? 0x80u : 0);
  };
  return code(a) | code(b) << 8;
}
#define QRD_HAS_E2M1_CONVERT 1
inline constexpr float kE2m1Values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
template <int kByte>
uint32_t PutE2m1Pair(uint32_t codes, float a, float b) {
  const auto code = [](float v) {
    return NearestCode(v, 7, [](uint32_t c) { return kE2m1Values[c]; }) |
           (std::signbit(v) ? 8u : 0);
  };
  return (codes & ~(0xFFu << 8 * kByte)) | (code(a) | code(b) << 4) << 8 * kByte;
}
template <int kByte>
void GetE2m1Pair(uint32_t codes, float* pair) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t code = codes >> (8 * kByte + 4 * i) & 15;
    pair[i] = std::copysign(kE2m1Values[code & 7], (code & 8) != 0 ? -1.0f : 1.0f);
  }
}
#endif

inline float Reciprocal(float x) { return 1.0f / x; }
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float Divide(float a, float b) { return a / b; }
inline float Sqrt(float v) { return std::sqrt(v); }
inline float Abs(float v) { return std::fabs(v); }
inline float AtLeast(float v, float t) { return v >= t ? 1.0f : 0.0f; }
// As on a GPU, where what is not a number (of a group without data) gives some bits.
inline uint32_t FloorBits(float v) {
  return v < 0x1p22f ? static_cast<uint32_t>(v) + 0x4B000000u : 0;
}
inline uint32_t HalfFloorBits(float v) {
  return v < 0x1p22f ? static_cast<uint32_t>(v) / 2 + 0x4B000002u : 0;
}
inline uint32_t PushSign(uint32_t acc, uint32_t bits) { return acc << 1 | bits >> 31; }
inline uint32_t TrailingZeros(uint32_t v) { return static_cast<uint32_t>(std::countr_zero(v)); }

inline uint32_t RoundFp16(float value) {
  const auto half = static_cast<_Float16>(value);
  return std::bit_cast<uint16_t>(half);
}
inline uint32_t RoundPairFp16(float a, float b) { return RoundFp16(a) | RoundFp16(b) << 16; }
inline uint32_t RoundBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return std::isnan(value) ? 0xFFFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline uint32_t RoundPairBf16(float a, float b) { return RoundBf16(a) | RoundBf16(b) << 16; }
inline float Fp16Low(uint32_t w) {
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(w)));
}
inline float Fp16High(uint32_t w) { return Fp16Low(w >> 16); }

// One thread runs all lanes: plain accesses are ordered.
inline void StoreReleaseSystem(uint32_t* p, uint32_t v) { *static_cast<volatile uint32_t*>(p) = v; }
inline void StoreRelaxedSystem(uint32_t* p, uint32_t v) { StoreReleaseSystem(p, v); }
inline uint32_t LoadRelaxedSystem(const uint32_t* p) {
  return *static_cast<const volatile uint32_t*>(p);
}
inline void AcquireSystem() {}
inline void DrainStores() {}
inline void AcquirePayload() {}

inline uint64_t ClockNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline void SpinPause() { emulated::Yield(); }

inline void AtomicAddDevice(uint64_t* p, uint64_t v) { *p += v; }
inline bool ArriveDevice(uint32_t* counter, uint32_t n) {
  *counter = (*counter + 1) % n;
  return *counter == 0;
}
inline uint32_t AddAcqRelDevice(uint32_t* counter, uint32_t n) {
  *counter += n;
  return *counter - n;
}
inline uint32_t AddBlock(uint32_t* counter, uint32_t n) { return AddAcqRelDevice(counter, n); }

}  // namespace qrd::gpu
