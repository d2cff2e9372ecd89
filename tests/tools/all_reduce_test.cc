// SPDX-License-Identifier: Apache-2.0
// `qrbench all_reduce` against real daemons: results checked, policy put back, ranks that die.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/daemon_process.h"
#include "tests/tools/run_program.h"
#include "tests/tools/xml_check.h"

namespace qrd::testing {
namespace {

using nlohmann::json;

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

class AllReduceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(daemon_.Start(), "");
    // A policy of somebody's, to be found again afterwards.
    Qrctl({"policy", "set", "--codec", "fp8"});
  }

  static std::vector<std::string> Words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }
  ProgramResult Qrctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--runtime-directory", daemon_.runtime_directory()});
    return RunProgram(qrd::testing::Qrctl(), arguments);
  }
  json Policy() { return json::parse(Qrctl({"policy", "get", "--output", "json"}).out)["policy"]; }
  ProgramResult Bench(const std::string& flags, const ProgramOptions& options = {}) {
    std::vector<std::string> arguments = Words("all_reduce " + flags);
    arguments.insert(arguments.end(), {"--runtime-directory", daemon_.runtime_directory()});
    return RunProgram(Qrbench(), arguments, options);
  }
  json Results(const std::string& flags) {
    const ProgramResult result = Bench(flags + " --output json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const json report = json::parse(result.out, nullptr, false);
    EXPECT_TRUE(report.contains("results")) << result.out;
    return report.contains("results") ? report["results"] : json::array();
  }
  static std::string Minilm(const std::string& set, int ranks) {
    std::string files;
    for (int rank = 0; rank < ranks; ++rank) {
      files += (rank > 0 ? "," : "") + std::string(QRD_TEST_DATA_DIR) + "/minilm/" + set + ".tp" +
               std::to_string(ranks) + ".rank" + std::to_string(rank) + ".npy";
    }
    return files;
  }

  DaemonProcess daemon_;
};

TEST_F(AllReduceTest, TwoRanksRunEveryRequestedCodecAndTheResultsAreRight) {
  const json before = Policy();
  const json results =
      Results("--sizes 4K,96K --dtypes bf16,fp32 --codecs none,int8,int4,lp3 --iters 5");
  ASSERT_EQ(results.size(), 16u);
  for (const json& row : results) {
    EXPECT_EQ(row["check"], "bits") << row;
    EXPECT_EQ(row["codec"], row["codec_requested"]);
    EXPECT_EQ(row["error"], "");
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_EQ(row["ranks"], 2);
  }
  EXPECT_EQ(Policy(), before);
  EXPECT_TRUE(
      json::parse(Qrctl({"comm", "list", "--output", "json"}).out)["communicators"].empty());
}

TEST_F(AllReduceTest, AutoLeavesThePolicyOfTheDaemonInForce) {
  const json results = Results("--sizes 8K --iters 3 --codecs auto,int4");
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["codec"], "fp8");
  EXPECT_EQ(results[1]["codec"], "int4");
}

TEST_F(AllReduceTest, ThreeRanksBothAlgorithmsAvgInPlaceAndStaged) {
  for (const char* flags : {"", "--in-place", "--staged", "--in-place --staged"}) {
    const json results = Results(
        std::string(
            "--ranks 3 --sizes 4K,20004 --codecs int6 --algorithms all --op avg --iters 5 ") +
        flags);
    ASSERT_EQ(results.size(), 4u) << flags;
    for (const json& row : results) {
      EXPECT_EQ(row["check"], "bits") << row;
      EXPECT_EQ(row["algorithm"], row["algorithm_requested"]);
      EXPECT_EQ(row["op"], "avg");
      EXPECT_EQ(row["staged"], std::string(flags).find("--staged") != std::string::npos);
    }
  }
}

TEST_F(AllReduceTest, SeveralGroupsRunAtTheSameTime) {
  const json results = Results("--groups 3 --sizes 16K --codecs int8 --iters 20");
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["groups"], 3);
  EXPECT_EQ(results[0]["check"], "bits");
}

