// SPDX-License-Identifier: Apache-2.0
// `qrbench tune`: the policy that it prints, and its flags.
#include "client/tools/qrbench/tune_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "client/tools/common/policy_text.h"
#include "client/tools/qrbench/tune_command.h"

namespace qrd::tools {
namespace {

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

TuneReport Report() {
  TuneReport report;
  report.version = "1.2.3";
  report.machine = "a machine";
  report.daemon = "qrd 1.2.3";
  report.backend = "gpu";
  report.input = "of synthetic tensors";
  report.budget_s = 60;
  TuneTable table;
  table.ranks = 4;
  table.dtype = Dtype::kFp16;
  table.plans = {{Codec::kNone, Algorithm::kOneShot, std::numeric_limits<double>::infinity()},
                 {Codec::kNone, Algorithm::kTwoShot, 54.9},
                 {Codec::kLp4, Algorithm::kTwoShot, 20.9}};
  table.excluded = {{Codec::kInt3, Algorithm::kTwoShot, 12.5}};
  table.points = {{4096, {5, 6, 20}}, {65536, {20, 15, 25}}, {1 << 20, {90, 80, 50}}};
  table.skipped = {16 << 20};
  report.tables = {table};
  return report;
}

TEST(TunePolicyTest, RulesCoverEveryPayloadOfTheWorldSizeOnce) {
  const v1::Policy policy = TunePolicy(Report());
  ASSERT_EQ(policy.rules_size(), 3);
  uint64_t next = 0;
  for (int i = 0; i < policy.rules_size(); ++i) {
    const v1::Rule& rule = policy.rules(i);
    EXPECT_EQ(rule.name(), "tune-w4-fp16-" + std::to_string(i));
    EXPECT_EQ(rule.match().payload_bytes_min(), next);
    next = rule.match().payload_bytes_max();
    EXPECT_EQ(rule.match().world_size_min(), 4u);
    EXPECT_EQ(rule.match().world_size_max(), 4u);
    ASSERT_EQ(rule.match().dtypes_size(), 1);
    EXPECT_EQ(rule.match().dtypes(0), v1::DTYPE_FP16);
  }
  EXPECT_EQ(next, 0u);  // the last has no end
  EXPECT_EQ(policy.rules(0).action().codec(), v1::CODEC_NONE);
  EXPECT_EQ(policy.rules(0).action().algorithm(), v1::ALGORITHM_ONE_SHOT);
  EXPECT_EQ(policy.rules(1).match().payload_bytes_min(), 65536u);
  EXPECT_EQ(policy.rules(1).action().algorithm(), v1::ALGORITHM_TWO_SHOT);
  EXPECT_EQ(policy.rules(2).match().payload_bytes_min(), 1u << 20);
  EXPECT_EQ(policy.rules(2).action().codec(), v1::CODEC_LP4);
}

TEST(TunePolicyTest, TheTextIsThePolicyWithItsFiguresAsComments) {
  const std::string text = TunePolicyText(Report());
  const auto read = ParsePolicyText(text, "tuned");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(PolicyToText(*read), PolicyToText(TunePolicy(Report())));
  EXPECT_CONTAINS(text, "# 1 MiB: lp4/two_shot 50.00 us, none/two_shot 80.00 us (-37.5 %)\n");
  EXPECT_CONTAINS(text, "# under the floor of 20 dB, not measured: int3/two_shot 12.5\n");
  EXPECT_CONTAINS(text, "# not measured, the budget of 60 s was used up: 16 MiB\n");
  EXPECT_EQ(text.find("No codec wins"), std::string::npos);
}

TEST(TunePolicyTest, SaysThatNoCodecWinsAndWhyNotOnTheHost) {
  TuneReport report = Report();
  report.tables[0].points.pop_back();
  EXPECT_CONTAINS(TunePolicyText(report), "# No codec wins by 5 % at any payload measured.\n");
  report.backend = "host";
  EXPECT_CONTAINS(TunePolicyText(report),
                  "at any payload measured. On the host backend ranks share memory");
}

TEST(TunePolicyTest, WithoutMeasurementsThereIsNoRule) {
  TuneReport report = Report();
  report.tables[0].points.clear();
  const std::string text = TunePolicyText(report);
  EXPECT_CONTAINS(text, "# nothing measured: no rule\n");
  EXPECT_EQ(TunePolicy(report).rules_size(), 0);
  EXPECT_TRUE(ParsePolicyText(text, "tuned").ok());
}

TEST(TunePolicyTest, NamesOfMachinesCannotLeaveTheirComment) {
  TuneReport report = Report();
  report.machine = "cpu\nrules { name: \"evil\" }";
  report.daemon = "qrd\rrules {";
  const auto read = ParsePolicyText(TunePolicyText(report), "tuned");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rules_size(), 3);
}

TEST(TuneSettingsTest, DefaultsAreThoseOfTheHelp) {
  const auto settings = MakeTuneSettings(TuneFlags(), false);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->daemon.ranks, std::vector<uint32_t>{2});
  EXPECT_EQ(settings->dtypes, std::vector<Dtype>{Dtype::kBf16});
  EXPECT_EQ(settings->daemon.sizes.front(), 4096u);
  EXPECT_EQ(settings->daemon.sizes.back(), uint64_t{64} << 20);
  EXPECT_EQ(settings->codecs, (std::vector{Codec::kNone, Codec::kInt8, Codec::kInt6, Codec::kInt4,
                                           Codec::kLp4, Codec::kLp3}));
  EXPECT_EQ(settings->floor_db, 20);
  EXPECT_EQ(settings->margin, 0.05);
}

