// SPDX-License-Identifier: Apache-2.0
// `qrbench tune` against real daemons: a policy that the daemon takes, and nothing left behind.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/daemon_process.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

using nlohmann::json;

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

class TuneDaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(daemon_.Start(), "");
    // A policy of somebody's, to be found again afterwards.
    Qrctl({"policy", "set", "--codec", "fp8"});
    before_ = Policy();
    ASSERT_EQ(before_["rules"].size(), 1u);
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
  ProgramResult Tune(const std::string& flags, const ProgramOptions& options = {}) {
    std::vector<std::string> arguments = Words("tune " + flags);
    arguments.insert(arguments.end(), {"--runtime-directory", daemon_.runtime_directory()});
    return RunProgram(Qrbench(), arguments, options);
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(Policy(), before_);
    EXPECT_TRUE(
        json::parse(Qrctl({"comm", "list", "--output", "json"}).out)["communicators"].empty());
  }
  static std::string Read(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }

  DaemonProcess daemon_;
  json before_;
};

TEST_F(TuneDaemonTest, PrintsAPolicyThatTheDaemonTakes) {
  const std::string file = daemon_.File("tuned.textproto");
  const ProgramResult tuned = Tune(
      "--ranks 2,3 --dtypes bf16,fp32 --codecs int8,lp3 --sizes 16K,64K --budget-s 20 --output " +
      file);
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(tuned.out, "");
  EXPECT_CONTAINS(tuned.err, "wrote " + file);
  ExpectNothingLeft();
  EXPECT_CONTAINS(Read(file), "# under the floor of 20 dB, not measured: lp3/one_shot");

  const ProgramResult set = Qrctl({"policy", "set", file});
  EXPECT_EQ(set.exit_code, 0) << set.err;
  std::map<std::string, int> rules;  // by world size and dtype
  const json policy = Policy();
  for (const json& rule : policy["rules"]) {
    // Which of them wins is a matter of times.
    EXPECT_TRUE(rule["action"]["codec"] == "CODEC_NONE" || rule["action"]["codec"] == "CODEC_INT8")
        << rule;
    ++rules[rule["match"]["world_size_min"].dump() + rule["match"]["dtypes"][0].dump()];
  }
  EXPECT_LE(rules.size(), 4u);
  EXPECT_GE(rules.size(), 1u);
}

TEST_F(TuneDaemonTest, AShortBudgetLeavesPayloadsOutAndSaysWhich) {
  const ProgramResult tuned = Tune("--codecs int8 --sizes 64K,16M --budget-s 1");
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  // On a busy machine the smaller one may not fit either.
  EXPECT_CONTAINS(tuned.out, "# not measured, the budget of 1 s was used up: ");
  EXPECT_CONTAINS(tuned.out, "16 MiB\n");
  ExpectNothingLeft();
}

TEST_F(TuneDaemonTest, MeasuresOnACommunicatorThatIsThere) {
  ASSERT_EQ(Qrctl({"comm", "create", "mine", "--world-size", "2"}).exit_code, 0);
  const ProgramResult tuned = Tune("--codecs int8 --sizes 64K --communicator mine");
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_EQ(Policy(), before_);
  const json list = json::parse(Qrctl({"comm", "list", "--output", "json"}).out);
  ASSERT_EQ(list["communicators"].size(), 1u);  // not deleted: it was not ours
  EXPECT_NE(list["communicators"][0]["operations_total"], "0");
}

TEST_F(TuneDaemonTest, AnInterruptPutsThePolicyBack) {
  bool sent = false;
  ProgramOptions options;
  options.watch = [&](int pid, const ProgramResult&) {
    if (!sent && Policy() != before_) sent = kill(pid, SIGINT) == 0;
  };
  const ProgramResult tuned = Tune("--sizes 8M", options);
  EXPECT_TRUE(sent);
  EXPECT_EQ(tuned.exit_code, 130) << tuned.err;
  EXPECT_EQ(tuned.out, "");
  ExpectNothingLeft();
}

TEST_F(TuneDaemonTest, ADaemonThatDiesIsAnErrorAndNotAWait) {
  bool killed = false;
  ProgramOptions options;
  options.watch = [&](int, const ProgramResult&) {
    if (killed || Policy() == before_) return;
    daemon_.Kill();
    killed = true;
  };
  const ProgramResult tuned = Tune("--sizes 8M", options);
  EXPECT_TRUE(killed);
  EXPECT_EQ(tuned.exit_code, 1) << tuned.err;
  EXPECT_FALSE(tuned.timed_out);
  EXPECT_CONTAINS(tuned.err, "DAEMON_LOST");
}

}  // namespace
}  // namespace qrd::testing
