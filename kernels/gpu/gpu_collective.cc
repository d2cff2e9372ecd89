// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/gpu_collective.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/plan.h"
#include "kernels/gpu/runtime_support.h"
#include "kernels/gpu/validate.h"

namespace qrd::gpu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}
constexpr uint64_t kControlBytes = RoundUp(sizeof(Control));
// bf16 of 16 Mi elements, int8 of 31, int4 of 59; for more see LaunchOnDevice().
constexpr uint64_t kWirePoolBytesMax = uint64_t{32} << 20;

}  // namespace

GpuCollective::GpuCollective(const Options& options) : options_(options) {
  for (const int device : options_.device_of_rank) {
    if (std::ranges::find(devices_, device) == devices_.end()) devices_.push_back(device);
  }
}

absl::StatusOr<std::unique_ptr<GpuCollective>> GpuCollective::Create(const Options& options) {
  const size_t ranks = options.device_of_rank.size();
  if (ranks < 1 || ranks > kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_of_rank has ", ranks, " ranks: want 1 to ", kWorldSizeMax));
  }
  int device_count = 0;
  QRD_RETURN_IF_RUNTIME_ERROR(hipGetDeviceCount(&device_count));
  for (size_t r = 0; r < ranks; ++r) {
    const int device = options.device_of_rank[r];
    if (device < 0 || device >= device_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("device_of_rank[", r, "] = ", device, ": want 0 to ", device_count - 1));
    }
  }
  if (options.timeout_ns == 0) {
    return absl::InvalidArgumentError("timeout_ns = 0: want at least 1; every wait is bounded");
  }
  std::unique_ptr<GpuCollective> collective(new (std::nothrow) GpuCollective(options));
  if (collective == nullptr) return absl::ResourceExhaustedError("no host memory");
  if (absl::Status status = collective->Initialize(); !status.ok()) return status;
  return collective;
}

absl::Status GpuCollective::Initialize() {
  if (absl::Status status = LoadKernels(devices_); !status.ok()) return status;
  if (absl::Status status = EnablePeerAccess(); !status.ok()) return status;
  if (absl::Status status = ChooseBlocks(); !status.ok()) return status;
  if (absl::Status status = AllocatePools(); !status.ok()) return status;
  return Reset();
}

std::vector<uint32_t> GpuCollective::RanksOn(size_t device_index) const {
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < world_size(); ++r) {
    if (options_.device_of_rank[r] == devices_[device_index]) ranks.push_back(r);
  }
  return ranks;
}

uint64_t GpuCollective::BytesOfRanks(size_t device_index) const {
  return RanksOn(device_index).size() * (kControlBytes + inbox_bytes_);
}

// Every device and rank runs the same number of blocks: as many as the poorest device can hold, of
// processors and of pool.
absl::Status GpuCollective::ChooseBlocks() {
  uint64_t blocks = std::min(options_.blocks_max, kBlocksPerRankMax);
  double processors_per_rank = kBlocksPerRankMax;
  for (size_t i = 0; i < devices_.size(); ++i) {
    int processors = 0, lanes = 0;
    QRD_RETURN_IF_RUNTIME_ERROR(
        hipDeviceGetAttribute(&processors, hipDeviceAttributeMultiprocessorCount, devices_[i]));
    QRD_RETURN_IF_RUNTIME_ERROR(
        hipDeviceGetAttribute(&lanes, hipDeviceAttributeWarpSize, devices_[i]));
    const uint32_t waves = kBlockThreads / static_cast<uint32_t>(lanes);
    if (waves_ != 0 && waves != waves_) {
      return absl::UnimplementedError("devices of different wave sizes in one communicator");
    }
    waves_ = waves;
    const uint64_t local = RanksOn(i).size();
    const uint64_t fixed = local * kControlBytes;
    const uint64_t per_block = local * InboxBytes(1, world_size(), waves);
    if (options_.pool_bytes_max < fixed + per_block) {
      return absl::InvalidArgumentError(absl::StrCat("pool_bytes_max = ", options_.pool_bytes_max,
                                                     ": want at least ", fixed + per_block));
    }
    blocks = std::min(blocks, (options_.pool_bytes_max - fixed) / per_block);
    processors_per_rank =
        std::min(processors_per_rank, static_cast<double>(processors) / static_cast<double>(local));
  }
  uint32_t blocks_most = 0;
  for (const Codec codec : kAllCodecs) {
    const auto fit = static_cast<uint64_t>(processors_per_rank * BlocksPerProcessor(codec));
    uint32_t& of_codec = blocks_[static_cast<size_t>(codec)];
    of_codec = static_cast<uint32_t>(std::min(blocks, fit));
    if (of_codec == 0) {
      return absl::InvalidArgumentError("more ranks on a device than it has room for blocks");
    }
    blocks_most = std::max(blocks_most, of_codec);
  }
  inbox_bytes_ = InboxBytes(blocks_most, world_size(), waves_);
  // What the poorest device has left.
  wire_pool_bytes_ = kWirePoolBytesMax;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const uint64_t used = BytesOfRanks(i);
    const uint64_t left = options_.pool_bytes_max > used ? options_.pool_bytes_max - used : 0;
    wire_pool_bytes_ = std::min(wire_pool_bytes_, left / kPageBytes * kPageBytes);
  }
  return absl::OkStatus();
}

