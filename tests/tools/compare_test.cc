// SPDX-License-Identifier: Apache-2.0
// `qrbench compare`: which lines are compared, what is shown, what is refused.
#include "client/tools/qrbench/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/support/temp_directory.h"
#include "tests/tools/xml_check.h"

namespace qrd::tools {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Row(uint64_t bytes, const std::string& codec, const std::string& algorithm, double us,
         const std::string& dtype = "bf16") {
  return {{"bytes", bytes}, {"dtype", dtype}, {"codec", codec}, {"algorithm", algorithm},
          {"ranks", 2},     {"groups", 1},    {"p50_us", us},   {"error", ""}};
}

class CompareTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::vector<json>& rows) {
    const std::string path = directory_ / name;
    std::ofstream(path) << json{{"program", "qrbench"},
                                {"settings", "2 ranks"},
                                {"machine", {{"cpu", "a CPU"}}},
                                {"results", rows}};
    return path;
  }
  TimingFile Read(const std::string& label, const std::vector<json>& rows) {
    const auto file = ReadTimings(File(label + ".json", rows), label);
    EXPECT_TRUE(file.ok()) << file.status();
    return *file;
  }
  qrd::testing::TempDirectory directory_;
};

TEST_F(CompareTest, TheFastestLinesOfBothSidesAreCompared) {
  const TimingFile base =
      Read("nccl", {Row(4096, "none", "library", 30), Row(4096, "none", "library", 20),
                    Row(8192, "none", "library", 40)});
  const TimingFile ours =
      Read("qrd", {Row(4096, "none", "one_shot", 10), Row(4096, "none", "two_shot", 16),
                   Row(4096, "int4", "two_shot", 40), Row(8192, "none", "two_shot", 20),
                   Row(1 << 20, "none", "two_shot", 5)});
  const auto comparison = Compare(base, {ours});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_THAT(comparison->series, ElementsAre("none", "int4"));
  ASSERT_EQ(comparison->cases.size(), 2u);  // 1 MiB is not in the base
  const ComparedCase& small = comparison->cases[0];
  EXPECT_EQ(small.bytes, 4096u);
  EXPECT_EQ(small.base.p50_us, 20);
  ASSERT_EQ(small.entries.size(), 2u);
  EXPECT_EQ(small.entries[0].best.algorithm, "one_shot");
  EXPECT_DOUBLE_EQ(small.entries[0].speedup, 2);
  EXPECT_DOUBLE_EQ(small.entries[1].speedup, 0.5);
  EXPECT_EQ(ComparisonTable(*comparison, /*markdown=*/true),
            "| dtype | ranks | bytes | base us | none | int4 |\n"
            "|---|---:|---:|---:|---:|---:|\n"
            "| bf16 | 2 | 4K | 20.0 | 2.00 1s | 0.50 2s |\n"
            "| bf16 | 2 | 8K | 40.0 | 2.00 2s | - |\n");
  EXPECT_THAT(ComparisonTable(*comparison, false), HasSubstr("bf16"));
  EXPECT_THAT(ComparisonCsv(*comparison),
              HasSubstr("bf16,2,1,4096,none,library,20.000,int4,int4,two_shot,40.000,0.5000\n"));
}

TEST_F(CompareTest, TypesAndFilesAreKeptApart) {
  const TimingFile base =
      Read("base", {Row(4096, "none", "two_shot", 20), Row(4096, "none", "two_shot", 30, "fp16")});
  const auto comparison = Compare(
      base, {Read("stream", {Row(4096, "none", "one_shot", 10)}),
             Read("graph",
                  {Row(4096, "none", "one_shot", 5), Row(4096, "none", "one_shot", 3, "fp16")})});
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_THAT(comparison->series, ElementsAre("stream none", "graph none"));
  ASSERT_EQ(comparison->cases.size(), 2u);
  EXPECT_EQ(comparison->cases[0].dtype, "bf16");
  EXPECT_DOUBLE_EQ(comparison->cases[0].entries[1].speedup, 4);
  ASSERT_EQ(comparison->cases[1].entries.size(), 1u);
  EXPECT_DOUBLE_EQ(comparison->cases[1].entries[0].speedup, 10);
  const std::string svg = ComparisonPlot(*comparison, base, "a <CPU>");
  EXPECT_EQ(qrd::testing::XmlChecker(svg).Check(), "");
  EXPECT_THAT(svg, HasSubstr("speedup over base"));
  EXPECT_THAT(svg, HasSubstr("a &lt;CPU&gt;"));
  EXPECT_THAT(svg, HasSubstr("graph none"));
}

TEST_F(CompareTest, LinesThatFailedAreCountedNotCompared) {
  json failed = Row(4096, "int8", "two_shot", 0);
  failed["error"] = "wrong";
  const TimingFile file = Read("x", {Row(4096, "none", "two_shot", 1), failed});
  EXPECT_EQ(file.timings.size(), 1u);
  EXPECT_EQ(file.failed, 1u);
}

TEST_F(CompareTest, FilesThatAreNoResultsAreRefusedByName) {
  const auto error = [&](const std::string& text) {
    const std::string path = directory_ / "bad.json";
    std::ofstream(path) << text;
    return std::string(ReadTimings(path, "bad").status().message());
  };
  for (const char* text : {"", "[]", "{\"results\": 3}", "{\"results\": ["}) {
    EXPECT_THAT(error(text), HasSubstr("bad.json: not the output of 'qrbench all_reduce -o json'"))
        << text;
  }
  EXPECT_THAT(error("{\"results\": [{\"bytes\": 4}]}"), HasSubstr("bad.json: results[0]: "));
  EXPECT_THAT(error("{\"results\": [7]}"), HasSubstr("bad.json: results[0]: "));
  json zero = Row(4, "none", "two_shot", 0);
  EXPECT_THAT(error(json{{"results", {zero}}}.dump()),
              HasSubstr("results[0].p50_us is 0; want a time above 0"));
  EXPECT_EQ(ReadTimings(directory_ / "none.json", "none").status().code(),
            absl::StatusCode::kNotFound);
  const TimingFile a = Read("a", {Row(4096, "none", "two_shot", 1)});
  const TimingFile b = Read("b", {Row(8192, "none", "two_shot", 1)});
  EXPECT_THAT(std::string(Compare(a, {b}).status().message()), HasSubstr("nothing to compare: a"));
}

}  // namespace
}  // namespace qrd::tools
