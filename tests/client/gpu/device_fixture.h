// SPDX-License-Identifier: Apache-2.0
// A client on a scripted device, attached to a fake daemon. Streams and the daemon's part of an
// operation are run by hand.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/client/client_fixture.h"
#include "tests/client/gpu/scripted_driver.h"

namespace qrd::testing {

inline constexpr float kAdded = 100;  // what an operation adds, so that its work can be seen

class DeviceTest : public ClientTest {
 protected:
  DeviceTest() {
    setenv("QRD_GPU_DRIVER", QRD_SCRIPTED_DRIVER, 1);
    unsetenv("QRD_GPU_GATE");
    void* const library = dlopen(QRD_SCRIPTED_DRIVER, RTLD_NOW);
    EXPECT_NE(library, nullptr) << dlerror();
    gpu_ = reinterpret_cast<ScriptedDriver* (*)()>(dlsym(library, kScriptedDriverSymbol))();
    gpu_->SetCurrent(-1);
    stream_ = gpu_->NewStream();
  }
  ~DeviceTest() override {
    // Here rather than in ClientTest, so that what libqrd still holds can be seen.
    EXPECT_EQ(qrd_comm_finalize(comm_), QRD_OK);
    comm_ = nullptr;
    EXPECT_EQ(gpu_->registered(), 0);
    EXPECT_EQ(gpu_->open_handles(), 0);
    EXPECT_EQ(gpu_->retained(), 0);
    EXPECT_EQ(gpu_->Current(), -1);
  }

  void AttachDevice(const char* device = kScriptedUuid) {
    qrd_comm_config config = Config();
    config.device = device;
    ASSERT_EQ(Outcome(qrd_comm_init(&config, &comm_)), "");
  }
  float* Floats(size_t count) { return static_cast<float*>(Allocate(count * sizeof(float))); }
  // Device memory of the program.
  float* Own(size_t count) { return static_cast<float*>(gpu_->Allocate(count * sizeof(float))); }

  std::string Enqueue(const void* input, void* output, size_t count, void* stream) {
    return Outcome(
        qrd_all_reduce_on_stream(comm_, input, output, count, QRD_FP32, QRD_SUM, stream));
  }
  std::string Enqueue(float* x, size_t count) { return Enqueue(x, x, count, stream_); }

  float* Tensor(const shm::Tensor& tensor) {
    return reinterpret_cast<float*>(daemon_.ArenaData(tensor.arena_id) + tensor.offset_bytes);
  }
  void Compute(const shm::Descriptor& descriptor) {
    const float* const input = Tensor(descriptor.input);
    float* const output = Tensor(descriptor.output);
    for (uint64_t i = 0; i < descriptor.count; ++i) output[i] = input[i] + kAdded;
  }
  // The daemon's part of what the streams have come to; the descriptor that it saw.
  shm::Descriptor Serve(qrd_status status = QRD_OK, const std::string& message = "") {
    const auto announced = daemon_.NextAnnounced();
    EXPECT_TRUE(announced.has_value());
    if (!announced) return {};
    if (status == QRD_OK) Compute(announced->descriptor);
    daemon_.EndAnnounced(*announced, static_cast<uint32_t>(status), message);
    return announced->descriptor;
  }
  // Nothing has rung. Streams run on this thread, so there is nothing to wait for.
  bool Silent() { return daemon_.stream() == nullptr || daemon_.stream()->doorbell.load() == 0; }
  // One operation from the stream's first step to its last.
  shm::Descriptor RunOne() {
    EXPECT_FALSE(gpu_->Run(stream_));
    const shm::Descriptor descriptor = Serve();
    EXPECT_TRUE(gpu_->Run(stream_));
    return descriptor;
  }
  std::string AsyncError(qrd_op_stats* stats = nullptr) {
    qrd_status failed = QRD_INTERNAL;
    EXPECT_EQ(qrd_comm_async_error(comm_, &failed, stats), QRD_OK);
    return Outcome(failed);
  }
  qrd_op_stats LastStats() {
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    EXPECT_EQ(Outcome(qrd_stream_stats(comm_, &operations_, &stats)), "");
    return stats;
  }
  // True once the stream has ended; false after 20 s.
  bool RunsToTheEnd(void* stream) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!gpu_->Run(stream)) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  ScriptedDriver* gpu_ = nullptr;
  void* stream_ = nullptr;
  uint64_t operations_ = 0;  // of LastStats
};

}  // namespace qrd::testing
