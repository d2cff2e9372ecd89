// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm and FP8 against the scalar reference and the golden files: every codec,
// dtype, kind of norm and of output, at shapes whose rows do not fit tiles and waves.
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "conformance.h"
#include "golden_epilogue.h"
#include "reduce_case.h"
#include "rms_norm_case.h"

namespace qrd::testing {
namespace {

using Tensors = RmsNormTensors<DeviceBuffer>;
using Communicators = std::map<uint32_t, std::unique_ptr<gpu::GpuCollective>>;

gpu::GpuCollective& Of(Communicators& communicators, uint32_t world_size, Report* report) {
  auto& communicator = communicators[world_size];
  if (communicator == nullptr) communicator = MakeCommunicator(world_size, report);
  return *communicator;
}

Tensors::Check CheckOf(Report* report) {
  return [report](bool passed, const std::string& what) { report->Check(passed, what); };
}

// Two norms times: 16 bits, both FP8 formats with and without mirror, scale groups, other divisors.
std::vector<RmsNormOptions> AllKinds() {
  std::vector<RmsNormOptions> kinds;
  for (const bool gemma : {false, true}) {
    const RmsNormOptions some[] = {
        {},
        {.weight_is_fp32 = true},
        {.quant = Quant::kE4m3fn},
        {.weight_is_fp32 = true, .quant = Quant::kE4m3fn, .mirror = true},
        {.quant = Quant::kE4m3fnuz, .mirror = true},
        {.quant = Quant::kE4m3fnuz, .divisor = 224},
        {.quant = Quant::kE4m3fn, .scale_group = 128},
        {.quant = Quant::kE4m3fnuz, .scale_group = 128, .mirror = true},
    };
    for (RmsNormOptions options : some) {
      options.gemma = gemma;
      kinds.push_back(options);
    }
  }
  return kinds;
}

void Launch(gpu::GpuCollective& communicator, const LaunchParams& params, const std::string& what,
            Report* report) {
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  report->Check(communicator.Launch(params, streams), what);
  stream.Wait();
  report->Check(communicator.Health(), what);
}

// all_reduce, residual and norm, and FP8, each a kernel: the same bytes as in one.
void LaunchSteps(gpu::GpuCollective& communicator, const Tensors& tensors, RmsNormOptions options,
                 Report* report) {
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  options.mirror = options.quant != Quant::kNone;
  const LaunchParams fused = tensors.Params(options);
  LaunchParams reduce = fused;
  reduce.epilogue = Epilogue::kNone;
  std::vector<const void*> reduced;
  for (uint32_t r = 0; r < fused.world_size; ++r) {
    reduce.outputs[r] = tensors.Normed(options, r).data();
    reduced.push_back(reduce.outputs[r]);
  }
  report->Check(communicator.Launch(reduce, streams), "all_reduce");
  RmsNormParams norm = fused.rms_norm;
  norm.quant = Quant::kNone;
  for (uint32_t r = 0; r < fused.world_size; ++r) norm.out[r] = tensors.Normed(options, r).data();
  report->Check(gpu::LaunchAddRmsNorm(fused.dtype, norm, reduced, stream.get()), "add_rms_norm");
  if (options.quant != Quant::kNone) {
    report->Check(
        gpu::LaunchQuantizeFp8(fused.dtype, fused.rms_norm, fused.world_size, stream.get()),
        "quantize_fp8");
  }
  stream.Wait();
}

struct Work {
  RmsNormShape shape;
  std::vector<RmsNormOptions> kinds;
  bool also_steps = false;
};

void RunWork(const Work& work, Communicators& communicators, Report* report) {
  const RmsNormData data(work.shape);
  const std::lock_guard<std::mutex> lock(DeviceMutex());
  gpu::GpuCollective& communicator = Of(communicators, work.shape.world_size, report);
  const Tensors tensors(work.shape);
  tensors.Upload(data, {});
  for (const RmsNormOptions& options : work.kinds) {
    tensors.Prepare(data, options);
    Launch(communicator, tensors.Params(options), work.shape.Describe() + options.Describe(),
           report);
    tensors.CheckResults(data, options, "fused", CheckOf(report));
    if (!work.also_steps) continue;
    tensors.Prepare(data, options);
    RmsNormOptions mirrored = options;
    mirrored.mirror = options.quant != Quant::kNone;
    LaunchSteps(communicator, tensors, options, report);
    tensors.CheckResults(data, mirrored, "steps apart", CheckOf(report));
  }
}

void RunAll(const std::vector<Work>& works, Report* report) {
  Communicators communicators;
  std::vector<std::function<void()>> runs;
  for (const Work& work : works) {
    runs.push_back([&, work] { RunWork(work, communicators, report); });
  }
  RunInParallel(runs);
}

// `count` of all kinds, others for every seed.
std::vector<RmsNormOptions> SomeKinds(uint32_t seed, uint32_t count) {
  static const std::vector<RmsNormOptions> all = AllKinds();
  std::vector<RmsNormOptions> kinds;
  for (uint32_t i = 0; i < count; ++i) kinds.push_back(all[(seed * count + i) % all.size()]);
  return kinds;
}

}  // namespace

void CheckRmsNormKinds(bool quick, Report* report) {
  std::vector<Work> works;
  uint32_t seed = 0;
  for (const Codec codec : kAllCodecs) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
        for (const uint32_t world_size : {2u, 4u, 8u}) {
          RmsNormShape shape{codec, algorithm, dtype, world_size, 12, quick ? 1048u : 6144u,
                             ++seed};
          shape.residuals_differ = seed % 3 == 0;
          shape.special_rows = true;
          shape.has_residual = seed % 7 != 0;
          works.push_back({shape, quick ? SomeKinds(seed, 1) : AllKinds(), false});
        }
      }
    }
  }
  RunAll(works, report);
}

