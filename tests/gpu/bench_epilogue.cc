// SPDX-License-Identifier: Apache-2.0
// All-reduce + residual + RMSNorm (+ FP8) as one operation against the same steps as kernels of
// their own, which share its code: all_reduce, add_rms_norm, quantize_fp8, one launch each for all
// ranks of the device. bf16; plan as for a plain all-reduce of that payload. Tensors stay where
// they are from call to call, so small shapes are in the cache, for all. And the same with a
// sharded residual, whose owners do the norm once.
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench_support.h"
#include "kernels/auto_plan.h"
#include "reduce_case.h"
#include "rms_norm_case.h"

namespace qrd::testing {
namespace {

using Tensors = RmsNormTensors<DeviceBuffer>;
constexpr int kRounds = 5;  // of both sides in turn

// Calls in a graph, and the time of one.
class TimedGraph {
 public:
  template <typename Record>
  TimedGraph(const Stream& stream, int calls, Record record)
      : calls_(calls), graph_(stream, [&] {
          for (int i = 0; i < calls; ++i) record(stream.get());
        }) {
    QRD_MUST(hipEventCreate(&start_));
    QRD_MUST(hipEventCreate(&end_));
  }
  ~TimedGraph() {
    (void)hipEventDestroy(start_);
    (void)hipEventDestroy(end_);
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;
  double Microseconds(const Stream& stream) const {
    graph_.Replay(stream);
    QRD_MUST(hipEventRecord(start_, stream.get()));
    for (int i = 0; i < kReplays; ++i) graph_.Replay(stream);
    QRD_MUST(hipEventRecord(end_, stream.get()));
    stream.Wait();
    float ms = 0;
    QRD_MUST(hipEventElapsedTime(&ms, start_, end_));
    return ms * 1e3 / kReplays / calls_;
  }

 private:
  static constexpr int kReplays = 3;
  const int calls_;
  const Graph graph_;
  hipEvent_t start_ = nullptr, end_ = nullptr;
};

double Median(std::array<double, kRounds> values) {
  std::ranges::nth_element(values, values.begin() + kRounds / 2);
  return values[kRounds / 2];
}

void Must(const absl::Status& status) {
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
}

struct Times {
  double separate, fused, sharded;
};
Times Measure(gpu::GpuCollective& communicator, const Tensors& tensors,
              const std::vector<DeviceBuffer>& reduced, const RmsNormOptions& options,
              const LaunchParams& fused) {
  LaunchParams reduce = fused;
  reduce.epilogue = Epilogue::kNone;
  RmsNormParams norm = fused.rms_norm, quantize = fused.rms_norm;
  norm.quant = Quant::kNone;
  std::vector<const void*> sums;
  for (uint32_t r = 0; r < fused.world_size; ++r) {
    reduce.outputs[r] = reduced[r].data();
    sums.push_back(reduced[r].data());
    norm.out[r] = quantize.mirror[r] = tensors.Normed(options, r).data();
  }
  const int calls = fused.count * fused.world_size < 50'000'000 ? 10 : 3;
  const Stream stream;
  const TimedGraph separate(stream, calls, [&](hipStream_t on) {
    const hipStream_t streams[] = {on};
    Must(communicator.Launch(reduce, streams));
    Must(gpu::LaunchAddRmsNorm(fused.dtype, norm, sums, on));
    if (options.quant == Quant::kNone) return;
    Must(gpu::LaunchQuantizeFp8(fused.dtype, quantize, fused.world_size, on));
  });
  const TimedGraph together(stream, calls, [&](hipStream_t on) {
    const hipStream_t streams[] = {on};
    Must(communicator.Launch(fused, streams));
  });
  LaunchParams by_owners = fused;
  by_owners.algorithm = Algorithm::kTwoShot;
  by_owners.rms_norm.residual_layout = ResidualLayout::kSharded;
  const TimedGraph sharded(stream, calls, [&](hipStream_t on) {
    const hipStream_t streams[] = {on};
    Must(communicator.Launch(by_owners, streams));
  });
  std::array<double, kRounds> a, b, c;
  for (int round = 0; round < kRounds; ++round) {
    a[round] = separate.Microseconds(stream);
    b[round] = together.Microseconds(stream);
    c[round] = sharded.Microseconds(stream);
  }
  Must(communicator.Health());
  return {Median(a), Median(b), Median(c)};
}

// The least bytes of a rank's memory: transport, then the steps after it.
double LeastMiB(const LaunchParams& p, bool fused, bool quant) {
  const double s = static_cast<double>(p.count * 2), n = p.world_size;
  const double wire = (n - 1) / n * static_cast<double>(EncodedBytes(p.codec, p.dtype, p.count));
  const double steps = quant ? (fused ? 2.5 : 6.5) : (fused ? 3 : 5);
  const double scales = quant ? 4.0 * static_cast<double>(p.rms_norm.tokens) : 0;
  return (s + 4 * wire + steps * s + scales) / static_cast<double>(kMiB);
}

// What a rank sends on real links, the mean of all.
double WireMiB(LaunchParams p, ResidualLayout layout) {
  p.rms_norm.residual_layout = layout;
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < p.world_size; ++r) bytes += WireBytesSent(p, r);
  return static_cast<double>(bytes) / p.world_size / static_cast<double>(kMiB);
}

void BenchShape(uint64_t tokens, uint32_t hidden, uint32_t world_size,
                gpu::GpuCollective& communicator, bool also_16_bit) {
  RmsNormShape shape{Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, world_size, tokens, hidden};
  const Tensors tensors(shape);
  std::vector<DeviceBuffer> reduced;
  for (uint32_t r = 0; r < world_size; ++r) {
    reduced.emplace_back(shape.count() * 2);
    Fill(tensors.Input(r), shape.dtype, r + 1);
    Fill(tensors.Residual(r), shape.dtype, 20);
    Fill(tensors.Weight(r), shape.dtype, 21);
  }
  for (const Quant quant : {Quant::kE4m3fn, Quant::kNone}) {
    if (quant == Quant::kNone && !also_16_bit) continue;
    const RmsNormOptions options{.quant = quant};
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3}) {
      LaunchParams fused = tensors.Params(options);
      AutoFacts facts;
      facts.payload_bytes = shape.count() * 2;
      facts.world_size = world_size;
      facts.codec = codec;
      fused.codec = codec;
      fused.algorithm = PlanAuto(facts).algorithm;
      const Times times = Measure(communicator, tensors, reduced, options, fused);
      const bool has_quant = quant != Quant::kNone;
      std::printf(
          "| [%d,%u] | %s | %s %s | %u | %.1f | %.1f | %.2f | %.1f | %.2f | %.1f / %.1f "
          "| %.1f / %.1f | %d / %d |\n",
          static_cast<int>(tokens), hidden, has_quant ? "fp8" : "bf16",
          std::string(Name(codec)).c_str(), std::string(Name(fused.algorithm)).c_str(), world_size,
          times.separate, times.fused, times.separate / times.fused, times.sharded,
          times.separate / times.sharded, WireMiB(fused, ResidualLayout::kFull),
          WireMiB(fused, ResidualLayout::kSharded), LeastMiB(fused, false, has_quant),
          LeastMiB(fused, true, has_quant), has_quant ? 3 : 2, communicator.KernelCount(fused));
      std::fflush(stdout);
    }
  }
}

}  // namespace

void BenchEpilogue() {
  struct Shape {
    uint64_t tokens;
    uint32_t hidden;
  };
  constexpr Shape kShapes[] = {{12, 6144},  {511, 6144}, {512, 6144},  {513, 6144}, {2517, 6144},
                               {513, 6176}, {513, 6160}, {2048, 8192}, {4097, 6144}};
  std::printf(
      "\n| shape | output | codec, algorithm | ranks | separate us | fused us | speedup "
      "| sharded us | speedup | sent MiB a rank, full / sharded "
      "| least MiB a rank, separate / fused | launches |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  Report report;
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    const auto communicator = MakeCommunicator(world_size, &report);
    for (const Shape& shape : kShapes) {
      BenchShape(shape.tokens, shape.hidden, world_size, *communicator,
                 shape.tokens == 512 || shape.tokens == 2517);
    }
  }
}

}  // namespace qrd::testing
