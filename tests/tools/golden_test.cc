// SPDX-License-Identifier: Apache-2.0
// `qrbench golden` on the golden folder of the tests and on damaged copies of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "client/tools/qrbench/golden_folder.h"
#include "tests/support/temp_directory.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

namespace fs = std::filesystem;

std::string GoldenFolder() { return std::string(QRD_TEST_DATA_DIR) + "/golden/codec"; }

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A copy of the folder with the first `records` codec records and as many reduce records.
class Copy {
 public:
  explicit Copy(int records = 40) {
    fs::copy(GoldenFolder(), directory_.path(), fs::copy_options::recursive);
    std::istringstream index(Read(GoldenFolder() + "/index.json"));
    int codec = 0, reduce = 0;
    for (std::string line; std::getline(index, line);) {
      const bool is_codec = line.find("\"codec\"") == line.find("\"test\":") + 7;
      if (line.find("\"test\"") == std::string::npos || (is_codec ? codec : reduce) >= records)
        continue;
      ++(is_codec ? codec : reduce);
      if (line.back() == ',') line.pop_back();
      records_.push_back(line);
    }
    SaveIndex();
  }

  std::string File(const std::string& name) const { return directory_ / name; }
  const std::string& path() const { return directory_.path(); }
  std::vector<std::string>& records() { return records_; }
  void SaveIndex() {
    std::string text = "[\n";
    for (size_t i = 0; i < records_.size(); ++i) {
      text += records_[i] + (i + 1 < records_.size() ? ",\n" : "\n");
    }
    Write(File("index.json"), text + "]\n");
  }
  void Replace(size_t record, const std::string& pattern, const std::string& with) {
    records_[record] = std::regex_replace(records_[record], std::regex(pattern), with);
    SaveIndex();
  }

 private:
  TempDirectory directory_;
  std::vector<std::string> records_;
};

struct Outcome {
  int exit_code, passed, failed;
  std::string out, err;
};

Outcome RunGolden(const std::string& folder, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> arguments = {"golden", folder};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  ProgramOptions options;
  options.timeout = std::chrono::seconds(110);
  const ProgramResult result = RunProgram(Qrbench(), arguments, options);
  Outcome outcome = {result.exit_code, -1, -1, result.out, result.err};
  // The last line.
  const size_t end = result.out.find_last_not_of('\n');
  const size_t start = end == std::string::npos ? 0 : result.out.rfind('\n', end) + 1;
  std::sscanf(result.out.c_str() + start, "%d passed, %d failed", &outcome.passed, &outcome.failed);
  return outcome;
}

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

class Golden : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(GoldenFolder() + "/index.json")) GTEST_SKIP() << "no golden folder";
  }
};

TEST_F(Golden, TheFolderOfTheTestsPassesCompletely) {
  const Outcome outcome = RunGolden(GoldenFolder());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.passed, 1063);
  EXPECT_EQ(outcome.failed, 0);
}

TEST_F(Golden, AWrongWireByteIsFoundWithItsOffset) {
  Copy copy;
  std::string wire = Read(copy.File("wire.bin"));
  const unsigned char good = static_cast<unsigned char>(wire[10]);
  wire[10] = static_cast<char>(good ^ 1);
  Write(copy.File("wire.bin"), wire);
  const Outcome outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.failed, 1);
  char text[64];
  std::snprintf(text, sizeof(text), "wire bytes: byte 10: got 0x%02x, want 0x%02x", good, good ^ 1);
  EXPECT_CONTAINS(outcome.out, text);
  EXPECT_CONTAINS(outcome.out, "FAILED case 1 codec fp16 none n=2500");
}

