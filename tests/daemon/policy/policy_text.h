// SPDX-License-Identifier: Apache-2.0
// Policies from text, for tests.
#pragma once

#include <string>

#include "daemon/base/text_format.h"
#include "gtest/gtest.h"
#include "qrd/v1/policy.pb.h"

namespace qrd::testing {

inline v1::Policy PolicyFrom(const std::string& text) {
  v1::Policy policy;
  const absl::Status status = ParseText(text, "test", &policy);
  EXPECT_TRUE(status.ok()) << status;
  return policy;
}

}  // namespace qrd::testing
