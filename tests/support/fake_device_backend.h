// SPDX-License-Identifier: Apache-2.0
// A GPU backend without a GPU: "device" memory is host memory, an ipc handle carries a descriptor
// (good within the test process), and operations end when the test says so, or at once. Results as
// those of FakeBackend: fp32 sums plus 1000 * codec id.
//
// Thread safety: all of it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

namespace qrd::testing {

// What the devices of a FakeDeviceBackend do; shared with its groups.
struct FakeDevices {
  std::mutex mu;
  std::condition_variable changed;
  bool hold = false;             // launched operations end at Release()
  absl::Status launch_error;     // of the next launch
  absl::Status operation_error;  // of the operation that is polled next
  bool words_lost = false;       // a failed operation does not store to its done words
  absl::Status place_error;
  LinkKind link = LinkKind::kSameDevice;
  int open = 0, open_max = 0;  // launched and not told to have ended
  int launched = 0, placed = 0, groups = 0, arenas = 0, visible = 0, aborted = 0;
  uint64_t next_ticket = 1;
  uint64_t released_to = 0;  // tickets up to here may end
};

inline constexpr char kFakeDeviceId[] = "GPU-00000000-0000-0000-0000-000000000001";
inline constexpr char kFakeDevicePci[] = "0000:01:00.0";

// Backed by a memfd whose number is the handle: daemon and client map it each for itself, as two
// processes would.
class FakeDeviceArena : public Arena {
 public:
  FakeDeviceArena(std::shared_ptr<FakeDevices> devices, uint64_t bytes, int imported_fd,
                  uint64_t offset_bytes)
      : devices_(std::move(devices)), bytes_(bytes), offset_(offset_bytes) {
    int fd = imported_fd;
    if (fd < 0) {
      fd = own_fd_ = memfd_create("fake-device", MFD_CLOEXEC);
      if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) std::abort();
      handle_.assign(kIpcHandleBytes, '\0');
      std::memcpy(handle_.data(), &fd, sizeof(fd));
    }
    // A client's descriptor is opened anew, as it would be by another process.
    const int mine =
        imported_fd < 0 ? fd
                        : open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
    base_ = static_cast<std::byte*>(
        mmap(nullptr, offset_ + bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, mine, 0));
    if (mine != fd) close(mine);
    const std::lock_guard<std::mutex> lock(devices_->mu);
    ++devices_->arenas;
  }
  ~FakeDeviceArena() override {
    munmap(base_, offset_ + bytes_);
    if (own_fd_ >= 0) close(own_fd_);
    const std::lock_guard<std::mutex> lock(devices_->mu);
    --devices_->arenas;
  }
  std::byte* data() override { return base_ + offset_; }
  uint64_t bytes() const override { return bytes_; }
  int fd() const override { return -1; }
  std::string_view ipc_handle() const override { return handle_; }

 private:
  const std::shared_ptr<FakeDevices> devices_;
  const uint64_t bytes_, offset_;
  int own_fd_ = -1;
  std::byte* base_ = nullptr;
  std::string handle_;
};

class FakeDeviceGroup : public DeviceGroup {
 public:
  explicit FakeDeviceGroup(std::shared_ptr<FakeDevices> devices) : devices_(std::move(devices)) {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    ++devices_->groups;
  }
  ~FakeDeviceGroup() override {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    --devices_->groups;
  }

  absl::StatusOr<uint64_t> Launch(const LaunchParams& params,
                                  std::span<std::atomic<uint32_t>* const> done_words) override {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    if (absl::Status error = std::exchange(devices_->launch_error, absl::OkStatus()); !error.ok()) {
      return error;
    }
    const uint64_t ticket = devices_->next_ticket++;
    open_[ticket] = {params, {done_words.begin(), done_words.end()}};
    ++devices_->launched;
    devices_->open_max = std::max(devices_->open_max, ++devices_->open);
    devices_->changed.notify_all();
    return ticket;
  }

  absl::StatusOr<Progress> Poll(uint64_t ticket) override {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    const auto found = open_.find(ticket);
    if (found == open_.end()) return absl::InvalidArgumentError("ticket: not in flight");
    if (devices_->hold && ticket > devices_->released_to && !aborted_) return Progress{};
    const absl::Status error = aborted_
                                   ? absl::AbortedError("aborted")
                                   : std::exchange(devices_->operation_error, absl::OkStatus());
    if (error.ok()) Run(found->second.params);
    if (error.ok() || !devices_->words_lost) {
      for (std::atomic<uint32_t>* word : found->second.done_words) {
        if (word != nullptr) word->store(1, std::memory_order_release);
      }
    }
    open_.erase(found);
    --devices_->open;
    if (!error.ok()) return error;
    return Progress{true, 0};
  }

  void Abort() override {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    aborted_ = true;
    ++devices_->aborted;
  }
  LinkKind link() const override { return devices_->link; }

