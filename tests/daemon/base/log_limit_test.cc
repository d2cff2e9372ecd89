// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/log_limit.h"

#include <gtest/gtest.h>

namespace qrd {
namespace {

TEST(LogLimitTest, LinesBeyondTheBoundAreLeftOutAndCounted) {
  LogLimit limit;
  uint64_t now_ns = 5'000'000'000;
  for (uint32_t i = 0; i < LogLimit::kLinesMax; ++i) EXPECT_EQ(limit.Admit(now_ns++), "");
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.Admit(now_ns++), std::nullopt);
  now_ns += LogLimit::kWindowNs;
  EXPECT_EQ(limit.Admit(now_ns), " (1000 lines like this were left out)");
  EXPECT_EQ(limit.Admit(now_ns), "");
}

TEST(LogLimitTest, AWindowBeginsWithItsFirstLine) {
  LogLimit limit;
  EXPECT_EQ(limit.Admit(0), "");
  for (uint32_t i = 1; i < LogLimit::kLinesMax; ++i) {
    EXPECT_EQ(limit.Admit(LogLimit::kWindowNs - 1), "");
  }
  EXPECT_EQ(limit.Admit(LogLimit::kWindowNs - 1), std::nullopt);
  EXPECT_EQ(limit.Admit(LogLimit::kWindowNs), " (1 lines like this were left out)");
}

}  // namespace
}  // namespace qrd
