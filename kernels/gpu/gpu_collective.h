// SPDX-License-Identifier: Apache-2.0
// A communicator of ranks on GPUs of this node: owns what the ranks share (flags, inboxes, status)
// and puts collectives on streams. Any number of ranks on one device, or ranks on several devices
// that reach each other. kernels/backend.h's GPU backend wraps it.
//
// Allocates only in Create(). Launch() neither allocates nor waits, and can be captured in a graph;
// a graph may be replayed any number of times, between other launches, in one order on all devices.
//
// Order: operations of one communicator follow each other in one order on all its devices; the
// caller sees to it (one stream a device, or events). Two communicators may run at the same time.
//
// Thread safety: Launch(), Reset() from one thread at a time; status functions from any thread.
// Ownership: owns its memory; tensors belong to the caller.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/epilogue.h"
#include "kernels/gpu/gpu_runtime.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/plan.h"
#include "kernels/types.h"

namespace qrd::gpu {

class GpuCollective {
 public:
  struct Options {
    std::vector<int> device_of_rank;                // runtime ordinals in this process, one a rank
    uint64_t pool_bytes_max = uint64_t{128} << 20;  // of each device
    uint64_t timeout_ns = 10'000'000'000;           // of one wait for another rank
    uint32_t blocks_max = kBlocksPerRankMax;        // of each rank
    uint32_t result_slots = 1;                      // operations whose counts can be told apart
  };
  static absl::StatusOr<std::unique_ptr<GpuCollective>> Create(const Options& options);
  ~GpuCollective();
  GpuCollective(const GpuCollective&) = delete;
  GpuCollective& operator=(const GpuCollective&) = delete;

  // OK, or INVALID_ARGUMENT / UNIMPLEMENTED naming field, value and bound.
  absl::Status Validate(const LaunchParams& params) const;

  // Puts the operation on streams[i] for devices()[i]. Tensors are reachable from every device.
  // FAILED_PRECONDITION after a timeout or an abort, until Reset(). Counts go to `result_slot`.
  // `done`: empty, or a word of each rank (or null), as the device sees it, in which the kernel
  // stores 1 before it counts the operation; only where CountIsLast(). One that gives up does not.
  absl::Status Launch(const LaunchParams& params, std::span<const hipStream_t> streams,
                      uint32_t result_slot = 0, std::span<uint32_t* const> done = {});
  // Only the ranks whose bit is set; somebody launches the others. The parts of one operation must
  // be able to run at the same time.
  absl::Status LaunchRanks(const LaunchParams& params, uint32_t rank_bits,
                           std::span<const hipStream_t> streams, uint32_t result_slot = 0,
                           std::span<uint32_t* const> done = {});

  // OK; DEADLINE_EXCEEDED naming who waited for whom; ABORTED. Looks at host memory only: results
  // of an operation that failed are not defined.
  absl::Status Health() const;
  // Ends every wait of running operations of this communicator.
  void Abort();
  // Back to work after a failure. No operation runs any more.
  absl::Status Reset();

  // Operations that rank had finished since Create() or Reset() when the slot's last one ended, and
  // NaN or Inf elements of its result, once its stream has passed it. (Of world size 1: not
  // counted.)
  uint64_t finished_operations(uint32_t rank, uint32_t result_slot = 0) const;
  // Whether the operation is counted, and whether that is the last thing that it does: then results
  // are complete, and visible to every process, once HasFinished() says so, which is before its
  // stream has passed it. Never on AMD, where it has not been run.
  static bool IsCounted(const LaunchParams& params);
  bool CountIsLast(const LaunchParams& params) const;
  // Kernels of a validated operation on each device.
  uint32_t KernelCount(const LaunchParams& params) const;
  // The slot's last operation was number `count` (its low bits) of every rank.
  bool HasFinished(uint32_t result_slot, uint32_t count) const;
  // The rank's kernel has stored its `done`. Final once the stream has passed the operation.
  bool HasStoredDone(uint32_t rank, uint32_t result_slot) const;
  uint64_t non_finite(uint32_t result_slot = 0) const;

