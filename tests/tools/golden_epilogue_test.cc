// SPDX-License-Identifier: Apache-2.0
// The index of a folder of epilogues with one thing wrong.
#include "client/tools/qrbench/golden_epilogue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/support/temp_directory.h"

namespace qrd::testing {
namespace {

struct Damage {
  const char *name, *pattern, *with, *problem;
};

class DamagedEpilogueIndex : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedEpilogueIndex, IsAProblemOfTheCaseThatNamesFieldValueAndBound) {
  std::ifstream file(std::string(QRD_TEST_DATA_DIR) + "/golden/epilogue/index.json");
  std::ostringstream text;
  text << file.rdbuf();
  const TempDirectory directory;
  const std::string damaged =
      std::regex_replace(text.str(), std::regex(GetParam().pattern), GetParam().with,
                         std::regex_constants::format_first_only);
  ASSERT_NE(damaged, text.str());
  std::ofstream(directory / "index.json") << damaged;
  const auto folder = tools::EpilogueFolder::Load(directory.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_NE(folder->cases()[0].problem.find(GetParam().problem), std::string::npos)
      << folder->cases()[0].problem;
}

const Damage kDamages[] = {
    {"TextForFlag", "\"gemma\": false", "\"gemma\": \"no\"",
     "\"gemma\" is \"no\", want true or false"},
    {"Fraction", "\"scale_group\": 0", "\"scale_group\": 0.5",
     "\"scale_group\" is 0.5, want a whole number from 0 to "},
    {"Huge", "\"scale_group\": 0", "\"scale_group\": 1e300",
     "\"scale_group\" is 1e+300, want a whole number from 0 to "},
    {"Negative", "\"scale_group\": 0", "\"scale_group\": -1",
     "\"scale_group\" is -1, want a whole number from 0 to "},
    {"TextForNumber", "\"world\": 2", "\"world\": \"2\"",
     "\"world\" is \"2\", want a whole number from 1 to 16"},
    {"FloatTooLarge", "\"eps\": 1e-06", "\"eps\": 1e300",
     "\"eps\" is 1e+300, want a number within the range of float"},
    {"UnknownName", "\"dtype\": \"fp16\"", "\"dtype\": \"fp64\"",
     "\"dtype\" is \"fp64\", want a known name"},
    {"NumberForName", "\"codec\": \"none\"", "\"codec\": 1", "\"codec\" is 1, want a text"},
    {"Missing", "\"mirror\": false,", "", "\"mirror\" is missing"},
    {"NullForFile", "\"weight\": \"[^\"]*\"", "\"weight\": null",
     "\"weight\" is null, want a file's name"},
    {"PathForFile", "\"weight\": \"[^\"]*\"", "\"weight\": \"../x\"",
     "\"weight\" is \"../x\", want a file's name"},
    {"NumberForOutputs", "\"outputs\": \\{[^}]*\\}", "\"outputs\": 3",
     "\"outputs\" is 3, want an object of files"},
};
INSTANTIATE_TEST_SUITE_P(Kinds, DamagedEpilogueIndex, ::testing::ValuesIn(kDamages),
                         [](const auto& damage) { return std::string(damage.param.name); });

}  // namespace
}  // namespace qrd::testing
