// SPDX-License-Identifier: Apache-2.0
// The GPU backend: arenas are exported device memory, a group's operations are kernels on the
// daemon's streams. AUTO is PlanAuto of the ranks' links; groups know them (DeviceGroup::link).
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "kernels/auto_plan.h"
#include "kernels/backend.h"
#include "kernels/gpu/collective_library.h"
#include "kernels/gpu/device_group.h"
#include "kernels/gpu/device_memory.h"
#include "kernels/gpu/devices.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/gpu/runtime_support.h"
#include "kernels/gpu/validate.h"

namespace qrd {
namespace gpu {
namespace {

// Lines of instances.def that were built for GPUs.
std::vector<KernelInstance> BuiltInstances() {
  std::vector<KernelInstance> built;
  for (const KernelInstance& instance : AllInstances()) {
    if (KernelsOf(instance.codec, instance.dtype) == nullptr) continue;
    built.push_back(instance);
    if (RmsNormKernelsOf(instance.codec, instance.dtype) == nullptr) {
      built.back().epilogue = Epilogue::kNone;
    }
  }
  return built;
}

class GpuBackend : public Backend {
 public:
  GpuBackend(Devices devices, std::string target,
             absl::StatusOr<std::unique_ptr<CollectiveLibrary>> library)
      : devices_(std::move(devices)),
        target_(std::move(target)),
        instances_(BuiltInstances()),
        library_(std::move(library)) {}

  std::string_view name() const override { return "gpu"; }
  std::string target() const override { return target_; }
  std::vector<DeviceInfo> devices() const override {
    std::vector<DeviceInfo> infos;
    for (const Device& device : devices_.all()) infos.push_back(device.info);
    return infos;
  }
  std::span<const KernelInstance> instances() const override { return instances_; }
  absl::Status Validate(const LaunchParams& params) const override {
    return ValidateLaunch(params, params.world_size);
  }

  // Without a group's links: as if all ranks were on one device.
  Codec AutoCodec(Dtype dtype, uint64_t payload_bytes, uint32_t world_size) const override {
    AutoFacts facts;
    facts.dtype = dtype;
    facts.payload_bytes = payload_bytes;
    facts.world_size = world_size;
    return PlanAuto(facts).codec;
  }
  Algorithm AutoAlgorithm(Codec codec, Dtype dtype, uint64_t payload_bytes,
                          uint32_t world_size) const override {
    AutoFacts facts;
    facts.dtype = dtype;
    facts.payload_bytes = payload_bytes;
    facts.world_size = world_size;
    facts.codec = codec;
    return PlanAuto(facts).algorithm;
  }

  absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t) override {
    return absl::UnimplementedError("the gpu backend has no host memory");
  }
  uint64_t Run(const LaunchParams&, TileRange) override { return 0; }

  bool enqueued() const override { return true; }
  absl::StatusOr<std::string> FindDevice(std::string_view device) const override {
    const absl::StatusOr<const Device*> found = devices_.Get(device);
    if (!found.ok()) return found.status();
    return (*found)->uuid;
  }
  absl::StatusOr<std::unique_ptr<DeviceGroup>> PlaceGroup(
      std::string_view communicator, std::span<const std::string> device_of_rank) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateDeviceArena(std::string_view device,
                                                             uint64_t bytes) override {
    const absl::StatusOr<const Device*> found = devices_.Get(device);
    if (!found.ok()) return found.status();
    return gpu::AllocateDeviceArena(**found, bytes);
  }
  absl::StatusOr<std::unique_ptr<Arena>> ImportArena(std::string_view device,
                                                     std::string_view ipc_handle,
                                                     uint64_t offset_bytes,
                                                     uint64_t bytes) override {
    const absl::StatusOr<const Device*> found = devices_.Get(device);
    if (!found.ok()) return found.status();
    return ImportDeviceArena(**found, ipc_handle, offset_bytes, bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> MakeDeviceVisible(void* data,
                                                                         uint64_t bytes) override {
    return visible_.Register(data, bytes);
  }
  absl::StatusOr<std::string> collective_library() const override {
    if (!library_.ok()) return library_.status();
    return (*library_)->version();
  }
  absl::Status RunCodec(std::string_view device, const CodecParams& params) override;

 private:
  const Devices devices_;
  const std::string target_;
  const std::vector<KernelInstance> instances_;
  VisibleMemory visible_;
  const absl::StatusOr<std::unique_ptr<CollectiveLibrary>> library_;  // outlives the pools

  absl::Mutex mu_;
  // By communicator and devices. A pool lives as long as its groups.
  std::map<std::string, std::weak_ptr<DevicePool>> pools_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<DeviceGroup>> GpuBackend::PlaceGroup(
    std::string_view communicator, std::span<const std::string> device_of_rank) {
  std::vector<int> ordinals;
  for (const std::string& name : device_of_rank) {
    const absl::StatusOr<const Device*> device = devices_.Get(name);
    if (!device.ok()) return device.status();
    ordinals.push_back((*device)->ordinal);
  }
  const std::string key =
      absl::StrCat(std::string(communicator), " ", absl::StrJoin(ordinals, ","));
  absl::MutexLock lock(&mu_);
  std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<DevicePool> pool = pools_[key].lock();
  if (pool == nullptr) {
    absl::StatusOr<std::shared_ptr<DevicePool>> made = DevicePool::Create(
        std::move(ordinals), &visible_, library_.ok() ? library_->get() : nullptr);
    if (!made.ok()) return made.status();
    pool = *std::move(made);
    pools_[key] = pool;
  }
  return std::make_unique<PooledGroup>(std::move(pool));
}

absl::Status GpuBackend::RunCodec(std::string_view device, const CodecParams& p) {
  const absl::StatusOr<const Device*> found = devices_.Get(device);
  if (!found.ok()) return found.status();
  if (KernelsOf(p.codec, p.dtype) == nullptr) {
    return absl::UnimplementedError(absl::StrCat("codec = ", std::string(Name(p.codec)), " of ",
                                                 std::string(Name(p.dtype)),
                                                 ": not built into this gpu backend"));
  }
  const ScopedDevice scope((*found)->ordinal);
  QRD_RETURN_IF_RUNTIME_ERROR(scope.error());
  absl::Status status =
      p.encode ? LaunchEncode(p.codec, p.dtype, p.from_fp32, p.from, p.count,
                              static_cast<std::byte*>(p.to), nullptr)
               : LaunchDecode(p.codec, p.dtype, true, static_cast<const std::byte*>(p.from),
                              p.count, p.to, nullptr);
  if (!status.ok()) return status;
  QRD_RETURN_IF_RUNTIME_ERROR(hipStreamSynchronize(nullptr));
  return absl::OkStatus();
}

}  // namespace
}  // namespace gpu

absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(std::string_view collective_library) {
  absl::StatusOr<gpu::Devices> devices = gpu::Devices::Find();
  if (!devices.ok()) return devices.status();
  absl::StatusOr<std::string> target = gpu::DeviceTarget(devices->all().front().ordinal);
  if (!target.ok()) return target.status();
  std::vector<int> ordinals;
  for (const gpu::Device& device : devices->all()) ordinals.push_back(device.ordinal);
  // Before the first operation: loading one later could wait for a stream that waits for it.
  if (absl::Status status = gpu::LoadKernels(ordinals); !status.ok()) return status;
  return std::make_unique<gpu::GpuBackend>(*std::move(devices), *std::move(target),
                                           gpu::CollectiveLibrary::Load(collective_library));
}

}  // namespace qrd