  const std::vector<int>& devices() const { return devices_; }
  uint32_t world_size() const { return static_cast<uint32_t>(options_.device_of_rank.size()); }
  uint64_t pool_bytes(size_t device_index) const { return pools_[device_index].bytes; }
  // Of them on every device: room for sums that a norm follows (kernels/gpu/kernel_args.h).
  uint64_t wire_pool_bytes() const { return wire_pool_bytes_; }

 private:
  struct Pool {
    uint8_t* memory = nullptr;
    uint64_t bytes = 0;
  };
  explicit GpuCollective(const Options& options);

  absl::Status Initialize();
  absl::Status ChooseBlocks();
  absl::Status EnablePeerAccess() const;
  absl::Status AllocatePools();
  AllReduceArgs MakeArgs(const LaunchParams& params, uint32_t result_slot) const;
  absl::Status LaunchOnDevice(const LaunchParams& params, RmsNormReduceArgs* args,
                              size_t device_index, hipStream_t stream) const;
  NormRoute RouteOf(const LaunchParams& params) const;
  absl::Status LaunchThroughWire(const LaunchParams& params, RmsNormReduceArgs args,
                                 size_t device_index, hipStream_t stream) const;
  absl::Status LaunchSharded(const LaunchParams& params, RmsNormReduceArgs args,
                             hipStream_t stream) const;
  std::vector<uint32_t> RanksOn(size_t device_index) const;
  uint64_t BytesOfRanks(size_t device_index) const;  // controls and inboxes

  Options options_;
  std::vector<int> devices_;  // without repetition
  std::vector<Pool> pools_;   // one a device
  Control* controls_[kWorldSizeMax] = {};
  uint8_t* inboxes_[kWorldSizeMax] = {};
  uint8_t* wire_pools_[kWorldSizeMax] = {};  // of each device
  void* host_block_ = nullptr;  // RankStatus of all slots and ranks, then the abort word
  RankStatus* status_ = nullptr;
  uint32_t* abort_ = nullptr;
  std::array<uint32_t, kCodecCount> blocks_ = {};  // of a rank, by codec
  uint64_t inbox_bytes_ = 0;                       // of a rank
  uint64_t wire_pool_bytes_ = 0;                   // of a device
  uint32_t waves_ = 0;
};

// What the device behind an ordinal is called: "sm_90", "gfx942".
absl::StatusOr<std::string> DeviceTarget(int device);

// Loads every kernel on every device of `devices` (a load in mid-operation could wait for the
// device) and checks that the collectives' grids fit.
absl::Status LoadKernels(std::span<const int> devices);

// Encode and decode on the device: pointers to device memory. As in kernels/codec.h.
absl::Status LaunchEncode(Codec codec, Dtype dtype, bool from_fp32, const void* x, uint64_t count,
                          std::byte* wire, hipStream_t stream);
// To the dtype (rounded) or to fp32.
absl::Status LaunchDecode(Codec codec, Dtype dtype, bool to_fp32, const std::byte* wire,
                          uint64_t count, void* y, hipStream_t stream);

// The steps of Epilogue::kRmsNorm after the sum as operations of their own, for ranks on the
// current device; one launch for all of them. `params` is as in a validated operation, of
// reduced.size() or `ranks` ranks; only what the step needs is looked at. The same bytes as the
// fused operation. Residual and norm of reduced[r]; with quant FP8 too, and then `mirror` in place
// of `out`.
absl::Status LaunchAddRmsNorm(Dtype dtype, const RmsNormParams& params,
                              std::span<const void* const> reduced, hipStream_t stream);
// The ranks of a launch whose residual_out has the sum with the residual: what follows it.
absl::Status LaunchNorm(Dtype dtype, const RmsNormReduceArgs& args, hipStream_t stream);
// The ranks of a launch whose sums are in `wire`, as in a wire pool: residual, norm, quantization.
absl::Status LaunchWireRows(Codec codec, Dtype dtype, const RmsNormReduceArgs& args,
                            const uint8_t* wire, hipStream_t stream);
// out8 and scales of `mirror`.
absl::Status LaunchQuantizeFp8(Dtype dtype, const RmsNormParams& params, uint32_t ranks,
                               hipStream_t stream);

}  // namespace qrd::gpu
