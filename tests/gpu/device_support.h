// SPDX-License-Identifier: Apache-2.0
// For the programs that run on a GPU: buffers, streams, graphs, and checks that are counted. Plain
// C++: the programs need the built tree and the golden files, no test framework.
//
// Thread safety: Report from any thread; everything else by one thread.
// Ownership: RAII classes own their device objects.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/gpu/gpu_runtime.h"

namespace qrd::testing {

// Errors of the runtime end the program: nothing after them means anything.
inline void MustRun(hipError_t error, const char* call, int line) {
  if (error == hipSuccess) return;
  std::printf("line %d: %s: %s\n1 failed\n", line, call, hipGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);
}
#define QRD_MUST(call) ::qrd::testing::MustRun((call), #call, __LINE__)

class Report {
 public:
  // Counts a check; prints it if it failed.
  bool Check(bool passed, const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++(passed ? passed_ : failed_);
    if (!passed && failed_ <= kFailuresShown) std::printf("FAILED %s\n", what.c_str());
    return passed;
  }
  bool Check(const absl::Status& status, const std::string& what) {
    return Check(status.ok(), what + ": " + status.ToString());
  }
  void Section(const std::string& name) {
    std::printf("%-60s (%d passed, %d failed so far)\n", name.c_str(), passed_, failed_);
    std::fflush(stdout);
  }
  int Finish() const {
    std::printf("%d passed, %d failed\n", passed_, failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  static constexpr int kFailuresShown = 40;
  std::mutex mutex_;
  int passed_ = 0, failed_ = 0;
};

// Device memory with `guard` bytes of a pattern before and after.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(uint64_t bytes, uint64_t offset = 0) : bytes_(bytes), offset_(offset) {
    QRD_MUST(hipMalloc(&memory_, bytes + offset + 2 * kGuard));
    QRD_MUST(hipMemset(memory_, kPattern, bytes + offset + 2 * kGuard));
  }
  ~DeviceBuffer() { (void)hipFree(memory_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : memory_(other.memory_), bytes_(other.bytes_), offset_(other.offset_) {
    other.memory_ = nullptr;
  }
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_) + kGuard + offset_; }
  uint64_t bytes() const { return bytes_; }
  void Upload(const void* from) const {
    if (bytes_ != 0) QRD_MUST(hipMemcpy(data(), from, bytes_, hipMemcpyHostToDevice));
  }
  void Fill(uint8_t value) const { QRD_MUST(hipMemset(data(), value, bytes_)); }
  std::vector<std::byte> Download() const {
    std::vector<std::byte> to(bytes_);
    if (bytes_ != 0) QRD_MUST(hipMemcpy(to.data(), data(), bytes_, hipMemcpyDeviceToHost));
    return to;
  }
  bool GuardsAreIntact() const {
    const uint64_t before = kGuard + offset_;
    std::vector<uint8_t> guards(before + kGuard);
    QRD_MUST(hipMemcpy(guards.data(), memory_, before, hipMemcpyDeviceToHost));
    QRD_MUST(hipMemcpy(guards.data() + before, data() + bytes_, kGuard, hipMemcpyDeviceToHost));
    return std::ranges::all_of(guards, [](uint8_t byte) { return byte == kPattern; });
  }

 private:
  static constexpr uint64_t kGuard = 256;
  static constexpr uint8_t kPattern = 0xA7;
  void* memory_ = nullptr;
  uint64_t bytes_, offset_;
};

class Stream {
 public:
  Stream() { QRD_MUST(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking)); }
  ~Stream() { (void)hipStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  hipStream_t get() const { return stream_; }
  void Wait() const { QRD_MUST(hipStreamSynchronize(stream_)); }

 private:
  hipStream_t stream_ = nullptr;
};

// What `record` puts on the stream, as a graph.
class Graph {
 public:
  template <typename Record>
  Graph(const Stream& stream, Record record) {
    QRD_MUST(hipStreamBeginCapture(stream.get(), hipStreamCaptureModeGlobal));
    record();
    QRD_MUST(hipStreamEndCapture(stream.get(), &graph_));
    QRD_MUST(hipGraphInstantiateWithFlags(&executable_, graph_, 0));
  }
  ~Graph() {
    (void)hipGraphExecDestroy(executable_);
    (void)hipGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Replay(const Stream& stream) const { QRD_MUST(hipGraphLaunch(executable_, stream.get())); }

 private:
  hipGraph_t graph_ = nullptr;
  hipGraphExec_t executable_ = nullptr;
};

}  // namespace qrd::testing
