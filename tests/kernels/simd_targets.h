// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test once for every instruction set that this machine and this build have.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

// simd_targets.h has to come before Highway.
// clang-format off
#include "kernels/simd_targets.h"
#include "hwy/targets.h"
// clang-format on

#include "kernels/codec.h"

namespace qrd::testing {

inline void UseSimdTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: all that the machine has
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

template <typename Function>
void ForEachSimdTarget(Function function) {
  UseSimdTargets(0);
  int targets = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    UseSimdTargets(target);
    // The library may be built for fewer than the test (QRD_FEW_SIMD_TARGETS).
    if (std::string_view(SimdTargetName()) != hwy::TargetName(target)) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    function();
    ++targets;
  }
  UseSimdTargets(0);
  EXPECT_GE(targets, 1);
}

}  // namespace qrd::testing
