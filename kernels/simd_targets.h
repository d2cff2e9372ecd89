// SPDX-License-Identifier: Apache-2.0
// Instruction sets that the SIMD kernels are compiled for. Include before any header of Highway.
//
// Vectors of unknown length (SVE, RVV) cannot be held in arrays; Arm uses NEON. On x86 a scalar
// baseline, AVX2 and AVX3 are built: machines with nothing above SSE4 serve no models. Sanitizer
// builds leave AVX3 out too (QRD_FEW_SIMD_TARGETS): each target costs them minutes of compile time.
#pragma once

#if defined(QRD_FEW_SIMD_TARGETS)
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_SSE4)
#endif