TEST_F(AllReduceTest, ResultsAboveTheCheckBoundAreComparedBetweenRanks) {
  const json results = Results("--sizes 64K --check-bytes 4K --iters 3");
  EXPECT_EQ(results[0]["check"], "ranks");
}

TEST_F(AllReduceTest, RealTensorsGiveTheirKnownAccuracy) {
  const json results = Results("--input " + Minilm("mlp_down.layer3", 4) +
                               " --codecs int8,lp4 "
                               "--algorithms two_shot --iters 3");
  ASSERT_EQ(results.size(), 2u);
  for (const json& row : results) {
    EXPECT_EQ(row["dtype"], "fp16");
    EXPECT_EQ(row["count"], 119 * 384);
    EXPECT_EQ(row["check"], "bits");
  }
  // tests/data/minilm/README.md
  EXPECT_NEAR(results[0]["sqnr_db"].get<double>(), 40.2, 0.06);
  EXPECT_NEAR(results[1]["sqnr_db"].get<double>(), 21.6, 0.06);
}

TEST_F(AllReduceTest, TheTableCsvAndPlotAreWritten) {
  const std::string plot = daemon_.File("out.svg");
  const ProgramResult table =
      Bench("--sizes 4K,16K,64K --codecs none,int4 --iters 5 --plot " + plot);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_CONTAINS(table.out, "relay ratio ");
  EXPECT_CONTAINS(table.out, "daemon    qrd ");
  std::ifstream file(plot);
  std::stringstream svg;
  svg << file.rdbuf();
  EXPECT_EQ(XmlChecker(svg.str()).Check(), "");
  EXPECT_CONTAINS(svg.str(), ">int4<");
  const ProgramResult csv = Bench("--sizes 4K --iters 5 --output csv");
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 2);
}

TEST_F(AllReduceTest, APlotThatCannotBeWrittenIsAnError) {
  const ProgramResult result = Bench("--sizes 4K --iters 3 --plot /nonexistent/out.svg");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "/nonexistent/out.svg: cannot write: No such file");
  EXPECT_EQ(result.out, "");  // before anything is measured
}

TEST_F(AllReduceTest, ALibraryThatTheDaemonLacksIsAnErrorNotAnotherPlan) {
  const ProgramResult result = Bench("--sizes 4K --iters 3 --algorithms library");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "--algorithms library: the daemon offers no collective library");
}

TEST_F(AllReduceTest, AnInterruptPutsThePolicyBack) {
  const json before = Policy();
  for (const int signal : {SIGINT, SIGTERM}) {
    bool sent = false, rule_seen = false;
    ProgramOptions options;
    options.watch = [&](int pid, const ProgramResult& so_far) {
      // The first row is there, so the rule is in force and more is to come.
      if (sent || so_far.out.find(" int4 ") == std::string::npos) return;
      rule_seen = Policy() != before;
      sent = kill(pid, signal) == 0;
    };
    const ProgramResult result = Bench("--sizes 4K,8M --codecs int4 --iters 200", options);
    EXPECT_TRUE(sent);
    EXPECT_TRUE(rule_seen);
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_CONTAINS(result.err, "interrupted");
    EXPECT_EQ(Policy(), before) << "after signal " << signal;
  }
}

TEST_F(AllReduceTest, AReaderThatGoesDoesNotLeaveARuleBehind) {
  const json before = Policy();
  const std::string command = Qrbench() + " all_reduce --sizes 4K,8K --codecs int4 --iters 50 " +
                              "--runtime-directory " + daemon_.runtime_directory() + " | head -1";
  EXPECT_EQ(RunProgram("/bin/sh", {"-c", command}).exit_code, 0);
  EXPECT_EQ(Policy(), before);
}

