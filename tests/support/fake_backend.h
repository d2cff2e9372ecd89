// SPDX-License-Identifier: Apache-2.0
// A backend whose collectives can be held, counted and told apart: fp32 sums, plus 1000 * codec id
// in every element, so that a result shows the plan it was made under.
//
// Thread safety: as kernels/backend.h says; Hold and Release from any thread.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace qrd::testing {

class FakeArena : public Arena {
 public:
  FakeArena(int fd, void* data, uint64_t bytes)
      : fd_(fd), data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~FakeArena() override {
    munmap(data_, bytes_);
    close(fd_);
  }
  std::byte* data() override { return data_; }
  uint64_t bytes() const override { return bytes_; }
  int fd() const override { return fd_; }

 private:
  const int fd_;
  std::byte* const data_;
  const uint64_t bytes_;
};

class FakeBackend : public Backend {
 public:
  std::string_view name() const override { return "host"; }
  std::string target() const override { return "FAKE"; }
  std::vector<DeviceInfo> devices() const override { return {}; }
  std::span<const KernelInstance> instances() const override { return AllInstances(); }

  absl::Status Validate(const LaunchParams& params) const override {
    return params.dtype == Dtype::kFp32
               ? absl::OkStatus()
               : absl::UnimplementedError("dtype: the fake backend has fp32 only");
  }
  Codec AutoCodec(Dtype, uint64_t, uint32_t) const override { return Codec::kNone; }
  Algorithm AutoAlgorithm(Codec, Dtype, uint64_t, uint32_t) const override {
    return Algorithm::kTwoShot;
  }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t bytes) override {
    const int fd = memfd_create("fake-arena", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError("memfd");
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return absl::ResourceExhaustedError("mmap");
    return std::make_unique<FakeArena>(fd, data, bytes);
  }
  uint64_t Run(const LaunchParams& params, TileRange range) override {
    {
      std::unique_lock<std::mutex> lock(mu_);
      ++chunks_;
      if (on_chunk_) on_chunk_(params, range);
      if (hold_) ++held_;
      changed_.notify_all();
      changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !hold_; });
    }
    const uint64_t last = std::min(range.last * kTileElements, params.count);
    const float mark = 1000.0f * static_cast<float>(params.codec);
    for (uint64_t i = range.first * kTileElements; i < last; ++i) {
      float sum = mark;
      for (uint32_t r = 0; r < params.world_size; ++r) {
        sum += static_cast<const float*>(params.inputs[r])[i];
      }
      for (uint32_t r = 0; r < params.world_size; ++r) {
        static_cast<float*>(params.outputs[r])[i] = sum;
      }
    }
    return 0;
  }

  // Chunks that start from now on wait until Release (at most 20 s).
  void Hold() {
    std::lock_guard<std::mutex> lock(mu_);
    hold_ = true;
    held_ = 0;
  }
  // True once a chunk is held.
  bool WaitUntilHeld() {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return held_ > 0; });
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mu_);
    hold_ = false;
    changed_.notify_all();
  }
  uint64_t chunks() {
    std::lock_guard<std::mutex> lock(mu_);
    return chunks_;
  }
  // Called at the start of each chunk, under a lock.
  void OnChunk(std::function<void(const LaunchParams&, TileRange)> function) {
    std::lock_guard<std::mutex> lock(mu_);
    on_chunk_ = std::move(function);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool hold_ = false;
  int held_ = 0;
  uint64_t chunks_ = 0;
  std::function<void(const LaunchParams&, TileRange)> on_chunk_;
};

}  // namespace qrd::testing
