// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/device_memory.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

// What the drivers give out at least; an exported block of less would waste the rest.
constexpr uint64_t kBlockBytes = uint64_t{2} << 20;

static_assert(sizeof(hipIpcMemHandle_t) == kIpcHandleBytes);

class OwnArena : public Arena {
 public:
  OwnArena(int ordinal, void* data, uint64_t bytes, const hipIpcMemHandle_t& handle)
      : ordinal_(ordinal),
        data_(data),
        bytes_(bytes),
        handle_(reinterpret_cast<const char*>(&handle), sizeof(handle)) {}
  ~OwnArena() override {
    const ScopedDevice device(ordinal_);
    (void)hipFree(data_);
  }
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  uint64_t bytes() const override { return bytes_; }
  int fd() const override { return -1; }
  std::string_view ipc_handle() const override { return handle_; }

 private:
  const int ordinal_;
  void* const data_;
  const uint64_t bytes_;
  const std::string handle_;
};

class ImportedArena : public Arena {
 public:
  ImportedArena(int ordinal, void* base, uint64_t offset_bytes, uint64_t bytes)
      : ordinal_(ordinal), base_(base), offset_bytes_(offset_bytes), bytes_(bytes) {}
  ~ImportedArena() override {
    const ScopedDevice device(ordinal_);
    (void)hipIpcCloseMemHandle(base_);
  }
  std::byte* data() override { return static_cast<std::byte*>(base_) + offset_bytes_; }
  uint64_t bytes() const override { return bytes_; }
  int fd() const override { return -1; }

 private:
  const int ordinal_;
  void* const base_;
  const uint64_t offset_bytes_, bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> AllocateDeviceArena(const Device& device, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes = 0: want at least 1");
  if (bytes > device.info.memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("bytes = ", bytes, ": device ", device.uuid,
                                                     " has ", device.info.memory_bytes));
  }
  const uint64_t rounded = (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const ScopedDevice scope(device.ordinal);
  QRD_RETURN_IF_RUNTIME_ERROR(scope.error());
  void* data = nullptr;
  if (const hipError_t error = hipMalloc(&data, rounded); error != hipSuccess) {
    (void)hipGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    (void)hipMemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(absl::StrCat(rounded, " bytes on device ", device.uuid,
                                                     ", which has ", free_bytes,
                                                     " free: ", hipGetErrorString(error)));
  }
  hipIpcMemHandle_t handle;
  // On the default stream, which the streams of operations do not wait for.
  hipError_t error = hipMemsetAsync(data, 0, rounded, nullptr);
  if (error == hipSuccess) error = hipStreamSynchronize(nullptr);
  if (error == hipSuccess) error = hipIpcGetMemHandle(&handle, data);
  if (error != hipSuccess) {
    (void)hipFree(data);
    return FromRuntime(error, "hipIpcGetMemHandle");
  }
  return std::make_unique<OwnArena>(device.ordinal, data, rounded, handle);
}

absl::StatusOr<std::unique_ptr<Arena>> ImportDeviceArena(const Device& device,
                                                         std::string_view ipc_handle,
                                                         uint64_t offset_bytes, uint64_t bytes) {
  if (ipc_handle.size() != kIpcHandleBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ipc_handle has ", ipc_handle.size(), " bytes: want ", kIpcHandleBytes));
  }
  if (bytes == 0) return absl::InvalidArgumentError("bytes = 0: want at least 1");
  hipIpcMemHandle_t handle;
  std::memcpy(&handle, ipc_handle.data(), sizeof(handle));
  const ScopedDevice scope(device.ordinal);
  QRD_RETURN_IF_RUNTIME_ERROR(scope.error());
  void* base = nullptr;
  if (const hipError_t error = hipIpcOpenMemHandle(&base, handle, hipIpcMemLazyEnablePeerAccess);
      error != hipSuccess) {
    (void)hipGetLastError();
    return absl::InvalidArgumentError(absl::StrCat(
        "ipc_handle cannot be opened on device ", device.uuid, ": ", hipGetErrorString(error),
        ". Memory of virtual address pools (expandable segments, async pools) cannot "
        "be shared this way"));
  }
  auto arena = std::make_unique<ImportedArena>(device.ordinal, base, offset_bytes, bytes);
  // The client says how long the part is; the runtime knows.
  uint64_t allocation_bytes = 0;
  if (const hipError_t error = AllocationBytes(base, &allocation_bytes); error != hipSuccess) {
    return FromRuntime(error, "size of the imported memory");
  }
  if (offset_bytes > allocation_bytes || bytes > allocation_bytes - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("offset_bytes = ", offset_bytes,
                                                   ", bytes = ", bytes, ": the allocation has ",
                                                   allocation_bytes, " bytes"));
  }
  return arena;
}

class VisibleMemory::Entry : public DeviceVisibleMemory {
 public:
  Entry(VisibleMemory* owner, void* data) : owner_(owner), data_(data) {}
  ~Entry() override { owner_->Forget(data_); }

 private:
  VisibleMemory* const owner_;
  void* const data_;
};

absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> VisibleMemory::Register(void* data,
                                                                             uint64_t bytes) {
  QRD_RETURN_IF_RUNTIME_ERROR(
      hipHostRegister(data, bytes, hipHostRegisterMapped | hipHostRegisterPortable));
  void* device_address = nullptr;
  if (const hipError_t error = hipHostGetDevicePointer(&device_address, data, 0);
      error != hipSuccess) {
    (void)hipHostUnregister(data);
    return FromRuntime(error, "hipHostGetDevicePointer");
  }
  absl::MutexLock lock(&mu_);
  const auto start = reinterpret_cast<uintptr_t>(data);
  ranges_[start] = {start + bytes, reinterpret_cast<uintptr_t>(device_address)};
  return std::make_unique<Entry>(this, data);
}

void VisibleMemory::Forget(void* data) {
  {
    absl::MutexLock lock(&mu_);
    ranges_.erase(reinterpret_cast<uintptr_t>(data));
  }
  (void)hipHostUnregister(data);
}

void* VisibleMemory::Translate(const void* word) const {
  const auto address = reinterpret_cast<uintptr_t>(word);
  absl::MutexLock lock(&mu_);
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  --it;
  if (address + sizeof(uint32_t) > it->second.end) return nullptr;
  return reinterpret_cast<void*>(it->second.device_start + (address - it->first));
}

}  // namespace qrd::gpu