TEST_F(AllReduceTest, AChangeBySomebodyElseMeanwhileSurvives) {
  bool changed = false;
  ProgramOptions options;
  options.watch = [&](int, const ProgramResult& so_far) {
    if (changed || so_far.out.find(" int4 ") == std::string::npos) return;
    changed = true;
    // Keeps the benchmark's rule as an operator would who edits what `policy get` shows.
    const std::string text =
        Qrctl({"policy", "get", "--output", "text"}).out +
        "rules { name: \"mine\" match { communicator: \"mine\" } action { codec: "
        "CODEC_INT6 } }\n";
    std::string first_match = text;
    const size_t at = first_match.find("rules {\n  name: \"all\"");
    ASSERT_NE(at, std::string::npos);
    // Behind a rule that matches all, mine could not be reached: put it in front.
    const size_t mine = first_match.rfind("rules { name: \"mine\"");
    const std::string rule = first_match.substr(mine);
    first_match = first_match.substr(0, at) + rule + first_match.substr(at, mine - at);
    std::ofstream(daemon_.File("p.txt")) << first_match;
    const ProgramResult set = Qrctl({"policy", "set", daemon_.File("p.txt")});
    EXPECT_EQ(set.exit_code, 0) << set.err << first_match;
  };
  const ProgramResult result = Bench("--sizes 4K,2M --codecs int4 --iters 200", options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_TRUE(changed);
  const json rules = Policy()["rules"];
  ASSERT_EQ(rules.size(), 2u) << rules;
  EXPECT_EQ(rules[0]["name"], "mine");
  EXPECT_EQ(rules[1]["name"], "all");
}

TEST_F(AllReduceTest, RanksOfSeparateCommandsJoin) {
  ProgramResult second;
  std::thread other(
      [&] { second = Bench("--join --rank 1 --ranks 2 --sizes 4K,64K --codecs int8 --iters 5"); });
  const ProgramResult first =
      Bench("--join --rank 0 --ranks 2 --sizes 4K,64K --codecs int8 --iters 5 --output json");
  other.join();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, "");
  const json results = json::parse(first.out)["results"];
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["codec"], "int8");
  EXPECT_EQ(results[0]["check"], "bits");
}

TEST_F(AllReduceTest, ADaemonThatDiesIsAnErrorAndNotAWait) {
  bool killed = false;
  ProgramOptions options;
  options.watch = [&](int, const ProgramResult& so_far) {
    if (killed || so_far.out.find(" none ") == std::string::npos) return;
    killed = true;
    daemon_.Kill();
  };
  const ProgramResult result = Bench("--sizes 4K,8M --codecs none --iters 300", options);
  EXPECT_TRUE(killed);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_FALSE(result.timed_out);
  EXPECT_CONTAINS(result.err, "DAEMON_LOST");
}

TEST_F(AllReduceTest, APrivateDaemonNeedsNobodyElse) {
  ProgramOptions options;
  options.environment = {"TMPDIR=" + daemon_.File("")};
  const ProgramResult result =
      RunProgram(Qrbench(),
                 Words("all_reduce --start-daemon --sizes 4K --codecs int8 --iters 3 --daemon " +
                       DaemonProcess::Executable()),
                 options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.out, "bits");
}

TEST_F(AllReduceTest, APrivateDaemonEndsWithABenchmarkThatIsKilled) {
  const std::string directory = daemon_.File("");
  ProgramOptions options;
  options.environment = {"TMPDIR=" + directory};
  bool killed = false;
  options.watch = [&](int pid, const ProgramResult& so_far) {
    if (killed || so_far.out.find(" int8 ") == std::string::npos) return;
    killed = kill(pid, SIGKILL) == 0;
  };
  const ProgramResult result = RunProgram(
      Qrbench(),
      Words("all_reduce --start-daemon --sizes 4K,8M --codecs int8 --iters 200 --daemon " +
            DaemonProcess::Executable()),
      options);
  ASSERT_TRUE(killed);
  EXPECT_EQ(result.signal, SIGKILL);
  // Its sockets go when it ends.
  const auto socket_there = [&] {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().filename() == "control.sock" &&
          entry.path().parent_path().filename().string().rfind("qrbench-", 0) == 0) {
        return true;
      }
    }
    return false;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (socket_there() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(socket_there());
}

