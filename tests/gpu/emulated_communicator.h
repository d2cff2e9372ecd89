// SPDX-License-Identifier: Apache-2.0
// Ranks of a communicator on the emulated device, as kernels/gpu/gpu_collective.h lays their memory
// out.
//
// Thread safety: none; one test uses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "emulated_kernels.h"
#include "kernels/types.h"

namespace qrd::testing {

struct alignas(16) Line {
  std::byte bytes[16];
};
inline constexpr Line kStale = {{std::byte{0xEE}, std::byte{0xEE}, std::byte{0xEE}}};

class EmulatedCommunicator {
 public:
  EmulatedCommunicator(uint32_t world_size, uint32_t blocks)
      : world_size_(world_size), blocks_(blocks), status_(world_size) {
    for (uint32_t r = 0; r < world_size; ++r) {
      controls_.push_back(std::make_unique<gpu::Control>());
      inboxes_.emplace_back(gpu::InboxBytes(blocks, world_size, waves()) / sizeof(Line));
    }
  }

  // Runs one operation on the ranks of `present`; empty: all.
  void Run(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op, uint64_t count,
           std::span<const void* const> inputs, std::span<void* const> outputs,
           std::vector<uint32_t> present = {}) {
    const gpu::AllReduceArgs args =
        MakeArgs(codec, algorithm, dtype, op, count, inputs, outputs, std::move(present));
    const gpu::EmulatedKernels& kernels = gpu::EmulatedKernelsOf(codec, dtype);
    (algorithm == Algorithm::kOneShot ? kernels.one_shot : kernels.two_shot)(args);
  }
  // The same with residual and norm.
  void RunRmsNorm(Codec codec, Algorithm algorithm, Dtype dtype, const RmsNormParams& norm,
                  std::span<const void* const> inputs, std::vector<uint32_t> present = {}) {
    gpu::RmsNormReduceArgs args = {
        MakeArgs(codec, algorithm, dtype, ReduceOp::kSum, norm.tokens * norm.hidden, inputs, {},
                 std::move(present)),
        gpu::MakeRmsNormArgs(norm, world_size_)};
    gpu::NormRoute route =
        gpu::RouteOf(codec, algorithm, dtype, norm, world_size_, direct, wire_pool_bytes);
    if (always_keeps_wire) route = gpu::NormRoute::kWirePool;
    if (route == gpu::NormRoute::kSharded) return RunSharded(codec, dtype, args);
    if (route == gpu::NormRoute::kWirePool) return RunThroughWire(codec, dtype, args);
    gpu::PlanRows(codec, algorithm, blocks_, &args);
    const gpu::EmulatedRmsNormKernels& kernels = *gpu::EmulatedRmsNormKernelsOf(codec, dtype);
    (algorithm == Algorithm::kOneShot ? kernels.one_shot : kernels.two_shot)(args);
    if (route == gpu::NormRoute::kOneKernel) return;
    gpu::RowsArgs rows = gpu::RowsOf(args);
    rows.pass_rows = 2;
    gpu::EmulatedRowsKernelsOf(dtype)->norm(rows);
  }
  // Every rank's counters of rows are back at their start.
  bool RowCountersAreZero() const {
    for (const auto& control : controls_) {
      for (const uint32_t count : control->row_groups) {
        if (count != 0) return false;
      }
    }
    return true;
  }
  const gpu::RankStatus& status(uint32_t rank) const { return status_[rank]; }
  // What the last operation's ranks have stored in their done words.
  const std::vector<uint32_t>& done() const { return done_; }
  uint32_t aborted() const { return abort_; }
  uint64_t timeout_ns = 600'000'000'000;
  bool direct = true;  // as if all ranks were on one device
  uint64_t wire_pool_bytes = 1 << 20;
  bool always_keeps_wire = false;  // also where it would not pay
  // As if each rank was on a device of its own: its rows come from a pool of its own, in a launch
  // of its own.
  bool pool_of_each_rank = false;
  bool is_launched_apart = false;  // as if each rank of a device was in a launch of its own

