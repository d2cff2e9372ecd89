// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/text_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qrd/v1/config.pb.h"
#include "qrd/v1/policy.pb.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// F36: a misspelt tuning field was silently ignored elsewhere.
TEST(ParseText, RefusesAMisspeltPolicyField) {
  v1::Policy policy;
  const absl::Status status = ParseText("rules {\n  name: \"a\"\n  match { min_byts: 262144 }\n}\n",
                                        "policy.textproto", &policy);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("policy.textproto:3:"), HasSubstr("no field named \"min_byts\""),
                    HasSubstr("payload_bytes_min"), HasSubstr("min_byts: 262144")));
  EXPECT_EQ(policy.rules_size(), 0);
}

// F37: an unknown codec fell silently to no compression.
TEST(ParseText, ListsTheValuesOfAnEnum) {
  v1::Policy policy;
  const absl::Status status = ParseText("rules { action { codec: CODEC_INT5 } }", "p", &policy);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("CODEC_INT5"), HasSubstr("CODEC_INT6"), HasSubstr("CODEC_AUTO")));
}

TEST(ParseText, RefusesDeepNestingAndLargeFiles) {
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += "initial_policy { ";
  v1::Config config;
  EXPECT_FALSE(ParseText(nested, "p", &config).ok());
  EXPECT_THAT(
      std::string(ParseText(std::string(kTextFileBytesMax + 1, '#'), "p", &config).message()),
      HasSubstr("p is 4194305 bytes long; at most 4194304"));
}

TEST(ParseText, SurvivesEveryTruncationOfAPolicy) {
  const std::string text =
      "rules { name: \"a\" match { dtypes: [DTYPE_FP16] payload_bytes_max: 1 } }";
  for (size_t i = 0; i < text.size(); ++i) {
    v1::Policy policy;
    const absl::Status status = ParseText(text.substr(0, i), "p", &policy);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << i;
  }
}

TEST(PrintText, RoundTrips) {
  v1::Policy policy, again;
  policy.add_rules()->set_name("a");
  ASSERT_TRUE(ParseText(PrintText(policy), "p", &again).ok());
  EXPECT_EQ(again.SerializeAsString(), policy.SerializeAsString());
}

TEST(UnknownFieldIn, FindsFieldsOfANewerVersionAtAnyDepth) {
  v1::Policy policy;
  EXPECT_EQ(UnknownFieldIn(policy), "");
  v1::Match* match = policy.add_rules()->mutable_match();
  match->GetReflection()->MutableUnknownFields(match)->AddVarint(99, 1);
  EXPECT_EQ(UnknownFieldIn(policy), "field number 99 of qrd.v1.Match");
}

}  // namespace
}  // namespace qrd
