// SPDX-License-Identifier: Apache-2.0
// `qrbench tune`: decisions and measuring by scripted times and a scripted clock.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/tools/qrbench/tune_decide.h"
#include "client/tools/qrbench/tune_measure.h"

namespace qrd::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Plans: 0 none one_shot, 1 none two_shot, 2 lp4 (20.9 dB), 3 int4 (19.2 dB).
TuneTable Table(const std::vector<std::vector<double>>& us) {
  TuneTable table;
  table.ranks = 4;
  table.plans = {{Codec::kNone, Algorithm::kOneShot, kInfinity},
                 {Codec::kNone, Algorithm::kTwoShot, 54.9},
                 {Codec::kLp4, Algorithm::kTwoShot, 20.9},
                 {Codec::kInt4, Algorithm::kTwoShot, 19.2}};
  uint64_t bytes = 1024;
  for (const std::vector<double>& row : us) table.points.push_back({bytes *= 2, row});
  return table;
}

// "plan from bytes" of each segment.
using Steps = std::vector<std::pair<size_t, uint64_t>>;
Steps Decide(const std::vector<std::vector<double>>& us, double margin = 0.05) {
  Steps steps;
  for (const TuneSegment& s : DecideSegments(Table(us), margin)) {
    steps.emplace_back(s.plan, s.payload_bytes);
  }
  return steps;
}

TEST(TuneDecideTest, NothingMeasuredNothingDecided) { EXPECT_EQ(Decide({}), Steps()); }

TEST(TuneDecideTest, CodecsThatNeverWinAreNeverChosen) {
  EXPECT_EQ(Decide({{5, 6, 9, 8}, {10, 11, 20, 19}, {40, 41, 90, 80}}), (Steps{{0, 0}}));
}

TEST(TuneDecideTest, ACrossoverIsTheFirstPayloadWhereTheChangeWinsByTheMargin) {
  EXPECT_EQ(Decide({{10, 12, 30, 30}, {20, 19.1, 30, 30}, {40, 38, 60, 60}, {80, 60, 90, 90}}),
            (Steps{{0, 0}, {1, 8192}}));
  // 95 % of the time in force is enough, a little more is not.
  EXPECT_EQ(Decide({{10, 11, 99, 99}, {100, 95, 200, 200}}), (Steps{{0, 0}, {1, 4096}}));
  EXPECT_EQ(Decide({{10, 11, 99, 99}, {100, 95.1, 200, 200}}), (Steps{{0, 0}}));
}

TEST(TuneDecideTest, TheFirstPlanHasACodecOnlyIfThatWinsByTheMargin) {
  EXPECT_EQ(Decide({{100, 101, 99, 96}}), (Steps{{0, 0}}));
  EXPECT_EQ(Decide({{100, 101, 99, 94}}), (Steps{{3, 0}}));
}

TEST(TuneDecideTest, OfEquallyFastPlansTheMostAccurateIsTaken) {
  EXPECT_EQ(Decide({{100, 100, 52, 50}}), (Steps{{2, 0}}));  // int4 wins by 4 % only
  EXPECT_EQ(Decide({{100, 100, 53, 50}}), (Steps{{3, 0}}));  // by 6 %
  // lp4 is as fast as int4 but does not win by the margin over what is in force: int4 does.
  EXPECT_EQ(Decide({{10, 11, 20, 20}, {100, 100, 97, 94}}), (Steps{{0, 0}, {3, 4096}}));
}

TEST(TuneDecideTest, AFasterButCoarserCodecMustWinByTheMarginOverTheOneInForce) {
  EXPECT_EQ(Decide({{100, 100, 50, 51}, {100, 100, 50, 48}, {100, 100, 50, 47}}),
            (Steps{{2, 0}, {3, 8192}}));
}

TEST(TuneDecideTest, ACodecThatGainsNothingGoesAtOnce) {
  const auto segments = DecideSegments(Table({{100, 100, 80, 90}, {100, 99, 99, 98}}), 0.05);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].plan, 2u);
  EXPECT_EQ(segments[1].plan, 1u);  // 99 us without a codec, 99 with
  EXPECT_TRUE(segments[1].no_gain);
  // One that still gains something stays.
  EXPECT_EQ(Decide({{100, 100, 80, 90}, {100, 99, 98, 98}}), (Steps{{2, 0}}));
}

TEST(TuneDecideTest, NoiseBelowTheMarginChangesNothing) {
  EXPECT_EQ(Decide({{10, 10.2, 30, 30}, {20.3, 20, 60, 60}, {40, 40.9, 99, 99}, {81, 80, 99, 99}}),
            (Steps{{0, 0}}));
}

