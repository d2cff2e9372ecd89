// SPDX-License-Identifier: Apache-2.0
// A driver in the test process whose streams do nothing by themselves: Run executes what is queued
// on a stream until it ends or waits, on the calling thread. Addresses of the device are the
// host's. Every call can be made to fail.
//
// Thread safety: none.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "client/core/error.h"
#include "client/gpu/driver.h"

namespace qrd::testing {

class FakeDriver : public client::gpu::Driver {
 public:
  using Stream = client::gpu::Stream;
  using DevicePtr = client::gpu::DevicePtr;
  using Step = client::gpu::Step;
  using StepMode = client::gpu::StepMode;

  struct Item {
    bool copy = false;
    Step step{};
    DevicePtr from = 0;
    size_t bytes = 0;
  };

  // Runs the stream until it ends or waits; true: it has ended.
  bool Run(Stream stream) {
    std::deque<Item>& items = queues[stream];
    while (!items.empty()) {
      const Item& item = items.front();
      auto* word = reinterpret_cast<std::atomic<uint32_t>*>(item.step.address);
      if (item.copy) {
        std::memcpy(reinterpret_cast<void*>(item.step.address),
                    reinterpret_cast<const void*>(item.from), item.bytes);
      } else if (!item.step.wait) {
        word->store(item.step.value, std::memory_order_release);
      } else if (waits_work && word->load(std::memory_order_acquire) != item.step.value) {
        return false;
      }
      items.pop_front();
    }
    return true;
  }

  const char* name() const override { return "FAKE"; }
  qrd_status DeviceCount(int* count) override { return *count = 1, QRD_OK; }
  qrd_status DeviceAt(int ordinal, int* device) override { return *device = ordinal, QRD_OK; }
  qrd_status DeviceUuid(int, std::string* uuid) override { return *uuid = "GPU-fake", QRD_OK; }
  qrd_status DevicePciAddress(int, std::string* address) override {
    return *address = "0000:00:00.0", QRD_OK;
  }
  qrd_status FindPciAddress(const std::string&, int* device) override {
    return *device = 0, QRD_OK;
  }
  qrd_status CurrentDevice(int* device) override { return *device = 0, QRD_OK; }
  qrd_status OpenContext(int, client::gpu::Context*, bool*) override { return QRD_OK; }
  void CloseContext(int) override {}
  qrd_status Enter(client::gpu::Context, client::gpu::Context*) override { return QRD_OK; }
  void Leave(client::gpu::Context) override {}
  bool RelaxCapture(int*) override { return false; }
  void RestoreCapture(int) override {}
  qrd_status DescribePointer(const void*, client::gpu::PointerInfo*) override { return QRD_OK; }
  qrd_status AllocationOf(DevicePtr, DevicePtr*, size_t*) override { return QRD_OK; }
  qrd_status ExportHandle(DevicePtr, char*) override { return QRD_OK; }
  qrd_status OpenHandle(const char*, DevicePtr*) override { return QRD_OK; }
  qrd_status CloseHandle(DevicePtr) override { return QRD_OK; }
  qrd_status RegisterHost(void* data, size_t bytes, DevicePtr* address) override {
    if (registered.size() >= registrations_max) {
      return client::Fail(QRD_INTERNAL, "RegisterHost: the fake refuses");
    }
    registered[data] = bytes;
    *address = reinterpret_cast<uintptr_t>(data);
    return QRD_OK;
  }
  qrd_status UnregisterHost(void* data) override {
    return registered.erase(data) == 1 ? QRD_OK : client::Fail(QRD_INTERNAL, "not registered");
  }
  qrd_status CreateStream(Stream* stream) override {
    *stream = reinterpret_cast<Stream>(++streams_made + 1000);
    return QRD_OK;
  }
  void DestroyStream(Stream stream) override { queues.erase(stream); }
  qrd_status StreamDone(Stream stream, bool* done) override {
    ++looks;
    return *done = Run(stream), QRD_OK;
  }
  bool IsNonBlocking(Stream) override { return non_blocking; }
  bool StreamId(Stream stream, uint64_t* id) override {
    const auto known = ids.find(stream);
    if (known == ids.end()) return false;
    *id = known->second;
    return true;
  }
  qrd_status CaptureState(Stream, client::gpu::Capture*) override { return QRD_OK; }
  qrd_status Copy(Stream stream, DevicePtr to, DevicePtr from, size_t bytes) override {
    if (Fails()) return client::Fail(QRD_INTERNAL, "Copy: the fake refuses");
    queues[stream].push_back({true, {false, to, 0}, from, bytes});
    return QRD_OK;
  }
  qrd_status PrepareSteps(int, StepMode mode) override {
    if (modes.count(mode) > 0) return QRD_OK;
    return client::Fail(QRD_UNIMPLEMENTED, "the fake has no mode %d", static_cast<int>(mode));
  }
  bool Capturable(StepMode mode) const override {
    return memory_capturable || mode == StepMode::kKernel;
  }
  qrd_status Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                     const client::gpu::GateLimits&, size_t* queued) override {
    *queued = 0;
    if (Fails()) return client::Fail(QRD_INTERNAL, "Enqueue: the fake refuses");
    last_mode = mode;
    for (const Step& step : steps) queues[stream].push_back({false, step, 0, 0});
    *queued = steps.size();
    return QRD_OK;
  }

  std::map<Stream, std::deque<Item>> queues;
  std::map<Stream, uint64_t> ids;
  std::map<void*, size_t> registered;
  std::map<StepMode, bool> modes = {
      {StepMode::kBatch, true}, {StepMode::kMemory, true}, {StepMode::kKernel, true}};
  StepMode last_mode = StepMode::kMemory;
  size_t registrations_max = 100;
  uintptr_t streams_made = 0;
  bool waits_work = true;
  bool memory_capturable = true;
  bool non_blocking = false;
  int looks = 0;          // of StreamDone
  int calls = 0;          // of Copy and Enqueue
  int fail_at_call = -1;  // counted as `calls`
  int fail_calls = 1;     // from that one

 private:
  bool Fails() {
    const int call = calls++;
    return fail_at_call >= 0 && call >= fail_at_call && call < fail_at_call + fail_calls;
  }
};

}  // namespace qrd::testing
