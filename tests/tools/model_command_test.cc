// SPDX-License-Identifier: Apache-2.0
// `qrbench model`: flags, JSON, CSV, plot.
#include "client/tools/qrbench/model_command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "client/tools/qrbench/model_published.h"
#include "client/tools/qrbench/model_report.h"
#include "tests/tools/xml_check.h"

namespace qrd::tools {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

ModelFlags PredictionFlags() {
  ModelFlags flags;
  flags.machine = "mi300x";
  flags.ranks = 4;
  flags.bytes = "1M,64M";
  flags.codecs = "none,int4";
  return flags;
}

TEST(ModelCommandTest, PrintsEveryCaseAsJsonAndCsv) {
  ModelFlags flags = PredictionFlags();
  flags.output = "json";
  auto settings = MakeModelSettings(flags);
  ASSERT_TRUE(settings.ok()) << settings.status();
  const auto json = nlohmann::json::parse(*PredictionText(*settings));
  ASSERT_EQ(json["predictions"].size(), 4u);
  EXPECT_EQ(json["predictions"][3]["codec"], "int4");
  EXPECT_EQ(json["predictions"][3]["bytes"], 64 * kMiB);
  EXPECT_NEAR(json["predictions"][3]["time_us"].get<double>(),
              Predict(settings->machines[0], {4, 64 * kMiB, Dtype::kFp16, Codec::kInt4})->total,
              1e-3);
  EXPECT_EQ(json["parameters"]["link_efficiency"]["value"], 0.976);
  EXPECT_NE(json["parameters"]["link_efficiency"]["origin"].get<std::string>().find("fitted"),
            std::string::npos);
  settings->output = "csv";
  const std::string csv = *PredictionText(*settings);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
  EXPECT_NE(csv.find("\nmi300x,4,67108864,fp16,int4,two_shot,"), std::string::npos) << csv;
}

TEST(ModelCommandTest, ComparesAllMachinesByDefault) {
  auto settings = MakeModelSettings(ModelFlags());
  ASSERT_TRUE(settings.ok()) << settings.status();
  // A machine without figures of its own must not stop the others.
  EXPECT_TRUE(ComparisonText(*settings).ok());
  settings->output = "json";
  const auto json = nlohmann::json::parse(*ComparisonText(*settings));
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[0]["to_be_met"]["count"], 20);
  EXPECT_EQ(json[0]["to_be_met"]["within"], 20);
  EXPECT_EQ(json[1]["to_be_met"]["within"], 4);
  EXPECT_TRUE(json[3]["held_out"].is_null());
  settings->output = "csv";
  const std::string csv = *ComparisonText(*settings);
  EXPECT_EQ(static_cast<size_t>(std::count(csv.begin(), csv.end(), '\n')),
            1 + PublishedFigures().size());
}

TEST(ModelCommandTest, FlagsReplaceLinkLatencyAndMemory) {
  ModelFlags flags = PredictionFlags();
  flags.link_gbps = 100;
  flags.latency_us = 3;
  flags.memory_gbps = 1000;
  const auto settings = MakeModelSettings(flags);
  ASSERT_TRUE(settings.ok()) << settings.status();
  const auto p = Predict(settings->machines[0], {4, 64 * kMiB, Dtype::kFp16, Codec::kInt4});
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->fixed, 3);
  EXPECT_NEAR(p->memory, (2 + 3 * 18.0 / 64) * 64 * kMiB / 1e6, 1e-6);
  EXPECT_LT(p->link, 283.0 / 2);
}

TEST(ModelCommandTest, PlotIsGoodXmlWithASeriesForEachCodec) {
  ModelFlags flags;
  flags.machine = "mi355x";
  flags.ranks = 8;
  flags.plot = "unused.svg";
  const auto settings = MakeModelSettings(flags);
  ASSERT_TRUE(settings.ok()) << settings.status();
  const std::string svg = ModelPlot(*settings);
  EXPECT_EQ(qrd::testing::XmlChecker(svg).Check(), "");
  for (const char* name : {"none", "int8", "int6", "int4", "lp4", "lp3", "library"}) {
    EXPECT_NE(svg.find(">" + std::string(name) + "<"), std::string::npos) << name;
  }
}

struct WrongFlags {
  const char* name;
  void (*change)(ModelFlags&);
  const char* message;
};
class ModelWrongFlags : public ::testing::TestWithParam<WrongFlags> {};

TEST_P(ModelWrongFlags, AreRefusedByName) {
  ModelFlags flags = PredictionFlags();
  GetParam().change(flags);
  const auto settings = MakeModelSettings(flags);
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(settings.status().message(), GetParam().message);
}

const WrongFlags kWrongFlags[] = {
    {"Machine", [](ModelFlags& f) { f.machine = "mi350x"; },
     "--machine: unknown value \"mi350x\"; did you mean \"mi300x\"? Known: mi300x, mi355x, h200, "
     "h200-nvlink"},
    {"NoMachine", [](ModelFlags& f) { f.machine = ""; },
     "--machine: want one machine for a prediction"},
    {"NoBytes", [](ModelFlags& f) { f.bytes = ""; },
     "--bytes: want at least one size for a prediction"},
    {"Ranks", [](ModelFlags& f) { f.ranks = 16; }, "--ranks = 16: mi300x has a model for 2 to 8"},
    {"Bytes", [](ModelFlags& f) { f.bytes = "3"; },
     "--bytes = 3: want 1 to 549755813888 whole elements of fp16"},
    {"Codec", [](ModelFlags& f) { f.codecs = "int5"; },
     "--codec: unknown value \"int5\"; did you mean \"int8\"? Known: none, fp8, int8, int6, int4, "
     "fp4, int3, lp4, lp3, lp3c, lp2"},
    {"LibraryWithCodec", [](ModelFlags& f) { f.algorithm = "library"; },
     "--codec: the library has none"},
    {"Algorithm", [](ModelFlags& f) { f.algorithm = "ring"; },
     "--algorithm: unknown value \"ring\"; known: one_shot, two_shot, library"},
    {"Dtype", [](ModelFlags& f) { f.dtype = "fp8"; },
     "--dtype: unknown value \"fp8\"; known: fp16, bf16, fp32"},
    {"Link", [](ModelFlags& f) { f.link_gbps = 0; },
     "--link-gbps: 0 is not above 0 and up to 1e+06"},
    {"LinkNan", [](ModelFlags& f) { f.link_gbps = std::nan(""); },
     "--link-gbps: nan is not above 0 and up to 1e+06"},
    {"Latency", [](ModelFlags& f) { f.latency_us = -1; },
     "--latency-us: -1 is not above 0 and up to 1e+06"},
    {"Memory", [](ModelFlags& f) { f.memory_gbps = 2e6; },
     "--memory-gbps: 2e+06 is not above 0 and up to 1e+06"},
    {"LinkOfOneDevice",
     [](ModelFlags& f) {
       f.machine = "h200";
       f.link_gbps = 100;
     },
     "--link-gbps: machine h200 has all ranks on one device and no link"},
    {"NvlinkWithoutFigures", [](ModelFlags& f) { f.machine = "h200-nvlink"; },
     "--machine = h200-nvlink: link bandwidth and latency are not known, they must be given"},
    {"All", [](ModelFlags& f) { f.all_figures = true; },
     "--all: goes with the published figures only"},
};
INSTANTIATE_TEST_SUITE_P(Flags, ModelWrongFlags, ::testing::ValuesIn(kWrongFlags),
                         [](const auto& line) { return std::string(line.param.name); });

}  // namespace
}  // namespace qrd::tools
