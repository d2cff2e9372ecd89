// SPDX-License-Identifier: Apache-2.0
// Sets the floating-point environment that the wire format asks for, for one scope: round to
// nearest even, no flush to zero, no denormals-are-zero. A library that runs on an application's
// thread needs it: one shared object linked with -ffast-math turns FTZ and DAZ on for every thread
// it starts.
//
// Thread safety: changes the calling thread only; destroy it on the same thread.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qrd {

class ScopedFloatEnvironment {
 public:
  ScopedFloatEnvironment() : saved_(Get()) {
    if ((saved_ & kMask) != 0) Set(saved_ & ~kMask);
  }
  ~ScopedFloatEnvironment() {
    if ((saved_ & kMask) != 0) Set(saved_);
  }
  ScopedFloatEnvironment(const ScopedFloatEnvironment&) = delete;
  ScopedFloatEnvironment& operator=(const ScopedFloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: FTZ is bit 15, DAZ bit 6, rounding mode bits 14..13 (0 = nearest even).
  static constexpr uint64_t kMask = 0x8000 | 0x0040 | 0x6000;
  static uint64_t Get() { return _mm_getcsr(); }
  static void Set(uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }
#elif defined(__aarch64__)
  // FPCR: FZ is bit 24, FZ16 bit 19, DN bit 25, rounding mode bits 23..22 (0 = nearest even).
  static constexpr uint64_t kMask = (1u << 24) | (1u << 19) | (1u << 25) | (3u << 22);
  static uint64_t Get() {
    uint64_t word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Set(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  static constexpr uint64_t kMask = 0;
  static uint64_t Get() { return 0; }
  static void Set(uint64_t) {}
#endif

  const uint64_t saved_;
};

}  // namespace qrd