TEST(TuneSettingsTest, PlansUnderTheFloorAreExcludedButNeverNone) {
  TuneFlags flags;
  flags.run.tensors.codecs = "int4,lp3";
  auto settings = MakeTuneSettings(flags, false);
  ASSERT_TRUE(settings.ok()) << settings.status();
  const auto table = PlansOf(*settings, 2, Dtype::kBf16);
  ASSERT_TRUE(table.ok()) << table.status();
  // Gaussian tensors, 2 ranks: int4 has 21.7 dB by one_shot and 19.8 by two_shot.
  ASSERT_EQ(table->plans.size(), 3u);
  EXPECT_EQ(table->plans[2].codec, Codec::kInt4);
  EXPECT_EQ(table->plans[2].algorithm, Algorithm::kOneShot);
  EXPECT_NEAR(table->plans[2].sqnr_db, 21.7, 0.3);
  ASSERT_EQ(table->excluded.size(), 3u);
  EXPECT_NEAR(table->excluded[0].sqnr_db, 19.8, 0.3);
  settings->floor_db = 1000;
  const auto strict = PlansOf(*settings, 2, Dtype::kBf16);
  ASSERT_TRUE(strict.ok());
  ASSERT_EQ(strict->plans.size(), 2u);
  EXPECT_EQ(strict->plans[0].codec, Codec::kNone);
  EXPECT_EQ(strict->plans[1].codec, Codec::kNone);
}

TEST(TuneSettingsTest, AnInputWithoutFiniteValuesLeavesOnlyNone) {
  auto settings = MakeTuneSettings(TuneFlags(), false);
  ASSERT_TRUE(settings.ok());
  const float nan = std::nanf("");
  settings->source.files = {std::vector<float>(64, nan), std::vector<float>(64, nan)};
  const auto table = PlansOf(*settings, 2, Dtype::kBf16);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->plans.size(), 2u);  // nothing finite to compare: no codec is trusted
}

struct WrongFlags {
  const char* name;
  void (*change)(TuneFlags&);
  const char* message;
};
class TuneWrongFlags : public ::testing::TestWithParam<WrongFlags> {};

TEST_P(TuneWrongFlags, AreRefusedByName) {
  TuneFlags flags;
  GetParam().change(flags);
  const auto settings = MakeTuneSettings(flags, false);
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(settings.status().message(), GetParam().message);
}

const WrongFlags kWrongFlags[] = {
    {"OneRank", [](TuneFlags& f) { f.ranks = "1"; }, "--ranks: 1 is not within 2 to 16"},
    {"ManyRanks", [](TuneFlags& f) { f.ranks = "2,17"; }, "--ranks: 17 is not within 2 to 16"},
    {"NoNumber", [](TuneFlags& f) { f.ranks = "two"; }, "--ranks: two is not within 2 to 16"},
    {"RanksTwice", [](TuneFlags& f) { f.ranks = "2,02"; }, "--ranks: 2 is named twice"},
    {"Processes", [](TuneFlags& f) { f.ranks = "16,15,14,13,12"; },
     "--ranks: 70 processes in all; want at most 64"},
    {"AutoCodec", [](TuneFlags& f) { f.run.tensors.codecs = "auto"; },
     "--codecs: auto is what tune replaces; name codecs or all"},
    {"Codec", [](TuneFlags& f) { f.run.tensors.codecs = "int5"; },
     "--codecs: unknown value \"int5\"; did you mean \"int8\"? Known: auto, none, fp8, int8, "
     "int6, int4, fp4, int3, lp4, lp3, lp3c, lp2"},
    {"Floor", [](TuneFlags& f) { f.floor_db = std::nan(""); },
     "--min-sqnr-db: nan is not within -1000 to 1000"},
    {"Margin", [](TuneFlags& f) { f.margin_percent = 0; }, "--margin: 0 is not within 0.1 to 50"},
    {"Budget", [](TuneFlags& f) { f.budget_s = 0.5; }, "--budget-s: 0.5 is not within 1 to 86400"},
    {"Size", [](TuneFlags& f) { f.run.sizes = "2"; },
     "--sizes: 2 is not within 4 to 1099511627776"},
    {"Communicator",
     [](TuneFlags& f) {
       f.ranks = "2,4";
       f.run.settings.communicator = "tp";
     },
     "--communicator: goes with one world size of --ranks only"},
};
INSTANTIATE_TEST_SUITE_P(Flags, TuneWrongFlags, ::testing::ValuesIn(kWrongFlags),
                         [](const auto& line) { return std::string(line.param.name); });

}  // namespace
}  // namespace qrd::tools
