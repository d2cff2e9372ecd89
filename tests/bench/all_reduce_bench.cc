// SPDX-License-Identifier: Apache-2.0
// Host all-reduce in one process, all cores: every codec over sizes, beside the machine's limit for
// the same payload and ranks (kernels/memory_limit.h), measured in the same run just before.
//   all_reduce_bench --benchmark_filter='none/fp32/2/.*/out'
//   QRD_BENCH_THREADS=1 all_reduce_bench     fewer threads than cores, here and in the limit
// Name: codec/dtype/ranks/payload bytes/{out,in} of place. Time: median of the iterations' wall
// time; limit_us: the limit's; of_limit: limit / time; algbw: payload / time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/codec.h"
#include "kernels/host_memory.h"
#include "kernels/lockstep_team.h"
#include "kernels/memory_limit.h"
#include "kernels/types.h"

namespace qrd {
namespace {

uint32_t Threads() {
  const char* text = std::getenv("QRD_BENCH_THREADS");
  return text != nullptr ? static_cast<uint32_t>(std::strtoul(text, nullptr, 10)) : 0;
}

struct Config {
  Codec codec = Codec::kNone;
  Dtype dtype = Dtype::kFp32;
  uint32_t ranks = 2;
  uint64_t payload_bytes = 0;
  bool in_place = false;

  std::string BenchmarkName() const {
    std::string name(Name(codec));
    name += '/';
    name += Name(dtype);
    return name + '/' + std::to_string(ranks) + '/' + std::to_string(payload_bytes) +
           (in_place ? "/in" : "/out");
  }
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Tensors of all ranks in one arena, as the daemon has them.
class Operation {
 public:
  Operation(Backend& backend, const Config& config) {
    params_.codec = config.codec;
    params_.dtype = config.dtype;
    params_.world_size = config.ranks;
    params_.count = config.payload_bytes / DtypeBytes(config.dtype);
    params_.algorithm =
        backend.AutoAlgorithm(config.codec, config.dtype, config.payload_bytes, config.ranks);
    auto arena = backend.AllocateArena(2 * config.ranks * config.payload_bytes);
    if (!arena.ok()) return;
    arena_ = *std::move(arena);
    for (uint32_t r = 0; r < config.ranks; ++r) {
      std::byte* input = arena_->data() + r * config.payload_bytes;
      params_.inputs[r] = input;
      params_.outputs[r] = config.in_place ? input : input + config.ranks * config.payload_bytes;
      Fill(config, r, input);
    }
  }

  bool ok() const { return arena_ != nullptr; }
  const LaunchParams& params() const { return params_; }

 private:
  // Gaussian values, repeated: making fresh ones would take longer than the benchmark.
  static void Fill(const Config& config, uint32_t rank, std::byte* tensor) {
    std::mt19937_64 random(rank);
    std::normal_distribution<float> gauss(0, 0.01f);  // in place: no overflow for many iterations
    std::vector<float> values(4 * kTileElements);
    for (float& value : values) value = gauss(random);
    std::vector<std::byte> row(values.size() * DtypeBytes(config.dtype));
    RoundToDtype(config.dtype, values.data(), values.size(), row.data());
    for (uint64_t at = 0; at < config.payload_bytes; at += row.size()) {
      std::memcpy(tensor + at, row.data(),
                  std::min<uint64_t>(row.size(), config.payload_bytes - at));
    }
  }

  std::unique_ptr<Arena> arena_;
  LaunchParams params_;
};

// Enough for a median, few enough for the large ones.
uint32_t Iterations(const Config& config) {
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((uint64_t{512} << 20) / (config.ranks * config.payload_bytes), 15, 500));
}

void AllReduce(benchmark::State& state, const Config& config) {
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  Operation operation(*backend, config);
  if (!operation.ok()) {
    state.SkipWithError("no memory");
    return;
  }
  LaunchParams params = operation.params();
  params.op = ReduceOp::kAvg;  // in place: values stay as they are
  const uint64_t tiles = TileCount(params.count);
  LockstepTeam team(Threads());
  const auto work = [&](uint32_t thread) {
    backend->Run(params, {tiles * thread / team.size(), tiles * (thread + 1) / team.size()});
  };
  std::vector<double> seconds;
  team.Run(work);
  for (auto _ : state) {
    seconds.push_back(team.Run(work));
    state.SetIterationTime(seconds.back());
  }
  const auto limit = MeasureMemoryLimit({.payload_bytes = config.payload_bytes,
                                         .ranks = config.ranks,
                                         .threads = Threads(),
                                         .repetitions = Iterations(config)});
  if (!limit.ok()) {
    state.SkipWithError("limit: no memory");
    return;
  }
  const double median = Median(seconds);
  const double best = *std::ranges::min_element(seconds);
  state.counters["p50_us"] = median * 1e6;
  state.counters["best_us"] = best * 1e6;
  state.counters["limit_us"] = limit->seconds_median * 1e6;
  state.counters["of_limit"] = limit->seconds_median / median;
  state.counters["best_of_limit"] = limit->seconds_min / best;
  state.counters["algbw_GBps"] = static_cast<double>(config.payload_bytes) / median * 1e-9;
}

void Register(const Config& config) {
  benchmark::RegisterBenchmark(config.BenchmarkName().c_str(),
                               [config](benchmark::State& state) { AllReduce(state, config); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(Iterations(config));
}

void RegisterAll() {
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
      for (const uint32_t ranks : {2u, 4u, 8u, 16u}) {
        for (uint64_t bytes = 4096; bytes <= uint64_t{64} << 20; bytes *= 4) {
          const bool fits = ranks * bytes <= uint64_t{256} << 20;
          // The codecs are bound by arithmetic: a few sizes tell.
          if (!fits || (codec != Codec::kNone && (ranks > 4 || bytes % (1 << 16) != 0))) continue;
          for (const bool in_place : {false, true}) {
            if (codec != Codec::kNone && in_place) continue;
            Register({codec, dtype, ranks, bytes, in_place});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace qrd

int main(int argc, char** argv) {
  std::printf("%s, instruction set %s\n", qrd::CpuDescription().c_str(), qrd::SimdTargetName());
  qrd::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