 private:
  void RunThroughWire(Codec codec, Dtype dtype, gpu::RmsNormReduceArgs args) {
    args.reduce.wire_pool_count = pool_of_each_rank ? world_size_ : 1;
    args.reduce.has_all_ranks = !pool_of_each_rank && !is_launched_apart;
    std::vector<std::vector<Line>> pools(args.reduce.wire_pool_count,
                                         std::vector<Line>(wire_pool_bytes / sizeof(Line), kStale));
    for (size_t i = 0; i < pools.size(); ++i) {
      args.reduce.wire_pools[i] = reinterpret_cast<uint8_t*>(pools[i].data());
    }
    gpu::PlanSumToWire(codec, waves(), blocks_, &args.reduce);
    const gpu::EmulatedRmsNormKernels& kernels = *gpu::EmulatedRmsNormKernelsOf(codec, dtype);
    kernels.sum_to_wire(args.reduce);
    gpu::RowsArgs rows = gpu::RowsOf(args);
    for (size_t i = 0; i < pools.size(); ++i) {
      if (pool_of_each_rank) {
        rows.local_count = 1;
        rows.local[0] = static_cast<uint8_t>(i);
      }
      rows.wire = reinterpret_cast<const uint8_t*>(pools[i].data());
      const bool is_wide = rows.norm.hidden > gpu::kNarrowHidden;
      (is_wide ? kernels.wide_wire_rows : kernels.wire_rows)(rows);
    }
  }
  void RunSharded(Codec codec, Dtype dtype, gpu::RmsNormReduceArgs args) {
    const gpu::EmulatedRowsKernels& rows = *gpu::EmulatedRowsKernelsOf(dtype);
    if (codec != Codec::kNone) {
      gpu::PlanScatter(waves(), blocks_, &args);
      gpu::EmulatedRmsNormKernelsOf(codec, dtype)->scatter(args);
    }
    gpu::PlanOwnedRows(blocks_, &args);
    (codec != Codec::kNone ? rows.owned_rows : rows.owned_sums)(args);
  }
  static uint32_t waves() { return gpu::kBlockThreads / gpu::EmulatedWaveLanes(); }

  gpu::AllReduceArgs MakeArgs(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op,
                              uint64_t count, std::span<const void* const> inputs,
                              std::span<void* const> outputs, std::vector<uint32_t> present) {
    if (present.empty()) {
      for (uint32_t r = 0; r < world_size_; ++r) present.push_back(r);
    }
    gpu::AllReduceArgs args = {};
    uintptr_t addresses = 0;
    for (uint32_t r = 0; r < world_size_; ++r) {
      args.inputs[r] = inputs[r];
      args.outputs[r] = outputs.empty() ? nullptr : outputs[r];
      addresses |= reinterpret_cast<uintptr_t>(args.inputs[r]) |
                   reinterpret_cast<uintptr_t>(args.outputs[r]);
      args.controls[r] = controls_[r].get();
      args.inboxes[r] = reinterpret_cast<uint8_t*>(inboxes_[r].data());
    }
    args.status = status_.data();
    done_.assign(world_size_, 0);
    for (const uint32_t r : present) args.done[r] = &done_[r];
    args.abort = &abort_;
    args.count = count;
    args.timeout_ns = timeout_ns;
    args.world_size = world_size_;
    args.local_count = static_cast<uint32_t>(present.size());
    for (size_t i = 0; i < present.size(); ++i) args.local[i] = static_cast<uint8_t>(present[i]);
    args.average = op == ReduceOp::kAvg;
    args.aligned = addresses % 16 == 0;
    args.direct = direct;
    gpu::PlanSteps(codec, algorithm, dtype, waves(), blocks_, &args);
    return args;
  }

  uint32_t world_size_, blocks_;
  std::vector<std::unique_ptr<gpu::Control>> controls_;
  std::vector<std::vector<Line>> inboxes_;
  std::vector<gpu::RankStatus> status_;
  std::vector<uint32_t> done_;
  uint32_t abort_ = 0;
};

}  // namespace qrd::testing
