// SPDX-License-Identifier: Apache-2.0
// The program `qrd`: command line, exit status, error texts, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "tests/support/daemon_process.h"
#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using testing::DaemonProcess;
using ::testing::HasSubstr;
using testing::TempDirectory;

struct Result {
  int exit_status = -1;
  std::string output;  // stdout and stderr
};

// Runs qrd with arguments for the shell.
Result RunQrd(const std::string& arguments) {
  Result result;
  FILE* pipe = popen((DaemonProcess::Executable() + " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) result.output.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_status = WEXITSTATUS(status);
  return result;
}

std::string Directories(const TempDirectory& directory) {
  return "--metrics-address=127.0.0.1:0 --runtime-directory=" + directory / "run" +
         " --state-directory=" + directory / "state ";
}

TEST(Main, PrintsHelpAndVersion) {
  const Result help = RunQrd("--help");
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("Usage: qrd"), HasSubstr("--runtime-directory DIR")));
  const Result version = RunQrd("--version");
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_THAT(version.output, ::testing::StartsWith("qrd 0."));
}

TEST(Main, EndsWithStatus2ForAWrongCommandLine) {
  const Result unknown = RunQrd("--runtime-dir=/tmp");
  EXPECT_EQ(unknown.exit_status, 2);
  EXPECT_THAT(unknown.output,
              AllOf(HasSubstr("qrd: unknown flag \"--runtime-dir\""), HasSubstr("qrd --help")));
  EXPECT_EQ(RunQrd("serve").exit_status, 2);
  EXPECT_EQ(RunQrd("--worker-threads=-1").exit_status, 2);
  const Result bound = RunQrd("--worker-threads=1000");
  EXPECT_EQ(bound.exit_status, 2);
  EXPECT_THAT(bound.output, HasSubstr("worker_threads is 1000; want 0 to 256"));
}

TEST(Main, EndsWithStatus2ForAWrongConfiguration) {
  const TempDirectory directory;
  const std::string path = directory / "qrd.textproto";
  const auto output_of = [&path](const std::string& text) {
    std::ofstream(path) << text;
    const Result result = RunQrd("--check-config --config " + path);
    EXPECT_EQ(result.exit_status, 2) << text;
    return result.output;
  };
  EXPECT_THAT(output_of("log_level: \"info\"\nworker_thread: 1\n"),
              AllOf(HasSubstr(path + ":2:"), HasSubstr("no field named \"worker_thread\"")));
  EXPECT_THAT(output_of("sessions_max: 0"),
              AllOf(HasSubstr(path), HasSubstr("sessions_max is 0; want 1 to 4096")));
  EXPECT_THAT(output_of("initial_policy { rules { name: \"a\" action { codec: CODEC_NONE } } "
                        "rules { name: \"b\" action { codec: CODEC_FP8 } } }"),
              HasSubstr("initial_policy: rule 2 (\"b\") can never decide"));
  const Result missing = RunQrd("--config " + directory / "none");
  EXPECT_EQ(missing.exit_status, 2);
  EXPECT_THAT(missing.output, AllOf(HasSubstr("--config: cannot read " + directory / "none"),
                                    HasSubstr("No such file")));
  EXPECT_EQ(RunQrd("--config " + directory.path()).exit_status, 2);
}

TEST(Main, ChecksAndPrintsTheConfigurationThatWouldBeInForce) {
  const TempDirectory directory;
  const std::string path = directory / "qrd.textproto";
  std::ofstream(path) << "sessions_max: 7\nspin_us_max: 3\n";
  EXPECT_EQ(RunQrd("--check-config --config " + path).exit_status, 0);
  const Result printed = RunQrd("--print-config --spin-us-max=9 --config " + path);
  EXPECT_EQ(printed.exit_status, 0);
  EXPECT_THAT(printed.output, AllOf(HasSubstr("sessions_max: 7\n"), HasSubstr("spin_us_max: 9\n"),
                                    HasSubstr("attach_timeout_ms: 30000\n")));
  std::ofstream(path) << printed.output;
  EXPECT_EQ(RunQrd("--print-config --config " + path).output, printed.output);
}

TEST(Main, EndsWithStatus1WhenItCannotStart) {
  const TempDirectory directory;
  std::ofstream(directory / "run") << "not a directory";
  const Result result = RunQrd(Directories(directory));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("qrd cannot start: "), HasSubstr("is not a directory")));
}

// F42
TEST(Main, KeepsASecondDaemonOffTheRuntimeDirectory) {
  DaemonProcess first;
  ASSERT_EQ(first.Start(), "");
  const auto begin = std::chrono::steady_clock::now();
  const Result second =
      RunQrd("--metrics-address=127.0.0.1:0 --runtime-directory=" + first.runtime_directory() +
             " --state-directory=" + first.state_directory());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.output,
              HasSubstr("another qrd (pid " + std::to_string(first.pid()) + ") runs with"));
  EXPECT_TRUE(first.IsRunning());
  // After kill -9 the sockets are stale and the lock is free.
  first.Kill();
  EXPECT_EQ(first.Start(), "");
  const int status = first.Terminate();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Main, IgnoresSighupAndDrainsOnSigtermAndSigint) {
  for (const int signal : {SIGTERM, SIGINT}) {
    DaemonProcess daemon;
    ASSERT_EQ(daemon.Start(), "");
    daemon.Signal(SIGHUP);
    daemon.Signal(signal);
    const int status = daemon.WaitForExit(std::chrono::seconds(30));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_THAT(daemon.Log(), AllOf(HasSubstr("SIGHUP is ignored"), HasSubstr("drain: 0 sessions"),
                                    HasSubstr("qrd ends")));
  }
}

TEST(Main, UsesLittleMemoryWhenIdle) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory";
#endif
  DaemonProcess daemon;
  ASSERT_EQ(daemon.Start(), "");
  std::ifstream file("/proc/" + std::to_string(daemon.pid()) + "/status");
  std::string line;
  long rss_kib = 0;
  while (std::getline(file, line)) {
    if (line.rfind("VmRSS:", 0) == 0) rss_kib = std::stol(line.substr(6));
  }
  EXPECT_GT(rss_kib, 0);
  EXPECT_LT(rss_kib, 64 * 1024);
}

}  // namespace
}  // namespace qrd