TEST(TuneDecideTest, ASegmentSaysWhatItWonAgainst) {
  const auto segments = DecideSegments(Table({{10, 11, 12, 13}, {20, 15, 99, 99}}), 0.05);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].loser, 1u);  // the fastest other one
  EXPECT_EQ(segments[0].point, 0u);
  EXPECT_EQ(segments[1].loser, 0u);  // the one in force before
  EXPECT_EQ(segments[1].point, 1u);
}

// Times by a function of plan and payload; the clock goes on by what the operations take.
class ScriptedSource : public TuneSource {
 public:
  using Time = std::function<double(uint32_t ranks, const TunePlan&, uint64_t bytes)>;
  explicit ScriptedSource(Time time) : time_(std::move(time)) {}

  absl::Status Open(uint32_t ranks, Dtype, uint64_t bytes_max) override {
    ranks_ = ranks;
    opened.emplace_back(ranks, bytes_max);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> Batch(const TunePlan& plan, uint64_t bytes) override {
    batches.emplace_back(std::string(Name(plan.codec)), bytes);
    if (batches.size() == fail_at) return absl::UnavailableError("rank 1 ended");
    if (empty) return std::vector<double>();
    const double us = time_(ranks_, plan, bytes);
    now_s += 10 * us / 1e6;
    return std::vector<double>(10, us);
  }
  double Seconds() override { return now_s; }
  void Report(const std::string& progress) override { last_report = progress; }

  std::vector<std::pair<uint32_t, uint64_t>> opened;
  std::vector<std::pair<std::string, uint64_t>> batches;
  std::string last_report;
  double now_s = 1000;
  size_t fail_at = 0;
  bool empty = false;

 private:
  const Time time_;
  uint32_t ranks_ = 0;
};

TuneSearch Search(std::vector<uint64_t> sizes, double budget_s, std::vector<uint32_t> ranks = {2}) {
  TuneSearch search;
  for (const uint32_t n : ranks) {
    TuneTable table;
    table.ranks = n;
    table.plans = {{Codec::kNone, Algorithm::kTwoShot, kInfinity},
                   {Codec::kInt8, Algorithm::kTwoShot, 43},
                   {Codec::kInt4, Algorithm::kTwoShot, 20}};
    search.tables.push_back(table);
  }
  search.sizes = std::move(sizes);
  search.budget_s = budget_s;
  return search;
}

TEST(TuneMeasureTest, MeasuresEveryPlanOfEveryPayload) {
  ScriptedSource source([](uint32_t, const TunePlan& plan, uint64_t bytes) {
    const double wire = static_cast<double>(EncodedBytes(plan.codec, Dtype::kBf16, bytes / 2));
    return (plan.codec == Codec::kNone ? 5 : 20) + wire / 1e3;
  });
  const auto tables = MeasureTables(Search({4096, 65536, 1 << 20}, 1000, {2, 4}), source);
  ASSERT_TRUE(tables.ok()) << tables.status();
  ASSERT_EQ(tables->size(), 2u);
  for (const TuneTable& table : *tables) {
    EXPECT_TRUE(table.skipped.empty());
    ASSERT_EQ(table.points.size(), 3u);
    EXPECT_DOUBLE_EQ(table.points[0].us[0], 5 + 4.096);
    EXPECT_DOUBLE_EQ(table.points[2].us[2], 20 + (1 << 20) * 18.0 / 64 / 1e3);
    EXPECT_EQ(DecideSegments(table, 0.05).back().plan, 2u);
  }
  EXPECT_EQ(source.opened,
            (std::vector<std::pair<uint32_t, uint64_t>>{{2, 1 << 20}, {4, 1 << 20}}));
}

TEST(TuneMeasureTest, PlansTakeTurnsForwardsAndBackwards) {
  ScriptedSource source([](uint32_t, const TunePlan&, uint64_t) { return 10.0; });
  ASSERT_TRUE(MeasureTables(Search({4096}, 1000), source).ok());
  ASSERT_EQ(source.batches.size(), 3u * (kTuneRoundsMax + 1));  // one round warms up
  const std::vector<std::string> want = {"int4", "int8", "none", "none", "int8", "int4"};
  for (size_t i = 0; i < source.batches.size(); ++i) {
    EXPECT_EQ(source.batches[i].first, want[i % want.size()]) << i;
  }
}

TEST(TuneMeasureTest, ASlowMinuteMovesNoMedian) {
  // Everything takes ten times as long in every fourth round.
  int call = 0;
  ScriptedSource source([&call](uint32_t, const TunePlan& plan, uint64_t) {
    const double us = plan.codec == Codec::kNone ? 100 : 50;
    return call++ / 3 % 4 == 2 ? 10 * us : us;
  });
  const auto tables = MeasureTables(Search({1 << 20}, 1000), source);
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ(tables->front().points[0].us, (std::vector<double>{100, 50, 50}));
}

TEST(TuneMeasureTest, TheWarmUpIsNotCounted) {
  int call = 0;
  ScriptedSource source(
      [&call](uint32_t, const TunePlan&, uint64_t) { return call++ < 3 ? 1e6 : 10.0; });
  const auto tables = MeasureTables(Search({4096}, 40), source);
  ASSERT_TRUE(tables.ok());
  ASSERT_EQ(tables->front().points.size(), 1u);
  EXPECT_EQ(tables->front().points[0].us, (std::vector<double>{10, 10, 10}));
}

TEST(TuneMeasureTest, WhatDoesNotFitIntoTheBudgetIsLeftOutAndNamed) {
  // 1 us a KiB: a batch of 1 MiB takes 10 ms, of 1 GiB 10 s.
  const auto time = [](uint32_t, const TunePlan&, uint64_t bytes) {
    return static_cast<double>(bytes) / 1024;
  };
  ScriptedSource source(time);
  const std::vector<uint64_t> sizes = {1 << 20, 16 << 20, 256 << 20, 1 << 30};
  const auto tables = MeasureTables(Search(sizes, 20), source);
  ASSERT_TRUE(tables.ok());
  const TuneTable& table = tables->front();
  ASSERT_EQ(table.points.size(), 2u);
  EXPECT_EQ(table.skipped, (std::vector<uint64_t>{256 << 20, 1 << 30}));
  // Not even begun: the payloads before told how long it would take.
  EXPECT_EQ(source.batches.back().second, uint64_t{16} << 20);
  EXPECT_LE(source.now_s, 1000 + 20);
}

TEST(TuneMeasureTest, EndsOneBatchAfterTheBudgetAtTheLatest) {
  // The second payload is a hundred times slower than the first lets expect.
  ScriptedSource source([](uint32_t, const TunePlan&, uint64_t bytes) {
    return bytes > 4096 ? 1e5 : 10.0;  // a batch: 1 s
  });
  const auto tables = MeasureTables(Search({4096, 8192, 16384}, 5.5), source);
  ASSERT_TRUE(tables.ok());
  EXPECT_LE(source.now_s, 1000 + 5.5 + 1);
  ASSERT_EQ(tables->front().points.size(), 1u);  // two rounds are no measurement
  EXPECT_EQ(tables->front().skipped, (std::vector<uint64_t>{8192, 16384}));
}

TEST(TuneMeasureTest, EveryTableGetsItsShareOfTheTime) {
  ScriptedSource source([](uint32_t ranks, const TunePlan&, uint64_t bytes) {
    return ranks == 2 ? 1e4 * static_cast<double>(bytes) / 4096 : 10.0;
  });
  const auto tables = MeasureTables(Search({4096, 65536}, 12, {2, 4}), source);
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ((*tables)[0].points.size(), 1u);
  EXPECT_EQ((*tables)[0].skipped, (std::vector<uint64_t>{65536}));
  EXPECT_EQ((*tables)[1].points.size(), 2u);
  EXPECT_TRUE((*tables)[1].skipped.empty());
}

TEST(TuneMeasureTest, AnErrorOfTheSourceIsTheError) {
  ScriptedSource source([](uint32_t, const TunePlan&, uint64_t) { return 10.0; });
  source.fail_at = 5;
  const auto tables = MeasureTables(Search({4096}, 10), source);
  EXPECT_EQ(tables.status(), absl::UnavailableError("rank 1 ended"));
  ScriptedSource silent([](uint32_t, const TunePlan&, uint64_t) { return 10.0; });
  silent.empty = true;
  EXPECT_EQ(MeasureTables(Search({4096}, 10), silent).status(),
            absl::InternalError("a batch without times"));
}

TEST(TuneMeasureTest, ProgressNamesRanksPayloadAndTimeLeft) {
  ScriptedSource source([](uint32_t, const TunePlan&, uint64_t) { return 10.0; });
  ASSERT_TRUE(MeasureTables(Search({4096}, 10), source).ok());
  EXPECT_EQ(source.last_report, "[2 ranks bf16] 4 KiB, round 15, 10 s of this part left");
}

}  // namespace
}  // namespace qrd::tools
