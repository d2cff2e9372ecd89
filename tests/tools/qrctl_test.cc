// SPDX-License-Identifier: Apache-2.0
// qrctl against a real daemon.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/daemon_process.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

using nlohmann::json;

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

// Each run of blanks as one: what a table says without how it is aligned.
std::string Squeeze(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || out.empty() || out.back() != ' ') out.push_back(c);
  }
  return out;
}

class QrctlTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(daemon_.Start(), ""); }

  ProgramResult Run(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
    arguments.insert(arguments.end(), {"--runtime-directory", daemon_.runtime_directory()});
    const ProgramResult result = RunProgram(Qrctl(), arguments, options);
    std::istringstream lines(result.out);
    const bool for_people =
        std::find(arguments.begin(), arguments.end(), "json") == arguments.end();
    for (std::string line; for_people && std::getline(lines, line);)
      EXPECT_LE(line.size(), 100u) << line;
    return result;
  }
  json RunJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--output", "json"});
    const ProgramResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  std::string Generation() { return RunJson({"policy", "get"})["generation"].get<std::string>(); }
  std::string PolicyFile(const std::string& text) {
    std::ofstream(daemon_.File("policy.txt")) << text;
    return daemon_.File("policy.txt");
  }

  DaemonProcess daemon_;
};

TEST_F(QrctlTest, StatusForPeopleAndForPrograms) {
  const ProgramResult people = Run({"status"});
  EXPECT_EQ(people.exit_code, 0) << people.err;
  EXPECT_CONTAINS(people.out, "state:              serving\n");
  EXPECT_CONTAINS(people.out, "pid:                " + std::to_string(daemon_.pid()) + "\n");
  const json status = RunJson({"status"});
  EXPECT_EQ(status["state"], "STATE_SERVING");
  EXPECT_EQ(status["pid"], daemon_.pid());
  EXPECT_EQ(status["runtime_directory"], daemon_.runtime_directory());
  EXPECT_EQ(status["sessions"], 0);  // spelled out although it is the default
}

TEST_F(QrctlTest, TheEnvironmentNamesTheRuntimeDirectory) {
  ProgramOptions options;
  options.environment = {"QRD_RUNTIME_DIRECTORY=" + daemon_.runtime_directory()};
  EXPECT_EQ(RunProgram(Qrctl(), {"status"}, options).exit_code, 0);
}

TEST_F(QrctlTest, CapabilitiesNameEveryCodec) {
  const ProgramResult people = Run({"capabilities"});
  EXPECT_EQ(people.exit_code, 0) << people.err;
  for (const char* codec :
       {"none", "fp8", "int8", "int6", "int4", "fp4", "int3", "lp4", "lp3", "lp3c", "lp2"}) {
    EXPECT_CONTAINS(people.out, std::string("\n") + codec + " ");
  }
  const json capabilities = RunJson({"capabilities"});
  EXPECT_EQ(capabilities["backends"][0]["backend"], "BACKEND_HOST");
  EXPECT_EQ(capabilities["limits"]["world_size_max"], 16);
}

TEST_F(QrctlTest, ACommunicatorIsMadeListedDescribedAndDeleted) {
  EXPECT_CONTAINS(Run({"comm", "list"}).out, "no communicators; make one with");
  const ProgramResult created = Run({"comm", "create", "model-a", "--world-size", "4"});
  EXPECT_EQ(created.exit_code, 0) << created.err;
  EXPECT_EQ(created.out, "created model-a with 4 ranks\n");
  EXPECT_CONTAINS(Squeeze(Run({"comm", "list"}).out), "\nmodel-a 4 host 0 0 0 0 0 B 0 B\n");
  const json list = RunJson({"comm", "list"});
  ASSERT_EQ(list["communicators"].size(), 1u);
  EXPECT_EQ(list["communicators"][0]["world_size"], 4);
  EXPECT_CONTAINS(Run({"comm", "describe", "model-a"}).out, "no group is attached");
  EXPECT_EQ(RunJson({"comm", "describe", "model-a"})["name"], "model-a");
  EXPECT_EQ(Run({"comm", "delete", "model-a"}).out, "deleted model-a, 0 sessions ended\n");
  EXPECT_TRUE(RunJson({"comm", "list"})["communicators"].empty());
}