void CheckRmsNormShapes(Report* report) {
  using Shape = std::pair<uint64_t, uint32_t>;
  constexpr Codec kCodecs[] = {Codec::kNone, Codec::kInt4, Codec::kLp3, Codec::kInt3};
  std::vector<Work> works;
  uint32_t seed = 500;
  const auto add = [&](const Shape& at, Codec codec, Algorithm algorithm, Dtype dtype,
                       uint32_t world_size, uint32_t kinds) {
    RmsNormShape shape{codec, algorithm, dtype, world_size, at.first, at.second, ++seed};
    shape.special_rows = seed % 2 != 0;
    works.push_back({shape, SomeKinds(seed, kinds), seed % 3 == 0});
  };
  // The large ones first: nobody waits for them at the end.
  for (const Shape& at : {Shape{2517, 6144}, Shape{2048, 8192}, Shape{20'011, 2048}}) {
    for (const Codec codec : kCodecs) {
      for (const uint32_t world_size : {2u, 4u, 8u}) {
        if (at.first > 20'000 && world_size != 2) continue;
        add(at, codec, Algorithm::kTwoShot, seed % 2 == 0 ? Dtype::kFp16 : Dtype::kBf16, world_size,
            2);
      }
    }
  }
  for (const Shape& at :
       {Shape{511, 6144}, Shape{512, 6144}, Shape{513, 6144}, Shape{513, 6176}, Shape{513, 6160}}) {
    for (const Codec codec : kCodecs) {
      for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
        for (const uint32_t world_size : {2u, 4u, 8u}) {
          add(at, codec,
              world_size == 2 && seed % 2 == 0 ? Algorithm::kOneShot : Algorithm::kTwoShot, dtype,
              world_size, 3);
        }
      }
    }
  }
  for (const Shape& at :
       {Shape{1, 8}, Shape{1, 2880}, Shape{2, 2880}, Shape{7, 2880}, Shape{3, 16384},
        Shape{9, 8200}, Shape{300, 8}, Shape{65, 72}, Shape{40, 7168}}) {
    for (const Codec codec : kCodecs) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        for (const uint32_t world_size : {1u, 2u, 3u, 8u, 16u}) {
          add(at, codec, algorithm, seed % 2 == 0 ? Dtype::kFp16 : Dtype::kBf16, world_size, 4);
        }
      }
    }
  }
  RunAll(works, report);
}