absl::Status GpuCollective::EnablePeerAccess() const {
  for (const int from : devices_) {
    const ScopedDevice device(from);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    for (const int to : devices_) {
      if (to == from) continue;
      int possible = 0;
      QRD_RETURN_IF_RUNTIME_ERROR(hipDeviceCanAccessPeer(&possible, from, to));
      if (possible == 0) {
        return absl::UnimplementedError(
            absl::StrCat("device ", from, " cannot reach the memory of device ", to));
      }
      const hipError_t error = hipDeviceEnablePeerAccess(to, 0);
      if (error == hipErrorPeerAccessAlreadyEnabled) {
        (void)hipGetLastError();
      } else if (error != hipSuccess) {
        return FromRuntime(error, "hipDeviceEnablePeerAccess");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GpuCollective::AllocatePools() {
  pools_.resize(devices_.size());
  for (size_t i = 0; i < devices_.size(); ++i) {
    const ScopedDevice device(devices_[i]);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    const std::vector<uint32_t> ranks = RanksOn(i);
    Pool& pool = pools_[i];
    pool.bytes = BytesOfRanks(i) + wire_pool_bytes_;
    void* memory = nullptr;
    // Uncached memory is for peers; ranks of one device share its caches.
    const hipError_t error =
        devices_.size() > 1 ? AllocateShared(&memory, pool.bytes) : hipMalloc(&memory, pool.bytes);
    if (error != hipSuccess) {
      return absl::ResourceExhaustedError(absl::StrCat("pool of ", pool.bytes, " bytes on device ",
                                                       devices_[i], ": ",
                                                       hipGetErrorString(error)));
    }
    pool.memory = static_cast<uint8_t*>(memory);
    for (size_t k = 0; k < ranks.size(); ++k) {
      controls_[ranks[k]] = reinterpret_cast<Control*>(pool.memory + k * kControlBytes);
      inboxes_[ranks[k]] = pool.memory + ranks.size() * kControlBytes + k * inbox_bytes_;
    }
    wire_pools_[i] = pool.memory + BytesOfRanks(i);
  }
  const size_t status_bytes = size_t{options_.result_slots} * world_size() * sizeof(RankStatus);
  QRD_RETURN_IF_RUNTIME_ERROR(hipHostMalloc(&host_block_, status_bytes + sizeof(RankStatus),
                                            hipHostMallocMapped | hipHostMallocPortable));
  std::memset(host_block_, 0, status_bytes + sizeof(RankStatus));
  status_ = static_cast<RankStatus*>(host_block_);
  abort_ = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(host_block_) + status_bytes);
  return absl::OkStatus();
}

GpuCollective::~GpuCollective() {
  if (abort_ != nullptr) Abort();
  for (size_t i = 0; i < pools_.size(); ++i) {
    const ScopedDevice device(devices_[i]);
    (void)hipDeviceSynchronize();
    if (pools_[i].memory != nullptr) (void)hipFree(pools_[i].memory);
  }
  if (host_block_ != nullptr) (void)hipHostFree(host_block_);
}

absl::Status GpuCollective::Validate(const LaunchParams& params) const {
  return ValidateLaunch(params, world_size());
}

AllReduceArgs GpuCollective::MakeArgs(const LaunchParams& params, uint32_t result_slot) const {
  AllReduceArgs args = {};
  uint64_t addresses = 0;
  for (uint32_t r = 0; r < params.world_size; ++r) {
    args.inputs[r] = params.inputs[r];
    args.outputs[r] = params.epilogue == Epilogue::kNone ? params.outputs[r] : nullptr;
    args.controls[r] = controls_[r];
    args.inboxes[r] = inboxes_[r];
    addresses |=
        reinterpret_cast<uintptr_t>(args.inputs[r]) | reinterpret_cast<uintptr_t>(args.outputs[r]);
  }
  std::ranges::copy(wire_pools_, args.wire_pools);
  args.wire_pool_count = static_cast<uint32_t>(devices_.size());
  args.status = status_ + size_t{result_slot} * world_size();
  args.abort = abort_;
  args.count = params.count;
  args.timeout_ns = options_.timeout_ns;
  args.world_size = params.world_size;
  args.average = params.op == ReduceOp::kAvg;
  args.aligned = addresses % 16 == 0;
  args.direct = devices_.size() == 1;
  PlanSteps(params.codec, params.algorithm, params.dtype, waves_,
            blocks_[static_cast<size_t>(params.codec)], &args);
  return args;
}

absl::Status GpuCollective::Launch(const LaunchParams& params, std::span<const hipStream_t> streams,
                                   uint32_t result_slot, std::span<uint32_t* const> done) {
  return LaunchRanks(params, ~uint32_t{0}, streams, result_slot, done);
}

absl::Status GpuCollective::LaunchRanks(const LaunchParams& params, uint32_t rank_bits,
                                        std::span<const hipStream_t> streams, uint32_t result_slot,
                                        std::span<uint32_t* const> done) {
  if (!done.empty() && (done.size() != world_size() || !CountIsLast(params))) {
    return absl::InvalidArgumentError(
        absl::StrCat("done has ", done.size(), ": want none, or ", world_size(),
                     " where counting the operation is the last thing that it does"));
  }
  if (result_slot >= options_.result_slots) {
    return absl::InvalidArgumentError(
        absl::StrCat("result_slot = ", result_slot, ": want 0 to ", options_.result_slots - 1));
  }
  if (streams.size() != devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("streams has ", streams.size(), ": want ", devices_.size(), ", one a device"));
  }
  if (absl::Status status = Validate(params); !status.ok()) return status;
  if (absl::Status status = Health(); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the communicator has failed and was not reset: ", status.ToString()));
  }
  // The slot's last operation may have left some, and not every one has a kernel.
  for (uint32_t r = 0; r < world_size(); ++r) {
    RankStatus& of_rank = status_[result_slot * world_size() + r];
    std::atomic_ref<uint64_t>(of_rank.non_finite).store(0, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(of_rank.done_stored).store(0, std::memory_order_relaxed);
  }
  if (params.count == 0) return absl::OkStatus();
  RmsNormReduceArgs args = {MakeArgs(params, result_slot), {}};
  std::ranges::copy(done, args.reduce.done);
  if (params.epilogue == Epilogue::kRmsNorm) {
    args.norm = MakeRmsNormArgs(params.rms_norm, params.world_size);
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    args.reduce.local_count = 0;
    for (const uint32_t rank : RanksOn(i)) {
      if ((rank_bits >> rank & 1) == 0) continue;
      args.reduce.local[args.reduce.local_count++] = static_cast<uint8_t>(rank);
    }
    if (args.reduce.local_count == 0) continue;
    args.reduce.has_all_ranks = args.reduce.local_count == world_size();
    const ScopedDevice device(devices_[i]);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    if (absl::Status status = LaunchOnDevice(params, &args, i, streams[i]); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

namespace {

// Cooperative: all blocks are on the device at once, or none.
hipError_t LaunchCollective(const void* kernel, const AllReduceArgs& args, void** arguments,
                            hipStream_t stream) {
  return hipLaunchCooperativeKernel(kernel, dim3(args.blocks * args.local_count),
                                    dim3(kBlockThreads), arguments, 0, stream);
}

}  // namespace

absl::Status GpuCollective::LaunchSharded(const LaunchParams& params, RmsNormReduceArgs args,
                                          hipStream_t stream) const {
  const RowsKernelTable* rows = RowsKernelsOf(params.dtype);
  void* arguments[] = {&args};
  const bool scatters = params.codec != Codec::kNone;
  if (scatters) {
    PlanScatter(waves_, blocks_[static_cast<size_t>(params.codec)], &args);
    const void* scatter = RmsNormKernelsOf(params.codec, params.dtype)->scatter;
    QRD_RETURN_IF_RUNTIME_ERROR(LaunchCollective(scatter, args.reduce, arguments, stream));
  }
  PlanOwnedRows(blocks_[static_cast<size_t>(Codec::kNone)], &args);
  return FromRuntime(LaunchCollective(scatters ? rows->owned_rows : rows->owned_sums, args.reduce,
                                      arguments, stream),
                     "hipLaunchCooperativeKernel");
}

NormRoute GpuCollective::RouteOf(const LaunchParams& params) const {
  return gpu::RouteOf(params.codec, params.algorithm, params.dtype, params.rms_norm,
                      params.world_size, devices_.size() == 1, wire_pool_bytes_);
}

absl::Status GpuCollective::LaunchThroughWire(const LaunchParams& params, RmsNormReduceArgs args,
                                              size_t device_index, hipStream_t stream) const {
  PlanSumToWire(params.codec, waves_, blocks_[static_cast<size_t>(params.codec)], &args.reduce);
  const void* sum_to_wire = RmsNormKernelsOf(params.codec, params.dtype)->sum_to_wire;
  void* arguments[] = {&args.reduce};
  QRD_RETURN_IF_RUNTIME_ERROR(LaunchCollective(sum_to_wire, args.reduce, arguments, stream));
  return LaunchWireRows(params.codec, params.dtype, args, wire_pools_[device_index], stream);
}

absl::Status GpuCollective::LaunchOnDevice(const LaunchParams& params, RmsNormReduceArgs* args,
                                           size_t device_index, hipStream_t stream) const {
  const bool has_norm = params.epilogue == Epilogue::kRmsNorm;
  if (params.world_size == 1) {
    if (has_norm)
      return LaunchAddRmsNorm(params.dtype, params.rms_norm, {params.inputs, 1}, stream);
    if (params.inputs[0] == params.outputs[0]) return absl::OkStatus();
    return FromRuntime(
        hipMemcpyAsync(params.outputs[0], params.inputs[0], params.count * DtypeBytes(params.dtype),
                       hipMemcpyDeviceToDevice, stream),
        "hipMemcpyAsync");
  }
  const bool one_shot = params.algorithm == Algorithm::kOneShot;
  if (!has_norm) {
    const KernelTable* kernels = KernelsOf(params.codec, params.dtype);
    void* arguments[] = {&args->reduce};
    return FromRuntime(LaunchCollective(one_shot ? kernels->one_shot : kernels->two_shot,
                                        args->reduce, arguments, stream),
                       "hipLaunchCooperativeKernel");
  }
  const NormRoute route = RouteOf(params);
  if (route == NormRoute::kSharded) return LaunchSharded(params, *args, stream);
  if (route == NormRoute::kWirePool) return LaunchThroughWire(params, *args, device_index, stream);
  PlanRows(params.codec, params.algorithm, blocks_[static_cast<size_t>(params.codec)], args);
  const RmsNormKernelTable* kernels = RmsNormKernelsOf(params.codec, params.dtype);
  void* arguments[] = {args};
  QRD_RETURN_IF_RUNTIME_ERROR(LaunchCollective(one_shot ? kernels->one_shot : kernels->two_shot,
                                               args->reduce, arguments, stream));
  return route == NormRoute::kOneKernel ? absl::OkStatus()
                                        : LaunchNorm(params.dtype, *args, stream);
}

absl::Status GpuCollective::Health() const {
  for (uint32_t i = 0; i < options_.result_slots * world_size(); ++i) {
    const RankStatus& status = status_[i];
    if (ReadShared(status.timed_out) == 0) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", i % world_size(), " waited ", options_.timeout_ns, " ns for rank ",
                     ReadShared(status.missing), " (block ", ReadShared(status.block), ", round ",
                     ReadShared(status.epoch), ")"));
  }
  if (ReadShared(*abort_) != 0) return absl::AbortedError("the communicator was aborted");
  return absl::OkStatus();
}

void GpuCollective::Abort() {
  std::atomic_ref<uint32_t>(*abort_).store(1, std::memory_order_release);
}

absl::Status GpuCollective::Reset() {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const ScopedDevice device(devices_[i]);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    QRD_RETURN_IF_RUNTIME_ERROR(hipDeviceSynchronize());
    QRD_RETURN_IF_RUNTIME_ERROR(hipMemset(pools_[i].memory, 0, RanksOn(i).size() * kControlBytes));
    QRD_RETURN_IF_RUNTIME_ERROR(hipDeviceSynchronize());
  }
  std::memset(host_block_, 0, (options_.result_slots * world_size() + 1) * sizeof(RankStatus));
  return absl::OkStatus();
}

uint64_t GpuCollective::finished_operations(uint32_t rank, uint32_t result_slot) const {
  if (rank >= world_size() || result_slot >= options_.result_slots) return 0;
  return ReadShared(status_[result_slot * world_size() + rank].operations);
}

bool GpuCollective::IsCounted(const LaunchParams& params) {
  return params.world_size > 1 && params.count != 0 && params.algorithm != Algorithm::kLibrary;
}

bool GpuCollective::CountIsLast(const LaunchParams& params) const {
#if !defined(QRD_GPU_CUDA)
  // Not run on AMD: there the streams tell.
  return false;
#endif
  if (!IsCounted(params)) return false;
  if (params.epilogue == Epilogue::kNone) return true;
  const NormRoute route = RouteOf(params);
  return route == NormRoute::kSharded || route == NormRoute::kOneKernel;
}

uint32_t GpuCollective::KernelCount(const LaunchParams& params) const {
  if (params.count == 0) return 0;
  if (params.epilogue == Epilogue::kNone || params.world_size == 1) return 1;
  const NormRoute route = RouteOf(params);
  if (route == NormRoute::kSharded) return params.codec == Codec::kNone ? 1 : 2;
  return route == NormRoute::kOneKernel ? 1 : 2;
}

bool GpuCollective::HasFinished(uint32_t result_slot, uint32_t count) const {
  for (uint32_t r = 0; r < world_size(); ++r) {
    uint32_t& finished = status_[result_slot * world_size() + r].finished;
    if (std::atomic_ref<uint32_t>(finished).load(std::memory_order_acquire) != count) return false;
  }
  return true;
}

bool GpuCollective::HasStoredDone(uint32_t rank, uint32_t result_slot) const {
  return ReadShared(status_[result_slot * world_size() + rank].done_stored) != 0;
}

uint64_t GpuCollective::non_finite(uint32_t result_slot) const {
  if (result_slot >= options_.result_slots) return 0;
  uint64_t sum = 0;
  for (uint32_t r = 0; r < world_size(); ++r) {
    sum += ReadShared(status_[result_slot * world_size() + r].non_finite);
  }
  return sum;
}

}  // namespace qrd::gpu
