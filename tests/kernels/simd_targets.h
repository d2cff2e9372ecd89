// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test once for every instruction set that this machine and this build have.
#pragma once

#include <gtest/gtest.h>

#include "kernels/simd_targets.h"
#include "hwy/targets.h"
#include "kernels/codec.h"

namespace qrd::testing {

inline void UseSimdTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);  // 0: all that the machine has
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

template <typename Function>
void ForEachSimdTarget(Function function) {
  UseSimdTargets(0);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    UseSimdTargets(target);
    SCOPED_TRACE(hwy::TargetName(target));
    EXPECT_STREQ(SimdTargetName(), hwy::TargetName(target));
    function();
  }
  UseSimdTargets(0);
}

}  // namespace qrd::testing