TEST_F(AllReduceTest, GoldenCasesPassThroughTheDaemon) {
  const json before = Policy();
  // Every third all-reduce of the folder: all codecs, algorithms and numbers of ranks occur.
  const std::string source = std::string(QRD_TEST_DATA_DIR) + "/golden/codec/";
  TempDirectory folder;
  for (const char* name : {"inputs.bin", "results.bin"}) {
    std::filesystem::create_symlink(source + name, folder / name);
  }
  std::ifstream all(source + "index.json");
  std::ofstream some(folder / "index.json");
  int reductions = 0, taken = 0;
  for (std::string line; std::getline(all, line);) {
    if (line.find("\"reduce\"") == std::string::npos || reductions++ % 3 != 0) continue;
    if (line.back() == ',') line.pop_back();
    some << (taken++ == 0 ? "[\n" : ",\n") << line;
  }
  some << "\n]\n";
  some.close();
  ASSERT_GT(taken, 90);
  const ProgramResult result = RunProgram(
      Qrbench(),
      {"golden", folder.path(), "--served", "--runtime-directory", daemon_.runtime_directory()});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_CONTAINS(result.out, "\n" + std::to_string(taken) + " passed, 0 failed\n");
  EXPECT_EQ(Policy(), before);
}

TEST(Accuracy, AgreesWithThePinnedTableOfTheSampleTensors) {
  const std::string folder = std::string(QRD_TEST_DATA_DIR) + "/minilm/";
  const ProgramResult result = RunProgram(
      Qrbench(),
      {"accuracy", "--output", "csv", "--dtypes", "all", "--input",
       folder + "attn_out.layer3.tp2.rank0.npy," + folder + "attn_out.layer3.tp2.rank1.npy"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // dtype,codec,algorithm -> dB
  std::map<std::string, double> got;
  std::istringstream rows(result.out);
  std::string line;
  std::getline(rows, line);
  while (std::getline(rows, line)) {
    char dtype[8], codec[8], algorithm[16];
    double db = INFINITY;  // an empty cell: nothing is lost
    const bool exact = line.find(",,") != std::string::npos;
    ASSERT_EQ(std::sscanf(line.c_str(), "%7[^,],%7[^,],%15[^,],%*d,%*[^,],%*d,%*d,%*f,%lf", dtype,
                          codec, algorithm, &db),
              exact ? 3 : 4)
        << line;
    got[std::string(dtype) + codec + algorithm] = db;
  }
  EXPECT_EQ(got.size(), 3u * 11 * 2);
  std::ifstream expected(folder + "expected_sqnr.csv");
  int compared = 0;
  while (std::getline(expected, line)) {
    char dtype[8], codec[8], algorithm[16];
    double db = 0;
    if (std::sscanf(line.c_str(), "attn_out,3,2,%7[^,],%7[^,],%15[^,],%lf", dtype, codec, algorithm,
                    &db) != 4) {
      continue;
    }
    const double printed = got[std::string(dtype) + codec + algorithm];
    EXPECT_TRUE(printed == db || std::abs(printed - db) <= 0.005) << line << " got " << printed;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(Accuracy, InputFilesThatDoNotBelongTogetherAreRefused) {
  const std::string folder = std::string(QRD_TEST_DATA_DIR) + "/minilm/";
  const std::string good = folder + "attn_out.layer3.tp2.rank0.npy";
  const ProgramResult ranks = RunProgram(Qrbench(), {"accuracy", "--ranks", "3", "--input", good});
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_CONTAINS(ranks.err, "--input: 1 files for --ranks 3; want one file a rank");
  const ProgramResult text =
      RunProgram(Qrbench(), {"accuracy", "--input", good + "," + folder + "README.md"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_CONTAINS(text.err, "README.md: not a .npy file");
}

TEST(Relay, PrintsPercentiles) {
  const ProgramResult result = RunProgram(Qrbench(), {"relay", "--iters", "200"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  double p50 = 0, p99 = 0;
  ASSERT_EQ(
      std::sscanf(result.out.c_str(),
                  "futex relay, 3 processes, 200 iterations: p50 %lf us, p99 %lf us", &p50, &p99),
      2)
      << result.out;
  EXPECT_GT(p50, 0);
  EXPECT_GE(p99, p50);
}

}  // namespace
}  // namespace qrd::testing
