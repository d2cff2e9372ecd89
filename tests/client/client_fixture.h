// SPDX-License-Identifier: Apache-2.0
// A client attached to a fake daemon as the only rank (or as rank `rank` of `world_size`).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <qrd/qrd.h>

#include <cstring>
#include <string>

#include "tests/support/fake_daemon.h"

namespace qrd::testing {

// "STATUS: text" of a failure that this thread has just got, "" for QRD_OK.
inline std::string Outcome(qrd_status status) {
  if (status == QRD_OK) return "";
  return std::string(qrd_status_string(status)) + ": " + qrd_last_error();
}

class ClientTest : public ::testing::Test {
 protected:
  ~ClientTest() override { EXPECT_EQ(qrd_comm_finalize(comm_), QRD_OK); }

  qrd_comm_config Config() {
    runtime_directory_ = daemon_.runtime_directory();
    qrd_comm_config config = QRD_COMM_CONFIG_INIT;
    config.communicator = "tp";
    config.world_size = 1;
    config.runtime_directory = runtime_directory_.c_str();
    config.timeout_ms = 20'000;
    return config;
  }
  void Attach() {
    const qrd_comm_config config = Config();
    ASSERT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  }
  void* Allocate(size_t bytes) {
    void* ptr = nullptr;
    EXPECT_EQ(Outcome(qrd_mem_alloc(comm_, bytes, &ptr)), "");
    return ptr;
  }
  qrd_operation Post(const void* input, void* output, size_t count) {
    qrd_operation operation = 0;
    EXPECT_EQ(Outcome(qrd_all_reduce(comm_, input, output, count, QRD_FP32, QRD_SUM, &operation)),
              "");
    return operation;
  }

  FakeDaemon daemon_;
  std::string runtime_directory_;
  qrd_comm_t comm_ = nullptr;
};

}  // namespace qrd::testing
