// SPDX-License-Identifier: Apache-2.0
// Tables, numbers for people, SVG, CSV, JSON.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/tools/common/nearest.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/plot_results.h"
#include "client/tools/qrbench/report.h"
#include "client/tools/qrbench/svg_plot.h"
#include "tests/tools/xml_check.h"

namespace qrd::tools {
namespace {

using qrd::testing::XmlChecker;

TEST(Units, BytesForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1 KiB");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{64} << 20), "64 MiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16 EiB");
  EXPECT_EQ(ShortBytes(4096), "4K");
  EXPECT_EQ(ShortBytes(4097), "4097");
  EXPECT_EQ(ShortBytes(uint64_t{1} << 30), "1G");
  EXPECT_EQ(ShortBytes(0), "0");
}

TEST(Units, BytesAreParsedBack) {
  EXPECT_EQ(*ParseBytes("4096", "x"), 4096u);
  EXPECT_EQ(*ParseBytes("4K", "x"), 4096u);
  EXPECT_EQ(*ParseBytes("4kib", "x"), 4096u);
  EXPECT_EQ(*ParseBytes("1.5M", "x"), 1572864u);
  EXPECT_EQ(*ParseBytes(" 2 GiB", "x"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("2GB", "x"), uint64_t{2} << 30);
  for (const char* bad : {"", "K", "-1", "1e30", "nan", "inf", "0x10", "4KK", "1.1", "ib", "b"}) {
    EXPECT_FALSE(ParseBytes(bad, "x").ok()) << bad;
  }
}

TEST(Units, OtherNumbers) {
  EXPECT_EQ(GroupDigits(0), "0");
  EXPECT_EQ(GroupDigits(999), "999");
  EXPECT_EQ(GroupDigits(1234567), "1,234,567");
  EXPECT_EQ(HumanSeconds(0.25), "250ms");
  EXPECT_EQ(HumanSeconds(200), "3m 20s");
  EXPECT_EQ(HumanSeconds(3 * 3600 + 61), "3h 01m");
  EXPECT_EQ(HumanSeconds(-5), "0s");
  EXPECT_EQ(Significant(3.14159), "3.142");
  EXPECT_EQ(Significant(1234.5678), "1235");
  EXPECT_EQ(Significant(0.0123456), "0.01235");
  EXPECT_EQ(Significant(0), "0");
  EXPECT_EQ(Significant(std::nan("")), "nan");
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> known = {"status", "comm", "policy", "capabilities"};
  EXPECT_EQ(Nearest("stauts", known), "status");
  EXPECT_EQ(Nearest("polcy", known), "policy");
  EXPECT_EQ(Nearest("capa", known), "capabilities");
  EXPECT_EQ(Nearest("zzzz", known), std::nullopt);
  EXPECT_EQ(Nearest("", known), std::nullopt);
  EXPECT_EQ(Nearest(std::string(100000, 's'), known), std::nullopt);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
}

TEST(Nearest, KeepsSilentAboutWordsThatAreNotNear) {
  EXPECT_EQ(Nearest("foo", {"none", "fp8", "int8"}), std::nullopt);
  EXPECT_EQ(Nearest("--foo", {"--gpu", "--top"}), std::nullopt);
  EXPECT_EQ(Nearest("fp9", {"none", "fp8", "int8"}), "fp8");
}

TEST(CountWithFailures, KeepsTheCommasOfNumbersAndOfTheListApart) {
  EXPECT_EQ(CountWithFailures(128191, 26826), "128,191, of which 26,826 failed");
  EXPECT_EQ(CountWithFailures(12, 0), "12, none failed");
}

TEST(TableText, CutsTheMiddleOfLongNamesToFit) {
  Table table({{"NAME", Align::kLeft, true}, {"VALUE"}});
  table.AddRow({std::string(30, 'a') + std::string(30, 'z'), "1"});
  EXPECT_EQ(table.ToString(22), "NAME             VALUE\naaaaaa...zzzzzz  1\n");
  // Not below 12 characters, however little room there is.
  EXPECT_EQ(table.ToString(5), "NAME          VALUE\naaaaa...zzzz  1\n");
  EXPECT_EQ(table.ToString().find("..."), std::string::npos);
}

TEST(TableText, AlignsAndTrims) {
  Table table({{"NAME"}, {"N", Align::kRight}, {"NOTE"}});
  table.AddRow({"a", "7", ""});
  table.AddRow({"longer", "1,000", "x"});
  table.AddRow({"short"});
  EXPECT_EQ(table.ToString(),
            "NAME        N  NOTE\n"
            "a           7\n"
            "longer  1,000  x\n"
            "short\n");
}

TEST(TableText, HostileCellsCannotMoveTheCursor) {
  Table table({{"NAME"}});
  table.AddRow({"a\x1b[2Jb\nc"});
  EXPECT_EQ(table.ToString(), "NAME\na?[2Jb?c\n");
}

TEST(TableText, Utf8CountsCharacters) {
  Table table({{"A"}, {"B"}});
  table.AddRow({"\xc3\xbc", "x"});
  EXPECT_EQ(table.ToString(), "A  B\n\xc3\xbc  x\n");
}

Row MakeRow(uint64_t bytes, Codec codec, double p50_us, double sqnr_db) {
  Row row;
  row.bytes = bytes;
  row.count = bytes / 2;
  row.dtype = Dtype::kBf16;
  row.codec_requested = std::string(Name(codec));
  row.algorithm_requested = "auto";
  row.codec = codec;
  row.ranks = 2;
  row.iterations = 20;
  row.p50_us = p50_us;
  row.p99_us = 2 * p50_us;
  row.algbw_gbps = static_cast<double>(bytes) / p50_us / 1e3;
  row.busbw_gbps = row.algbw_gbps;
  row.limit_gbps = 10;
  row.wire_bytes = bytes / 4;
  row.ratio = 0.25;
  row.sqnr_db = sqnr_db;
  row.max_error = 0.5;
  row.hash = 0xABC;
  row.check = "bits";
  return row;
}

RunInfo MakeInfo() {
  RunInfo info;
  info.version = "1.2.3";
  info.daemon = "qrd at /x, \"quoted\"";
  info.settings = "2 ranks";
  info.machine = {"CPU <model> & co", "Linux 6", "AVX2", 2, uint64_t{1} << 34};
  info.relay = RelayTimes{50, 80, 1000};
  return info;
}

std::string Written(const std::string& format, const std::vector<Row>& rows) {
  char* text = nullptr;
  size_t length = 0;
  std::FILE* file = open_memstream(&text, &length);
  const auto writer = MakeReportWriter(format, file);
  writer->Begin(MakeInfo());
  for (const Row& row : rows) writer->Add(row);
  writer->End(MakeInfo(), rows);
  std::fclose(file);
  std::string result(text, length);
  free(text);
  return result;
}

const double kExact = std::numeric_limits<double>::infinity();

TEST(Report, CsvHasAsManyCellsInEachRowAsInItsHeader) {
  std::vector<Row> rows = {MakeRow(4096, Codec::kInt8, 75, 44.5),
                           MakeRow(1 << 20, Codec::kNone, 100, kExact)};
  rows[1].limit_gbps.reset();
  std::istringstream csv(Written("csv", rows));
  std::string header, first, second, rest;
  std::getline(csv, header);
  std::getline(csv, first);
  std::getline(csv, second);
  EXPECT_FALSE(std::getline(csv, rest));
  const auto commas = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  EXPECT_EQ(commas(first), commas(header));
  EXPECT_EQ(commas(second), commas(header));
  EXPECT_EQ(header.rfind("bytes,count,dtype,op,codec_requested", 0), 0u);
  EXPECT_EQ(first.rfind("4096,2048,bf16,sum,int8,auto,int8,two_shot,2,1,0,0,20,75.000,150.000,", 0),
            0u)
      << first;
  EXPECT_NE(first.find(",44.5,"), std::string::npos);
  EXPECT_NE(first.find(",0000000000000abc,bits,,50.000,80.000"), std::string::npos) << first;
}

TEST(Report, CsvQuotesErrors) {
  Row row = MakeRow(4096, Codec::kInt8, 75, 44.5);
  row.error = "rank 1, \"gone\"";
  EXPECT_NE(Written("csv", {row}).find("\"rank 1, \"\"gone\"\"\""), std::string::npos);
}

TEST(Report, JsonParsesAndCarriesTheValues) {
  Row failed = MakeRow(8192, Codec::kInt4, 80, 20);
  failed.error = "bad \xff byte";
  const auto json =
      nlohmann::json::parse(Written("json", {MakeRow(4096, Codec::kInt8, 75, 44.5),
                                             MakeRow(4096, Codec::kNone, 60, kExact), failed}));
  EXPECT_EQ(json["version"], "1.2.3");
  EXPECT_EQ(json["machine"]["cores"], 2);
  ASSERT_EQ(json["results"].size(), 3u);
  EXPECT_EQ(json["results"][0]["codec"], "int8");
  EXPECT_EQ(json["results"][0]["bytes"], 4096);
  EXPECT_EQ(json["results"][0]["sqnr_db"], 44.5);
  EXPECT_TRUE(json["results"][1]["sqnr_db"].is_null());
  EXPECT_EQ(json["results"][1]["exact"], true);
  // The fastest of the smallest size over the relay's p50.
  EXPECT_DOUBLE_EQ(json["relay"]["ratio"].get<double>(), 60.0 / 50.0);
}

TEST(Report, TableLinesAreNoWiderThan120ColumnsAndNumbersAreThere) {
  const std::string text =
      Written("table", {MakeRow(4096, Codec::kInt8, 75.25, 44.5),
                        MakeRow(uint64_t{256} << 20, Codec::kNone, 123456.7, kExact)});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  for (const char* part : {"75.25", "44.50", "exact", "123457", "256M", "134217728", "bits",
                           "relay ratio 1.50 (p50 of 4 KiB served"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Report, ARelayRatioNeedsTwoRanksInOneGroup) {
  Row row = MakeRow(4096, Codec::kNone, 75, kExact);
  EXPECT_DOUBLE_EQ(*RelayRatio(MakeInfo(), {row}), 1.5);
  row.ranks = 4;
  EXPECT_FALSE(RelayRatio(MakeInfo(), {row}).has_value());
  EXPECT_FALSE(RelayRatio(MakeInfo(), {}).has_value());
}

TEST(Report, BusFactor) {
  EXPECT_DOUBLE_EQ(BusFactor(1), 0);
  EXPECT_DOUBLE_EQ(BusFactor(2), 1);
  EXPECT_DOUBLE_EQ(BusFactor(4), 1.5);
}

TEST(Svg, APlotOfResultsIsWellFormedAndHasItsParts) {
  std::vector<Row> rows;
  for (const uint64_t bytes : {4096u, 65536u, 1048576u}) {
    rows.push_back(MakeRow(bytes, Codec::kNone, 60 + static_cast<double>(bytes) / 1e4, kExact));
    rows.push_back(MakeRow(bytes, Codec::kInt8, 80 + static_cast<double>(bytes) / 5e3, 44.5));
  }
  const std::string svg = PlotResults(MakeInfo(), rows);
  EXPECT_EQ(XmlChecker(svg).Check(), "");
  for (const char* part :
       {"microseconds", "SQNR in dB", ">int8<", ">none<", "machine limit", "4 KiB", "1 MiB",
        "CPU &lt;model&gt; &amp; co", "payload of one rank", "2 ranks, sum, bf16"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

TEST(Svg, ResultsOfOneSizeStandOverTheirCodecs) {
  std::vector<Row> rows;
  for (const Codec codec : {Codec::kNone, Codec::kInt8, Codec::kLp3}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      rows.push_back(MakeRow(91520, codec, 60, codec == Codec::kNone ? kExact : 30));
      rows.back().algorithm = algorithm;
    }
  }
  const std::string svg = PlotResults(MakeInfo(), rows);
  EXPECT_EQ(XmlChecker(svg).Check(), "");
  for (const char* part :
       {">none<", ">int8<", ">lp3<", ">one_shot<", ">two_shot<", ">codec<", "45,760 elements"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(svg.find("KiB"), std::string::npos);
}

TEST(Svg, PointsAreWhereTheirValuesBelong) {
  Plot plot;
  plot.x_is_bytes = false;
  plot.panels = {{"p", "y", true, {{"s", {{1, 1}, {10, 10}, {100, 100}}, true}}}};
  const std::string svg = ToSvg(plot);
  // A straight line on two log axes: the middle point is the mean of its neighbours.
  const size_t at = svg.find("stroke-dasharray");
  ASSERT_NE(at, std::string::npos);
  const size_t start = svg.rfind("d=\"M", at);
  double x[3], y[3];
  ASSERT_EQ(std::sscanf(svg.c_str() + start, "d=\"M%lf %lfL%lf %lfL%lf %lf", &x[0], &y[0], &x[1],
                        &y[1], &x[2], &y[2]),
            6);
  EXPECT_NEAR(x[1], (x[0] + x[2]) / 2, 0.11);
  EXPECT_NEAR(y[1], (y[0] + y[2]) / 2, 0.11);
  EXPECT_LT(x[0], x[2]);
  EXPECT_GT(y[0], y[2]);  // SVG counts downwards
}

TEST(Svg, OneValueNoValueAndHostileTextAreWellFormed) {
  const double nan = std::nan("");
  for (const std::vector<Point>& points : {std::vector<Point>{}, std::vector<Point>{{4096, 7}},
                                           std::vector<Point>{{nan, 1}, {1, nan}, {0, 5}},
                                           std::vector<Point>{{1, -5}, {2, 1e300}, {3, kExact}}}) {
    for (const bool log : {false, true}) {
      Plot plot;
      plot.title = "a < b & \"c\" \x01 \xff";
      plot.panels = {{"p>", "y", log, {{"s&t", points, false}}}};
      EXPECT_EQ(XmlChecker(ToSvg(plot)).Check(), "");
    }
  }
  EXPECT_EQ(XmlChecker(ToSvg({})).Check(), "");
}

TEST(Svg, TheCheckerFindsWhatIsBroken) {
  for (const std::string text : {"<a>", "<a></b>", "<a x=1/>", "<a x=\"1\" x=\"2\"/>",
                                 "<a>&nbsp;</a>", "<a/><b/>", "text", ""}) {
    EXPECT_NE(XmlChecker(text).Check(), "") << text;
  }
}

}  // namespace
}  // namespace qrd::tools