TEST_F(Golden, AWrongResultIsFoundOnEveryRankWithItsElement) {
  Copy copy(2);
  std::string results = Read(copy.File("results.bin"));
  results[2 * 7] = static_cast<char>(results[2 * 7] ^ 4);
  Write(copy.File("results.bin"), results);
  const Outcome outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.failed, 1);
  EXPECT_CONTAINS(outcome.out, "result on rank 0: element 7, byte 14: got 0x");
  EXPECT_CONTAINS(outcome.out, "result on rank 1: element 7");
  EXPECT_CONTAINS(outcome.out, "result (scalar reference): element 7");
}

TEST_F(Golden, MissingOptionalFilesAreNotedAndSkipped) {
  Copy copy(10);
  fs::remove(copy.File("results.bin"));
  Outcome outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.passed, 10);
  EXPECT_CONTAINS(outcome.out, "note: no results.bin, its comparisons are skipped");
  EXPECT_CONTAINS(outcome.out, "10 skipped");
  fs::remove(copy.File("wire.bin"));
  outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.passed, 10);
  fs::remove(copy.File("decoded.bin"));
  outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.passed + outcome.failed, 0);
  EXPECT_CONTAINS(outcome.out, "no case was checked");
}

TEST_F(Golden, MissingInputsOrIndexOrFolderIsAnError) {
  Copy copy(2);
  fs::remove(copy.File("inputs.bin"));
  EXPECT_EQ(RunGolden(copy.path()).exit_code, 1);
  EXPECT_CONTAINS(RunGolden(copy.path()).err, "inputs.bin: No such file");
  fs::remove(copy.File("index.json"));
  EXPECT_CONTAINS(RunGolden(copy.path()).err, "index.json: No such file");
  EXPECT_EQ(RunGolden("/nonexistent/folder").exit_code, 1);
}

TEST_F(Golden, TruncatedFilesFailTheirCasesWithTheNumbers) {
  for (const char* name : {"inputs.bin", "wire.bin", "decoded.bin", "results.bin"}) {
    Copy copy(5);
    fs::resize_file(copy.File(name), 100);
    const Outcome outcome = RunGolden(copy.path());
    EXPECT_EQ(outcome.exit_code, 1) << name;
    EXPECT_GT(outcome.failed, 0) << name;
    EXPECT_EQ(outcome.passed + outcome.failed, 10) << name;
    EXPECT_CONTAINS(outcome.out, std::string(name) + ": bytes ");
    EXPECT_CONTAINS(outcome.out, "are needed, the file has 100");
  }
}

struct Damage {
  const char* name;
  const char* pattern;
  const char* with;
  const char* message;
};
class DamagedRecord : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedRecord, FailsAloneWithItsNumberAndTheReason) {
  if (!fs::exists(GoldenFolder() + "/index.json")) GTEST_SKIP() << "no golden folder";
  const Damage& damage = GetParam();
  Copy copy(3);
  const bool reduce = std::string(damage.name).rfind("Reduce", 0) == 0;
  copy.Replace(reduce ? 3 : 1, damage.pattern, damage.with);
  const Outcome outcome = RunGolden(copy.path());
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.failed, 1) << outcome.out;
  EXPECT_EQ(outcome.passed, 5) << outcome.out;
  EXPECT_CONTAINS(outcome.out, reduce ? "FAILED case 4" : "FAILED case 2");
  EXPECT_CONTAINS(outcome.out, damage.message);
}

