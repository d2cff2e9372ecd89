// SPDX-License-Identifier: Apache-2.0
// The machines of the model: every number with its origin.
#include <array>

#include "client/tools/qrbench/model.h"

namespace qrd::tools {
namespace {

// The 28 figures are marked in model_published.cc. All nine parameters were fitted together, least
// squares of the logarithm; tests/tools/model_test.cc checks that they are that minimum.
constexpr std::string_view kFittedMi300x =
    "fitted: 28 figures of mk1-project/quickreduce, MI300X (64 MiB at 2, 4, 8 ranks; 32 KiB and 1 "
    "MiB at 2 and 8; FP16, Q8, Q4, RCCL)";
constexpr std::string_view kAsMi300x = "that of mi300x, not fitted here";
constexpr std::string_view kDerivedLanes =
    "derived: 64 lanes a CU and clock (data sheet) over 33e12 lane operations/s of an H200";
constexpr std::string_view kNominalMemory = "nominal: 0.8 of the data sheet's peak; never decides";
constexpr std::string_view kOneShotH200 =
    "measured on one H200: mean over 2 and 8 ranks, none and int4, 4 KiB";
constexpr std::string_view kNone = "none on this machine";

constexpr KernelCost kMi300xNone = {
    {5.28, kFittedMi300x}, {1.14, kFittedMi300x}, {0.0423, kFittedMi300x}};
constexpr KernelCost kMi300xCodec = {
    {16.94, kFittedMi300x}, {1.14, kFittedMi300x}, {0.2025, kFittedMi300x}};
constexpr KernelCost kMi300xLibrary = {
    {16.8, kFittedMi300x}, {0, "held at 0"}, {0.0294, kFittedMi300x}};
constexpr double kMi300xEfficiency = 0.976, kMi300xCodecUs = 0.668;

constexpr ModelMachine Mi300x() {
  ModelMachine m;
  m.name = "mi300x";
  m.description = "8 AMD MI300X, xGMI mesh, one link a pair; fp16";
  m.link_gbps = {48, "AMD: 64 GB/s a link and direction, 48 after protocol (ROCm/rccl#1210)"};
  m.link_efficiency = {kMi300xEfficiency, kFittedMi300x};
  m.memory_gbps = {4240, kNominalMemory};
  m.codec_us_per_mib = {kMi300xCodecUs, kFittedMi300x};
  m.one_shot_fixed = {0.73, kOneShotH200};
  m.arithmetic_scale = {1.24, kDerivedLanes};
  m.none = kMi300xNone;
  m.codec = kMi300xCodec;
  m.library = kMi300xLibrary;
  m.has_library = true;
  return m;
}

constexpr KernelCost AsMi300x(const KernelCost& cost) {
  return {{cost.fixed_us.value, kAsMi300x},
          {cost.per_rank_us.value, kAsMi300x},
          {cost.serial.value, kAsMi300x}};
}

// Nothing is fitted here: MI300X's kernels on faster links, and RCCL as others measured it.
constexpr ModelMachine Mi355x() {
  ModelMachine m = Mi300x();
  m.name = "mi355x";
  m.description = "8 AMD MI355X, xGMI mesh, one link a pair; fp16";
  m.link_gbps = {76.8, "153.6 GB/s a link, both directions; ceiling used by vllm#39080"};
  m.link_efficiency = {kMi300xEfficiency, kAsMi300x};
  m.memory_gbps = {6400, kNominalMemory};
  m.codec_us_per_mib = {kMi300xCodecUs, kAsMi300x};
  m.arithmetic_scale = {1.19, kDerivedLanes};
  m.none = AsMi300x(kMi300xNone);
  m.codec = AsMi300x(kMi300xCodec);
  m.library = AsMi300x(kMi300xLibrary);
  m.library_origin =
      "measured by others: RCCL of ROCm 7.0.1, 64 MiB fp32 (ROCm/rocm-systems#9040); ROCm/"
      "rocm-systems#9049 has 55.6, 155.8, 377";
  m.library_bytes = uint64_t{64} << 20;
  m.library_figures = {{{2, 52.3}, {4, 146.7}, {8, 361.0}}};
  return m;
}

constexpr std::string_view kFittedH200 =
    "fitted: 4 KiB at 2 and 8 ranks, none and int4 (kernels/gpu/README.md)";

constexpr ModelMachine H200() {
  ModelMachine m;
  m.name = "h200";
  m.description = "all ranks on one NVIDIA H200; bf16";
  m.topology = Topology::kOneDevice;
  m.ranks_max = kWorldSizeMax;
  m.link_gbps = m.link_efficiency = {0, kNone};
  m.memory_gbps = {3970, "measured: copy of 256 MiB 4220 GB/s, of which codec kernels reach 94 %"};
  m.codec_us_per_mib = {0, "0: the memory term has it"};
  m.one_shot_fixed = {0.73, kOneShotH200};
  m.arithmetic_scale = {1, "1: the rates are an H200's"};
  m.none = {{6.0, kFittedH200}, {0.6, kFittedH200}, {0, kNone}};
  m.codec = {{11.6, kFittedH200}, {0.6, kFittedH200}, {0, kNone}};
  m.library = {{0, kNone}, {0, kNone}, {0, kNone}};
  return m;
}

constexpr std::string_view kToBeGiven = "to be given: we measured nothing between H200s";

constexpr ModelMachine H200Nvlink() {
  ModelMachine m = H200();
  m.name = "h200-nvlink";
  m.description = "8 NVIDIA H200 on NVSwitch: a placeholder, link and latency must be given; bf16";
  m.topology = Topology::kSwitch;
  m.ranks_max = 8;
  m.link_gbps = {0, kToBeGiven};
  m.link_efficiency = {1, "1: give the bandwidth that kernels reach"};
  m.codec_us_per_mib = {0, "0: not known"};
  m.none.fixed_us = m.codec.fixed_us = {kNotKnown, kToBeGiven};
  m.none.per_rank_us = m.codec.per_rank_us = {0, "0: not known"};
  return m;
}

constexpr std::array kMachines = {Mi300x(), Mi355x(), H200(), H200Nvlink()};

}  // namespace

std::span<const ModelMachine> ModelMachines() { return kMachines; }

}  // namespace qrd::tools
