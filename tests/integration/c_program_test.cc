// SPDX-License-Identifier: Apache-2.0
// The plain C program (tests/client/c_program.c) as the ranks of a group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"

namespace qrd::testing {
namespace {

class CProgramTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(CProgramTest, RunsAsEveryRank) {
  DaemonProcess daemon;
  ASSERT_EQ(daemon.Start(), "");
  const std::string directory = daemon.runtime_directory();
  RankProcesses ranks(GetParam(), [&](RankProcess& self) -> std::string {
    // The program takes the rank's place; its exit code is the result.
    execl(QRD_C_PROGRAM, QRD_C_PROGRAM, directory.c_str(), std::to_string(self.rank()).c_str(),
          std::to_string(GetParam()).c_str(), static_cast<char*>(nullptr));
    return "execl failed";
  });
  // A program that was exec'ed sends no result: ending with code 0 is all it says.
  EXPECT_THAT(ranks.Wait(), ::testing::Each(::testing::StrEq("ended without a result")))
      << daemon.Log();
}

INSTANTIATE_TEST_SUITE_P(Ranks, CProgramTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace qrd::testing
