// SPDX-License-Identifier: Apache-2.0
// A real daemon and real client processes on the GPUs of this machine, for tests/gpu/served_*.cc.
// The test process itself never touches a GPU: it forks, and GPU runtimes do not survive that.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <qrd/qrd.hpp>
#include <string>
#include <vector>

#include "kernels/reference.h"
#include "kernels/types.h"
#include "tests/gpu/device_support.h"
#include "tests/gpu/test_data.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"

namespace qrd::testing {

// A client's side: a session on the first device; with QRD_TEST_SPREAD_RANKS=1 in the environment
// on device rank % count, so that all of these tests run over real links where there are several.
struct ServedRank {
  ServedRank(const std::string& runtime_directory, uint32_t rank, uint32_t world_size,
             const std::string& communicator = "tp", const std::string& group = "");

  // Uploads and puts the operation on the stream.
  void AllReduce(const Bytes& input, void* in, void* out, uint64_t count, Dtype dtype,
                 ReduceOp op = ReduceOp::kSum);
  Bytes Download(const void* from, uint64_t bytes);

  Communicator comm;
  Stream stream;
};

// What an all-reduce of these tensors gives.
Bytes Expected(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op,
               const std::vector<Bytes>& inputs, uint64_t count);
// The tensors of all ranks.
std::vector<Bytes> Tensors(Dtype dtype, uint64_t count, uint32_t world_size, uint32_t seed);
// "" or the first byte that differs.
std::string Difference(const Bytes& got, const Bytes& want);
// The body with exceptions of the C++ header turned into text.
RankProcesses::Body Guarded(std::function<std::string(RankProcess&)> body);

// Runs qrctl; "" or what failed.
std::string RunCtl(const std::string& runtime_directory, const std::string& arguments);

class ServedTest : public ::testing::Test {
 protected:
  void SetUp() override;
  // Replaces the policy by one rule.
  void SetPolicy(const std::string& codec, const std::string& algorithm);
  std::string Ctl(const std::string& arguments) const;
  std::string directory() const { return daemon_.runtime_directory(); }
  // Free bytes of the first device, as another process sees them.
  static uint64_t FreeDeviceBytes();

  DaemonProcess daemon_;
};

}  // namespace qrd::testing