 private:
  struct Operation {
    LaunchParams params;
    std::vector<std::atomic<uint32_t>*> done_words;
  };
  static void Run(const LaunchParams& params) {
    for (uint64_t i = 0; i < params.count; ++i) {
      float sum = 1000.0f * static_cast<float>(params.codec);
      for (uint32_t r = 0; r < params.world_size; ++r) {
        sum += static_cast<const float*>(params.inputs[r])[i];
      }
      for (uint32_t r = 0; r < params.world_size; ++r) {
        static_cast<float*>(params.outputs[r])[i] = sum;
      }
    }
  }

  const std::shared_ptr<FakeDevices> devices_;
  std::map<uint64_t, Operation> open_;
  bool aborted_ = false;
};

class FakeVisibleMemory : public DeviceVisibleMemory {
 public:
  explicit FakeVisibleMemory(std::shared_ptr<FakeDevices> devices) : devices_(std::move(devices)) {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    ++devices_->visible;
  }
  ~FakeVisibleMemory() override {
    const std::lock_guard<std::mutex> lock(devices_->mu);
    --devices_->visible;
  }

 private:
  const std::shared_ptr<FakeDevices> devices_;
};

class FakeDeviceBackend : public Backend {
 public:
  explicit FakeDeviceBackend(std::shared_ptr<FakeDevices> devices) : devices_(std::move(devices)) {}

  std::string_view name() const override { return "gpu"; }
  std::string target() const override { return "fake"; }
  std::vector<DeviceInfo> devices() const override {
    return {{kFakeDeviceId, "a device of tests", uint64_t{1} << 30}};
  }
  std::span<const KernelInstance> instances() const override { return AllInstances(); }
  absl::Status Validate(const LaunchParams& params) const override {
    return params.dtype == Dtype::kFp32
               ? absl::OkStatus()
               : absl::UnimplementedError("dtype: the fake device has fp32 only");
  }
  Codec AutoCodec(Dtype, uint64_t, uint32_t) const override { return Codec::kNone; }
  Algorithm AutoAlgorithm(Codec, Dtype, uint64_t, uint32_t) const override {
    return Algorithm::kTwoShot;
  }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t) override {
    return absl::UnimplementedError("no host memory");
  }
  uint64_t Run(const LaunchParams&, TileRange) override { return 0; }

  bool enqueued() const override { return true; }
  absl::StatusOr<std::string> FindDevice(std::string_view name) const override {
    if (name == kFakeDeviceId || name == kFakeDevicePci) return std::string(kFakeDeviceId);
    return absl::NotFoundError(
        absl::StrCat("no device ", std::string(name), "; there is ", kFakeDeviceId));
  }
  absl::StatusOr<std::unique_ptr<DeviceGroup>> PlaceGroup(std::string_view,
                                                          std::span<const std::string>) override {
    {
      const std::lock_guard<std::mutex> lock(devices_->mu);
      ++devices_->placed;
      // A status of its own: the count of a shared one is in a library that sanitizers do not see.
      if (const absl::Status& error = devices_->place_error; !error.ok()) {
        return absl::Status(error.code(), std::string(error.message()));
      }
    }
    return std::make_unique<FakeDeviceGroup>(devices_);
  }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateDeviceArena(std::string_view,
                                                             uint64_t bytes) override {
    return std::make_unique<FakeDeviceArena>(devices_, bytes, -1, 0);
  }
  absl::StatusOr<std::unique_ptr<Arena>> ImportArena(std::string_view, std::string_view ipc_handle,
                                                     uint64_t offset_bytes,
                                                     uint64_t bytes) override {
    if (ipc_handle.size() != kIpcHandleBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("ipc_handle has ", ipc_handle.size(), " bytes: want ", kIpcHandleBytes));
    }
    int fd = -1;
    std::memcpy(&fd, ipc_handle.data(), sizeof(fd));
    return std::make_unique<FakeDeviceArena>(devices_, bytes, fd, offset_bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> MakeDeviceVisible(void*, uint64_t) override {
    return std::make_unique<FakeVisibleMemory>(devices_);
  }

 private:
  const std::shared_ptr<FakeDevices> devices_;
};

// What a test says to the devices.
class DeviceControl {
 public:
  std::shared_ptr<FakeDevices> devices = std::make_shared<FakeDevices>();

  template <typename T>
  void Set(T FakeDevices::*field, T value) {
    const std::lock_guard<std::mutex> lock(devices->mu);
    (*devices).*field = std::move(value);
  }
  template <typename T>
  T Get(T FakeDevices::*field) const {
    const std::lock_guard<std::mutex> lock(devices->mu);
    return (*devices).*field;
  }
  // False after 20 s.
  bool WaitUntilLaunched(int operations) const {
    std::unique_lock<std::mutex> lock(devices->mu);
    return devices->changed.wait_for(lock, std::chrono::seconds(20),
                                     [&] { return devices->launched >= operations; });
  }
  // Lets everything that was launched until now end.
  void Release() {
    const std::lock_guard<std::mutex> lock(devices->mu);
    devices->released_to = devices->next_ticket - 1;
  }
};

}  // namespace qrd::testing