TEST_F(QrctlTest, RefusalsAreExitCode1WithTheDaemonsReason) {
  EXPECT_EQ(Run({"comm", "create", "a", "--world-size", "2"}).exit_code, 0);
  const ProgramResult twice = Run({"comm", "create", "a", "--world-size", "2"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_CONTAINS(twice.err, "qrctl: error: ");
  EXPECT_CONTAINS(twice.err, "'a'");
  const ProgramResult large = Run({"comm", "create", "b", "--world-size", "17"});
  EXPECT_EQ(large.exit_code, 2);  // known without a daemon
  EXPECT_CONTAINS(large.err, "17");
  EXPECT_CONTAINS(large.err, "16");
  EXPECT_EQ(Run({"comm", "create", "Upper Case", "--world-size", "2"}).exit_code, 1);
  EXPECT_EQ(Run({"comm", "describe", "nobody"}).exit_code, 1);
  EXPECT_EQ(Run({"comm", "delete", "nobody"}).exit_code, 1);
}

TEST_F(QrctlTest, APolicyIsSetFromAFileAndReadBackAsText) {
  const std::string file = PolicyFile(
      "# comment\nrules { name: \"big\" match { dtypes: DTYPE_BF16 payload_bytes_min: 1048576 }\n"
      "        action { codec: CODEC_INT8 algorithm: ALGORITHM_TWO_SHOT } }\n"
      "rules { name: \"rest\" action { codec: CODEC_NONE } }\n");
  const ProgramResult set = Run({"policy", "set", file});
  EXPECT_EQ(set.exit_code, 0) << set.err;
  EXPECT_CONTAINS(set.out, "set, 2 rules; generation ");
  const std::string table = Squeeze(Run({"policy", "get"}).out);
  EXPECT_CONTAINS(table, "1 big any any bf16 >= 1M any int8 two_shot\n");
  EXPECT_CONTAINS(table, "2 rest any any any any any none auto\n");
  EXPECT_CONTAINS(table, "by uid " + std::to_string(getuid()));
  // The text form can be fed back.
  const ProgramResult text = Run({"policy", "get", "--output", "text"});
  EXPECT_CONTAINS(text.out, "# generation ");
  ProgramOptions options;
  options.input = text.out;
  EXPECT_EQ(Run({"policy", "set", "-"}, options).exit_code, 0);
  EXPECT_EQ(RunJson({"policy", "get"})["policy"]["rules"][0]["match"]["payload_bytes_min"],
            "1048576");
}

TEST_F(QrctlTest, ASimplePolicyNeedsNoFile) {
  EXPECT_EQ(Run({"policy", "set", "--codec", "int4", "--algorithm", "one_shot"}).exit_code, 0);
  const json rules = RunJson({"policy", "get"})["policy"]["rules"];
  ASSERT_EQ(rules.size(), 1u);
  EXPECT_EQ(rules[0]["action"]["codec"], "CODEC_INT4");
  EXPECT_EQ(rules[0]["action"]["algorithm"], "ALGORITHM_ONE_SHOT");
}

// A recipe with a misspelt field (field failures, F36).
TEST_F(QrctlTest, AMisspeltFieldIsNamedWithItsLineAndNothingChanges) {
  const std::string before = Generation();
  const std::string file = PolicyFile("rules {\n  name: \"a\"\n  match { min_byts: 262144 }\n}\n");
  const ProgramResult result = Run({"policy", "set", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, file + ":3:11: ");
  EXPECT_CONTAINS(result.err, "\"min_byts\"");
  EXPECT_CONTAINS(result.err, "payload_bytes_min");
  EXPECT_CONTAINS(result.err, "      match { min_byts: 262144 }\n              ^");
  EXPECT_EQ(Generation(), before);
}

TEST_F(QrctlTest, MistakesInAPolicyTextAreFoundWithoutADaemon) {
  struct {
    const char* text;
    const char* message;
  } const cases[] = {
      {"rules { name: \"a\" action { codec: CODEC_INT5 } }", ":1:35: Unknown enumeration value"},
      {"rules { name: \"a\" action { codec: CODEC_INT5 } }",
       "did you mean \"CODEC_INT8\"? Known: CODEC_NONE"},
      {"rules { actoin { codec: CODEC_INT4 } }",
       "did you mean \"action\"? Known: name, match, action"},
      // The parser notices when it has read on, here to the next line.
      {"rules {\n  action {\n    codec: CODEC_INT5\n  }\n}", ":3:12: Unknown enumeration value"},
      {"rules {\n\tactoin\n\n{ } }", ":2:9: Message type"},
      {"rulez { }", "did you mean \"rules\"?"},
      {"rules { name: \"a\"", ":1:18: "},
      {"rules { match { payload_bytes_min: -1 } }", ":1:"},
      {"rules { match { payload_bytes_min: 99999999999999999999 } }", ":1:"},
      {"rules { name: 7 }", ":1:15: "},
      {"{\"rules\": []}", ":1:1: "},
  };
  for (const auto& c : cases) {
    const std::string file = PolicyFile(c.text);
    const ProgramResult result =
        RunProgram(Qrctl(), {"policy", "set", file, "--runtime-directory", "/nonexistent"});
    EXPECT_EQ(result.exit_code, 1) << c.text;
    EXPECT_CONTAINS(result.err, c.message);
  }
}

TEST_F(QrctlTest, FilesThatAreNoTextAreRefused) {
  EXPECT_CONTAINS(Run({"policy", "set", "/nonexistent/file"}).err,
                  "/nonexistent/file: cannot open: No such");
  EXPECT_EQ(Run({"policy", "set", "/"}).exit_code, 1);
  EXPECT_CONTAINS(Run({"policy", "set", PolicyFile(std::string("rules\0{}", 8))}).err,
                  "not a text file: a zero byte at offset 5");
  EXPECT_CONTAINS(Run({"policy", "set", PolicyFile(std::string((1 << 20) + 1, ' '))}).err,
                  "above the bound 1048576 bytes");
}

TEST_F(QrctlTest, AnEmptyPolicyMustBeMeant) {
  const std::string before = Generation();
  const std::string file = daemon_.File("empty.txt");
  std::ofstream(file) << "# nothing\n";
  const ProgramResult refused = Run({"policy", "set", file});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_CONTAINS(refused.err, file + " has no rules; --allow-empty sets a policy without any");
  EXPECT_EQ(Generation(), before);
  EXPECT_EQ(Run({"policy", "set", file, "--allow-empty"}).exit_code, 0);
  EXPECT_NE(Generation(), before);
}

TEST_F(QrctlTest, ADryRunChangesNothing) {
  const std::string before = Generation();
  for (const char* flag : {"--dry-run", "--validate-only"}) {
    const ProgramResult result = Run({"policy", "set", "--codec", "int4", flag});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_CONTAINS(result.out, "valid, 1 rule; nothing changed, generation " + before);
  }
  EXPECT_EQ(Generation(), before);
}

TEST_F(QrctlTest, AWrongExpectedGenerationIsRefusedWithTheNextStep) {
  EXPECT_EQ(
      Run({"policy", "set", "--codec", "int4", "--expected-generation", Generation()}).exit_code,
      0);
  const std::string before = Generation();
  const ProgramResult result =
      Run({"policy", "set", "--codec", "int8", "--expected-generation", "4711"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "4711");
  EXPECT_CONTAINS(result.err, "someone else changed it");
  EXPECT_EQ(Generation(), before);
}

TEST_F(QrctlTest, WatchPrintsThePolicyNowAndEachChange) {
  int sets = 0;
  ProgramOptions options;
  options.watch = [&](int, const ProgramResult& so_far) {
    // After the first policy has come, change it once.
    if (sets == 0 && so_far.out.find('\n') != std::string::npos) {
      sets = 1;
      EXPECT_EQ(Run({"policy", "set", "--codec", "int6"}).exit_code, 0);
    }
  };
  const ProgramResult result =
      Run({"policy", "watch", "--count", "2", "--output", "json"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string first, second;
  ASSERT_TRUE(std::getline(lines, first) && std::getline(lines, second));
  EXPECT_TRUE(json::parse(first)["policy"]["rules"].empty());
  EXPECT_EQ(json::parse(second)["policy"]["rules"][0]["action"]["codec"], "CODEC_INT6");
}

TEST_F(QrctlTest, WatchEndsWithExitCode3WhenTheDaemonGoes) {
  bool ended = false;
  ProgramOptions options;
  options.watch = [&](int, const ProgramResult& so_far) {
    if (ended || so_far.out.empty()) return;
    ended = true;
    daemon_.Terminate();
  };
  const ProgramResult result = Run({"policy", "watch"}, options);
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
}

TEST_F(QrctlTest, ADaemonThatStopsAnsweringIsADeadlineNotAWait) {
  daemon_.Signal(SIGSTOP);
  const ProgramResult result = Run({"status", "--timeout", "0.3"});
  const ProgramResult watch = Run({"policy", "watch", "--timeout", "0.3"});
  daemon_.Signal(SIGCONT);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_CONTAINS(result.err, "gave no answer within 300ms");
  EXPECT_EQ(watch.exit_code, 3);
  EXPECT_CONTAINS(watch.err, "gave no answer within 300ms");
}

TEST_F(QrctlTest, ASocketLeftBehindIsToldFromNoSocket) {
  daemon_.Kill();
  const ProgramResult result = Run({"status"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_CONTAINS(result.err, "the socket is left over from one that has ended; start it with");
}

TEST_F(QrctlTest, AUserWhoMayNotConnectIsToldTheGroup) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  // setpriv is part of util-linux, which every Debian has.
  const ProgramResult result = RunProgram(
      "/usr/bin/setpriv", {"--reuid", "65534", "--regid", "65534", "--clear-groups", Qrctl(),
                           "status", "--runtime-directory", daemon_.runtime_directory()});
  if (result.exit_code == 127 || result.err.find("setpriv") != std::string::npos) {
    GTEST_SKIP() << "cannot run this program as another user: " << result.err;
  }
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_CONTAINS(result.err, "permission denied on ");
  EXPECT_CONTAINS(result.err, "join that group");
}

}  // namespace
}  // namespace qrd::testing