// A sharded residual: all codecs and kinds, and shapes where owners meet inside of tiles.
void CheckShardedRmsNorm(bool quick, Report* report) {
  std::vector<Work> works;
  uint32_t seed = 2000;
  const auto add = [&](uint64_t tokens, uint32_t hidden, Codec codec, uint32_t world_size,
                       uint32_t kinds) {
    RmsNormShape shape{codec,
                       Algorithm::kTwoShot,
                       ++seed % 2 == 0 ? Dtype::kFp16 : Dtype::kBf16,
                       world_size,
                       tokens,
                       hidden,
                       seed};
    shape.sharded = true;
    shape.residuals_differ = true;
    shape.special_rows = tokens < 1000;
    shape.has_residual = seed % 7 != 0;
    works.push_back({shape, SomeKinds(seed, kinds), false});
  };
  if (!quick) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3, Codec::kInt3}) {
      for (const uint32_t world_size : {2u, 4u, 8u}) {
        add(2517, 6144, codec, world_size, 2);
        add(2048, 8192, codec, world_size, 1);
        for (const uint64_t tokens : {511, 512, 513}) add(tokens, 6144, codec, world_size, 2);
        add(513, 6176, codec, world_size, 2);
        add(513, 6160, codec, world_size, 2);
      }
    }
  }
  for (const Codec codec : kAllCodecs) {
    for (const uint32_t world_size : {1u, 2u, 3u, 8u, 16u}) {
      add(12, quick ? 1048 : 6144, codec, world_size, quick ? 1 : 4);
      if (quick) continue;
      add(1, 8, codec, world_size, 2);
      add(300, 8, codec, world_size, 2);
      add(65, 72, codec, world_size, 2);
      add(9, 16384, codec, world_size, 2);
    }
  }
  RunAll(works, report);
}

// Every finite 16-bit value and every exponent of the scale, through the division and the
// conversion of this device.
void CheckFp8Conversion(Report* report) {
  constexpr uint64_t kTokens = 600;
  constexpr uint32_t kHidden = 8192;
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16}) {
    RmsNormShape shape{Codec::kNone, Algorithm::kOneShot, dtype, 1, kTokens, kHidden, 1};
    const Tensors tensors(shape);
    const uint32_t top = dtype == Dtype::kFp16 ? 0x7C00 : 0x7F80;
    std::mt19937 random(11);
    std::vector<uint16_t> values(shape.count());
    for (uint64_t i = 0; i < values.size(); ++i) {
      // A row has values up to 2^16 patterns below its largest.
      const uint32_t largest = static_cast<uint32_t>((i / kHidden) * 7919 % top) + 1;
      const uint32_t reach = 1u << (4 + i / kHidden % 12);
      const uint32_t below = random() % std::min(largest + 1, reach);
      values[i] = static_cast<uint16_t>((largest - below) | (random() & 1) << 15);
    }
    for (RmsNormOptions options : AllKinds()) {
      if (options.quant == Quant::kNone || options.gemma) continue;
      options.mirror = true;
      tensors.Normed(options, 0).Upload(values.data());
      const Stream stream;
      report->Check(
          gpu::LaunchQuantizeFp8(dtype, tensors.Params(options).rms_norm, 1, stream.get()),
          "quantize_fp8");
      stream.Wait();
      Bytes codes(shape.count()), scales(kTokens * options.ScalesOfRow(kHidden) * 4);
      ReferenceQuantizeFp8(dtype, kTokens, kHidden, options.quant, options.scale_group,
                           options.divisor, values.data(), reinterpret_cast<uint8_t*>(codes.data()),
                           reinterpret_cast<float*>(scales.data()));
      const std::string what = std::string(Name(dtype)) + options.Describe();
      Bytes got = tensors.Scales(0).Download();
      got.resize(scales.size());
      report->Check(got == scales, "scales of any values " + what);
      report->Check(tensors.Codes(0).Download() == codes, "codes of any values " + what);
    }
  }
}

void CheckGoldenEpilogues(const std::string& folder, Report* report) {
  const GoldenEpilogue golden(folder);
  if (!report->Check(golden.is_readable(), folder + "/index.json is readable")) return;
  Communicators communicators;
  int records = 0;
  for (const auto& record : golden.cases()) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      const uint32_t world_size = golden.CaseOf(record, algorithm).shape.world_size;
      golden.Run<DeviceBuffer>(
          record, algorithm,
          [&](const LaunchParams& params) {
            Launch(Of(communicators, world_size, report), params, record.dump(), report);
          },
          CheckOf(report));
      ++records;
    }
  }
  report->Check(records > 100, "golden epilogues: " + std::to_string(records));
}

}  // namespace qrd::testing
