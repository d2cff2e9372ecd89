// SPDX-License-Identifier: Apache-2.0
// The gate kernel's text is assembled for the GPUs of today, where ptxas is installed.
#include "client/gpu/gate_kernel.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/support/temp_directory.h"

namespace qrd::client::gpu {
namespace {

TEST(GateKernelTest, PtxAssembles) {
  const std::string ptxas = QRD_PTXAS;
  if (ptxas.empty()) GTEST_SKIP() << "ptxas is not installed: the PTX was not assembled";
  const qrd::testing::TempDirectory directory;
  const std::string source = directory / "gate.ptx";
  std::ofstream(source) << kGatePtx;
  for (const std::string arch : {"sm_80", "sm_90", "sm_100"}) {
    const std::string command = ptxas + " -warn-spills -Werror -arch=" + arch + " -o " +
                                (directory / "gate.cubin") + " " + source;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

TEST(GateKernelTest, PtxHasTheKernelAndItsParameterBlock) {
  const std::string text = kGatePtx;
  const std::string entry = std::string(".entry ") + kGateKernelName +
                            "(.param .align 8 .b8 args[" + std::to_string(sizeof(GateArgs)) + "])";
  EXPECT_NE(text.find(entry), std::string::npos) << entry;
  EXPECT_NE(std::string(kGateHipSource).find(kGateKernelName), std::string::npos);
}

TEST(GateKernelTest, ArgumentsAreTheStepsInOrder) {
  const Step steps[] = {{false, 0x1000, 5}, {true, 0x2000, 1}, {false, 0x2000, 0}};
  const GateArgs args = MakeGateArgs(steps, {0x3000, 77});
  EXPECT_EQ(args.count, 3u);
  EXPECT_EQ(args.wait_mask, 2u);
  EXPECT_EQ(args.address[0], 0x1000u);
  EXPECT_EQ(args.address[1], 0x2000u);
  EXPECT_EQ(args.address[2], 0x2000u);
  EXPECT_EQ(args.value[0], 5u);
  EXPECT_EQ(args.value[1], 1u);
  EXPECT_EQ(args.value[2], 0u);
  EXPECT_EQ(args.expired, 0x3000u);
  EXPECT_EQ(args.bound_ns, 77u);
}

}  // namespace
}  // namespace qrd::client::gpu
