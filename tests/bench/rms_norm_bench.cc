// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm on the host, fused against the separate steps, one thread, in the same
// run and in turns: all_reduce, then residual add + RMSNorm, then FP8 quantization of every rank.
//   rms_norm_bench --benchmark_filter='6144/none/'
// Name: tokens x hidden/codec/ranks/output. Time: median of the fused iterations; separate_us:
// median of the separate ones; speedup: separate / fused; saved_MB: bytes of memory that the fused
// operation does not touch (contract of epilogues, section 7), of all ranks.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/codec.h"
#include "kernels/host_memory.h"
#include "kernels/rms_norm.h"
#include "kernels/types.h"

namespace qrd {
namespace {

struct Config {
  uint64_t tokens;
  uint32_t hidden;
  Codec codec;
  uint32_t ranks;
  Quant quant;
  bool mirror;

  uint64_t TensorBytes() const { return tokens * hidden * sizeof(uint16_t); }
  std::string BenchmarkName() const {
    std::string name = std::to_string(tokens) + 'x' + std::to_string(hidden) + '/';
    name += Name(codec);
    name += '/' + std::to_string(ranks) + '/';
    name += quant == Quant::kNone ? "bf16" : std::string(Name(quant));
    return name + (mirror ? "+mirror" : "");
  }
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Tensors of all ranks in one arena, as the daemon has them; and what the separate steps need
// between them: the reduced tensor, and with FP8 the 16-bit norm.
class Operation {
 public:
  Operation(Backend& backend, const Config& config) {
    const uint64_t bytes = config.TensorBytes(), padded = (bytes + 63) / 64 * 64;
    auto arena = backend.AllocateArena(config.ranks * (7 * padded + (1 << 20)));
    if (!arena.ok()) return;
    arena_ = *std::move(arena);
    fused_.codec = config.codec;
    fused_.dtype = Dtype::kBf16;
    fused_.world_size = config.ranks;
    fused_.count = config.tokens * config.hidden;
    fused_.algorithm =
        backend.AutoAlgorithm(config.codec, Dtype::kBf16, config.TensorBytes(), config.ranks);
    fused_.epilogue = Epilogue::kRmsNorm;
    RmsNormParams& p = fused_.rms_norm;
    p.tokens = config.tokens;
    p.hidden = config.hidden;
    p.eps = 1e-6f;
    p.quant = config.quant;
    std::byte* next = arena_->data();
    const auto take = [&next](uint64_t size) {
      std::byte* const tensor = next;
      next += (size + 63) / 64 * 64;
      return tensor;
    };
    for (uint32_t r = 0; r < config.ranks; ++r) {
      fused_.inputs[r] = Filled(take(bytes), bytes, r);
      p.residual[r] = Filled(take(bytes), bytes, kWorldSizeMax);
      p.weight[r] = Filled(take(config.hidden * 2), config.hidden * 2, kWorldSizeMax + 1);
      p.residual_out[r] = take(bytes);
      reduced_[r] = take(bytes);
      norm_[r] = take(bytes);
      if (config.quant == Quant::kNone) {
        p.out[r] = norm_[r];
        continue;
      }
      p.out8[r] = reinterpret_cast<uint8_t*>(take(fused_.count));
      p.scales[r] = reinterpret_cast<float*>(take(config.tokens * sizeof(float)));
      if (config.mirror) p.mirror[r] = norm_[r];
    }
    plain_ = fused_;
    plain_.epilogue = Epilogue::kNone;
    std::copy(reduced_, reduced_ + kWorldSizeMax, plain_.outputs);
    ok_ = backend.Validate(fused_).ok() && backend.Validate(plain_).ok();
  }

  bool ok() const { return ok_; }

  void RunFused(Backend& backend) const { backend.Run(fused_, {0, backend.UnitCount(fused_)}); }
  void RunSeparate(Backend& backend) const {
    const RmsNormParams& p = fused_.rms_norm;
    backend.Run(plain_, {0, backend.UnitCount(plain_)});
    for (uint32_t r = 0; r < fused_.world_size; ++r) {
      AddRmsNorm({fused_.dtype, p.tokens, p.hidden, p.eps, p.gemma, p.weight_dtype, p.weight[r]},
                 reduced_[r], p.residual[r], p.residual_out[r], norm_[r]);
      if (p.quant == Quant::kNone) continue;
      QuantizeFp8({fused_.dtype, p.tokens, p.hidden, p.quant, p.scale_group, p.divisor}, norm_[r],
                  p.out8[r], p.scales[r]);
    }
  }

 private:
  // Gaussian values, repeated: making fresh ones would take longer than the benchmark.
  static std::byte* Filled(std::byte* tensor, uint64_t bytes, uint32_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> gauss;
    std::vector<float> values(3 * kTileElements + 8);
    for (float& value : values) value = gauss(random);
    std::vector<std::byte> row(values.size() * sizeof(uint16_t));
    RoundToDtype(Dtype::kBf16, values.data(), values.size(), row.data());
    for (uint64_t at = 0; at < bytes; at += row.size()) {
      std::memcpy(tensor + at, row.data(), std::min<uint64_t>(row.size(), bytes - at));
    }
    return tensor;
  }

  std::unique_ptr<Arena> arena_;
  LaunchParams fused_, plain_;
  void* reduced_[kWorldSizeMax] = {};
  void* norm_[kWorldSizeMax] = {};
  bool ok_ = false;
};

// Section 7: what the separate steps write and read in between.
double SavedBytes(const Config& config) {
  const double tensors = config.quant == Quant::kNone ? 2 : config.mirror ? 3 : 4;
  return tensors * static_cast<double>(config.TensorBytes() * config.ranks);
}

template <typename Fn>
double Seconds(const Fn& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void FusedAgainstSeparate(benchmark::State& state, const Config& config) {
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  const Operation operation(*backend, config);
  if (!operation.ok()) {
    state.SkipWithError("no memory, or refused");
    return;
  }
  operation.RunFused(*backend);
  operation.RunSeparate(*backend);
  std::vector<double> fused, separate;
  for (auto _ : state) {
    separate.push_back(Seconds([&] { operation.RunSeparate(*backend); }));
    fused.push_back(Seconds([&] { operation.RunFused(*backend); }));
    state.SetIterationTime(fused.back());
  }
  state.counters["fused_us"] = Median(fused) * 1e6;
  state.counters["separate_us"] = Median(separate) * 1e6;
  state.counters["speedup"] = Median(separate) / Median(fused);
  state.counters["saved_MB"] = SavedBytes(config) * 1e-6;
}

void RegisterAll() {
  const std::pair<uint64_t, uint32_t> shapes[] = {
      {12, 6144}, {511, 6144}, {512, 6144}, {513, 6144}, {513, 6176}, {513, 6160}, {2048, 8192}};
  for (const auto& [tokens, hidden] : shapes) {
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3}) {
      for (const uint32_t ranks : {2u, 4u}) {
        for (const auto& [quant, mirror] :
             {std::pair{Quant::kNone, false}, std::pair{Quant::kE4m3fn, false},
              std::pair{Quant::kE4m3fn, true}}) {
          const Config config{tokens, hidden, codec, ranks, quant, mirror};
          const uint64_t iterations =
              std::clamp<uint64_t>((uint64_t{256} << 20) / (ranks * config.TensorBytes()), 5, 200);
          benchmark::RegisterBenchmark(
              config.BenchmarkName().c_str(),
              [config](benchmark::State& state) { FusedAgainstSeparate(state, config); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond)
              ->Iterations(static_cast<int64_t>(iterations));
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