const Damage kDamages[] = {
    {"UnknownCodec", "\"codec\":\"fp8\"", "\"codec\":\"fp9\"",
     "\"codec\": unknown value \"fp9\"; did you mean \"fp8\"?"},
    {"UnknownDtype", "\"dtype\":\"fp16\"", "\"dtype\":\"fp64\"",
     "\"dtype\": unknown value \"fp64\""},
    {"UnknownTest", "\"test\":\"codec\"", "\"test\":\"encode\"",
     "\"test\": unknown value \"encode\"; known: codec, reduce"},
    {"MissingField", "\"n\":\\d+,", "", "\"n\" is missing"},
    {"TextForNumber", "\"n\":(\\d+)", "\"n\":\"$1\"",
     "\"n\" is \"2500\", want a whole number from 0"},
    {"Negative", "\"input\":\\d+", "\"input\":-4", "\"input\" is -4, want a whole number"},
    {"Fraction", "\"n\":\\d+", "\"n\":2.5", "\"n\" is 2.5, want a whole number"},
    {"Huge", "\"n\":\\d+", "\"n\":18446744073709551615",
     "\"n\" is 18446744073709551615, want a whole number from 0 to 1099511627776"},
    {"OffsetPastTheEnd", "\"wire\":\\d+", "\"wire\":99999999", "wire.bin: bytes 99999999 to"},
    {"InputPastTheEnd", "\"input\":\\d+", "\"input\":281474976710656",
     "inputs.bin: bytes 281474976710656 to"},
    {"WireSize", "\"wire_size\":\\d+", "\"wire_size\":7",
     "\"wire_size\" is 7, the wire format has"},
    {"InType", "\"in_type\":\"fp16\"", "\"in_type\":\"bf16\"",
     "\"in_type\" is bf16, want the dtype fp16 or fp32"},
    {"NotAnObject", "^.+$", "[1,2]", "the record is no JSON object"},
    {"BrokenJson", "\"dtype\":", "\"dtype\"", "line 3 of index.json is not valid JSON"},
    {"Deep", "^.+$", "[[[[[[[[[[", "is not valid JSON"},
    {"ReduceRanks", "\"ranks\":\\d+", "\"ranks\":17",
     "\"ranks\" is 17, want a whole number from 0 to 16"},
    {"ReduceNoRanks", "\"ranks\":\\d+", "\"ranks\":0", "\"ranks\" is 0, want 1 to 16"},
    {"ReduceStride", "\"stride\":\\d+", "\"stride\":281474976710656", "inputs.bin: bytes "},
    {"ReduceAlgorithm", "\"two_shot\"", "\"twoshot\"", "did you mean \"two_shot\"?"},
    {"ReduceOp", "\"op\":\"sum\"", "\"op\":\"max\"",
     "\"op\": unknown value \"max\"; known: sum, avg"},
    {"ReduceResult", "\"result\":\\d+", "\"result\":536791", "results.bin: bytes 536791 to"},
};
INSTANTIATE_TEST_SUITE_P(Kinds, DamagedRecord, ::testing::ValuesIn(kDamages),
                         [](const auto& broken) { return std::string(broken.param.name); });

TEST(GoldenIndex, AnotherLayoutOfTheSameRecordsIsRead) {
  const auto cases = tools::ParseGoldenIndex(
      "[ {\"test\":\"codec\",\n \"dtype\":\"bf16\", \"codec\":\"none\", \"n\":1, "
      "\"in_type\":\"bf16\",\n"
      "\"input\":0, \"wire\":0, \"wire_size\":2, \"decoded\":0} ]");
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].problem, "");
  EXPECT_EQ(cases[0].name, "codec bf16 none n=1");
}

TEST(GoldenIndex, EmptyAndSenselessTextsGiveNoCases) {
  for (const char* text : {"", "[]", "[\n]\n", "\n\n"}) {
    EXPECT_TRUE(tools::ParseGoldenIndex(text).empty()) << text;
  }
}

TEST(GoldenIndex, ATextThatWasCutAtALineEndHasABrokenCaseMore) {
  const auto cases = tools::ParseGoldenIndex("[\n{\"test\": \"codec\"},\n{\"test\": \"codec\"},\n");
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[2].number, 3u);
  EXPECT_NE(cases[2].problem.find("is its end missing?"), std::string::npos) << cases[2].problem;
}

TEST(GoldenIndex, DeeplyNestedJsonIsOneBrokenCase) {
  const auto cases = tools::ParseGoldenIndex(std::string(200'000, '['));
  for (const auto& c : cases) EXPECT_NE(c.problem, "");
}

}  // namespace
}  // namespace qrd::testing
