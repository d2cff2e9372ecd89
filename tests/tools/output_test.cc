// SPDX-License-Identifier: Apache-2.0
// Both tools with a standard output that takes nothing, or without one.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tests/support/daemon_process.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

#define EXPECT_CONTAINS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "no \"" << (part) << "\" in\n" << (text)

ProgramResult Shell(const std::string& command) { return RunProgram("/bin/sh", {"-c", command}); }

constexpr char kFull[] =
    ": error: cannot write the result to standard output: No space left on device";

TEST(Output, ThatIsLostOnAFullDiskIsAnError) {
  for (const std::string& command :
       {Qrctl() + " --help", Qrctl() + " comm create --help", Qrbench() + " --version",
        Qrbench() + " model", Qrbench() + " accuracy --count 1024 --codecs int4",
        Qrbench() + " golden " + QRD_TEST_DATA_DIR + "/golden/epilogue"}) {
    const ProgramResult result = Shell(command + " > /dev/full");
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_CONTAINS(result.err, kFull);
  }
}

TEST(Output, ThatIsLostLeavesTheCodeOfAnEarlierError) {
  const ProgramResult result = Shell(Qrctl() + " stats > /dev/full");
  EXPECT_EQ(result.exit_code, 2);
}

TEST(Output, ThatIsClosedIsAnErrorAndSoIsAClosedInput) {
  const ProgramResult output = Shell(Qrbench() + " model >&-");
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_CONTAINS(output.err, "standard output: Bad file descriptor");
  const ProgramResult input = Shell(Qrctl() + " policy set - <&-");
  EXPECT_EQ(input.exit_code, 1);
  EXPECT_CONTAINS(input.err, "<stdin>: cannot read: Bad file descriptor");
  EXPECT_EQ(Shell(Qrctl() + " --version 2>&-").exit_code, 0);
}

class DaemonOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(daemon_.Start(), "");
    at_ = " --runtime-directory " + daemon_.runtime_directory();
  }
  std::string Read(const std::string& name) {
    std::ifstream file(daemon_.File(name));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // As a user without admin rights who may connect, by group 0. setpriv is part of util-linux.
  ProgramResult AsSomebodyElse(const std::string& command) {
    chmod(daemon_.File("").c_str(), 0755);
    return Shell("/usr/bin/setpriv --reuid 65534 --regid 0 --clear-groups " + command + at_);
  }

  DaemonProcess daemon_;
  std::string at_;
};

TEST_F(DaemonOutput, ThatIsLostIsAnError) {
  for (const std::string& command :
       {Qrctl() + " status", Qrctl() + " policy get -o text", Qrctl() + " policy watch --count 1",
        Qrbench() + " all_reduce --sizes 4K --iters 5 -o json",
        Qrbench() + " live --size 4K --seconds 30"}) {
    const ProgramResult result = Shell(command + at_ + " > /dev/full");
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_CONTAINS(result.err, kFull);
  }
  EXPECT_EQ(Shell(Qrctl() + " status" + at_ + " >&-").exit_code, 1);
}

TEST_F(DaemonOutput, WhoseReaderIsGoneEndsAMeasurement) {
  const std::string command = Qrbench() + " all_reduce -b 64K -e 1M -f 1.01 --iters 100" + at_;
  Shell(command + " 2> " + daemon_.File("err") + " | head -3");
  EXPECT_CONTAINS(Read("err"), "standard output takes no more");
  EXPECT_CONTAINS(Read("err"), "standard output: Broken pipe");
}

TEST_F(DaemonOutput, OfPolicyGetFits100ColumnsWhateverTheNames) {
  const std::string a(63, 'a'), b(63, 'b'), c(63, 'c');
  std::ofstream(daemon_.File("policy"))
      << "rules { name: \"" << a << "1\" match { communicator: \"" << b << "2\" group: \"" << c
      << "3\" payload_bytes_min: 1048576 } action { codec: "
         "CODEC_INT8 algorithm: ALGORITHM_TWO_SHOT } }";
  ASSERT_EQ(Shell(Qrctl() + " policy set " + daemon_.File("policy") + at_).exit_code, 0);
  const std::string table = Shell(Qrctl() + " policy get" + at_).out;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_CONTAINS(table, "...aaaaa");
  EXPECT_CONTAINS(table, "b2 ");
  EXPECT_CONTAINS(Shell(Qrctl() + " policy get -o text" + at_).out, a + "1");
}

TEST_F(DaemonOutput, OfCommListSaysWhoseBytesItCounts) {
  ASSERT_EQ(Shell(Qrctl() + " comm create a --world-size 2" + at_).exit_code, 0);
  const std::string list = Shell(Qrctl() + " comm list" + at_).out;
  EXPECT_CONTAINS(list, "PAYLOAD/RANK");
  EXPECT_CONTAINS(list, "WIRE, ALL");
}

TEST_F(DaemonOutput, OfARefusalSaysOnceWhoMay) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const ProgramResult result = AsSomebodyElse(Qrctl() + " policy set --codec int4");
  if (result.err.find("may not set the policy") == std::string::npos) {
    GTEST_SKIP() << "cannot run this program as another user: " << result.err;
  }
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find("admin_group"), result.err.rfind("admin_group")) << result.err;
}

TEST_F(DaemonOutput, OfABenchmarkWithoutAdminRightsLeavesNoWarningInTheLog) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const ProgramResult result = AsSomebodyElse(Qrbench() + " all_reduce --sizes 4K --iters 5");
  if (result.exit_code != 0) GTEST_SKIP() << "cannot run this as another user: " << result.err;
  EXPECT_EQ(daemon_.Log().find("may not"), std::string::npos) << daemon_.Log();
  // Whoever may deletes it.
  ASSERT_EQ(Shell(Qrbench() + " all_reduce --sizes 4K --iters 5 --codecs int8" + at_).exit_code, 0);
  const std::string list = Shell(Qrctl() + " comm list -o json" + at_).out;
  EXPECT_EQ(list.find("\"name\""), list.rfind("\"name\"")) << list;
}

}  // namespace
}  // namespace qrd::testing
