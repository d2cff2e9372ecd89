// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qrd {
namespace {

using ::testing::HasSubstr;

TEST(NameError, TakesNamesWithinTheRule) {
  for (const char* name : {"a", "0", "model-a", "tp.0_x", "9lives"}) EXPECT_EQ(NameError(name), "");
  EXPECT_EQ(NameError(std::string(64, 'a')), "");
}

TEST(NameError, SaysWhatIsWrong) {
  EXPECT_THAT(NameError(""), HasSubstr("is empty; want 1 to 64"));
  EXPECT_THAT(NameError(std::string(65, 'a')), HasSubstr("is 65 bytes long"));
  EXPECT_THAT(NameError("a b"), HasSubstr("has \" \" at position 2"));
  EXPECT_THAT(NameError("Model"), HasSubstr("has \"M\" at position 1"));
  EXPECT_THAT(NameError("a/../b"), HasSubstr("has \"/\" at position 2"));
  EXPECT_THAT(NameError(std::string("a\0b", 3)), HasSubstr("has \"\\x00\" at position 2"));
  EXPECT_THAT(NameError("-a"), HasSubstr("must begin with a letter or digit"));
  EXPECT_THAT(NameError(".."), HasSubstr("must begin with a letter or digit"));
}

TEST(RuleNameError, DiffersOnlyInTheFirstCharacter) {
  EXPECT_EQ(RuleNameError("-a"), "");
  EXPECT_THAT(RuleNameError("A"), HasSubstr("at position 1"));
}

TEST(Quoted, EscapesAndCuts) {
  EXPECT_EQ(Quoted("a\n\"b\x1b"), "\"a\\n\\\"b\\x1b\"");
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc...\"");
}

}  // namespace
}  // namespace qrd
