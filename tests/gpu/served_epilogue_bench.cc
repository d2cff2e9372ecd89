// SPDX-License-Identifier: Apache-2.0
// What fusing gains through a daemon, each rank a process with its device: all-reduce with RMSNorm
// and FP8 as one operation against an all-reduce (the vendor's library where there is one for these
// devices), RMSNorm and quantization as kernels of the process. Both sides are captured in graphs
// of ten; medians of interleaved rounds, as a table.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/gpu/gpu_collective.h"
#include "tests/gpu/served_bench.h"
#include "tests/gpu/served_fixture.h"

namespace qrd::testing {
namespace {

struct Shape {
  uint64_t tokens;
  uint32_t hidden;
};
constexpr Shape kShapes[] = {{12, 6144},   {511, 6144}, {512, 6144},  {513, 6144},
                             {2517, 6144}, {513, 6176}, {2048, 8192}, {4097, 6144}};
constexpr uint64_t kTensorBytes = uint64_t{4097} * 6144 * 2;
constexpr int kTensors = 8, kCalls = 10, kRounds = 3, kReplays = 3;
constexpr const char* kCodecs[] = {"none", "int4", "lp3"};

// A rank's tensors, in memory of the daemon.
struct RankTensors {
  RankTensors(ServedRank* rank, std::byte* base, const Shape& s) : self(*rank), memory(base) {
    norm.tokens = s.tokens;
    norm.hidden = s.hidden;
    norm.eps = 1e-6f;
    norm.weight_dtype = QRD_BF16;
    norm.quant = QRD_E4M3FN;
    norm.residual = At(1);
    norm.weight = At(2);
    norm.residual_out = At(3);
    norm.out8 = reinterpret_cast<uint8_t*>(At(4));
    norm.scales = reinterpret_cast<float*>(At(5));
  }
  std::byte* At(int index) const { return memory + static_cast<uint64_t>(index) * kTensorBytes; }

  void Fused() const {
    self.comm.AllReduceRmsNormOnStream(At(0), QRD_BF16, norm, self.stream.get());
  }
  void Separate() const {
    self.comm.AllReduceOnStream(At(0), At(6), norm.tokens * norm.hidden, QRD_BF16, QRD_SUM,
                                self.stream.get());
    RmsNormParams p;
    p.tokens = norm.tokens;
    p.hidden = norm.hidden;
    p.eps = norm.eps;
    p.weight_dtype = Dtype::kBf16;
    p.residual[0] = At(1);
    p.weight[0] = At(2);
    p.residual_out[0] = At(3);
    p.out[0] = p.mirror[0] = At(7);
    const void* const sums[] = {At(6)};
    if (!gpu::LaunchAddRmsNorm(Dtype::kBf16, p, sums, self.stream.get()).ok()) std::abort();
    p.quant = Quant::kE4m3fn;
    p.out8[0] = norm.out8;
    p.scales[0] = norm.scales;
    if (!gpu::LaunchQuantizeFp8(Dtype::kBf16, p, 1, self.stream.get()).ok()) std::abort();
  }

  ServedRank& self;
  std::byte* const memory;
  qrd_rms_norm norm = QRD_RMS_NORM_INIT;
};

double Microseconds(const Graph& graph, const Stream& stream) {
  hipEvent_t start, end;
  QRD_MUST(hipEventCreate(&start));
  QRD_MUST(hipEventCreate(&end));
  graph.Replay(stream);
  QRD_MUST(hipEventRecord(start, stream.get()));
  for (int i = 0; i < kReplays; ++i) graph.Replay(stream);
  QRD_MUST(hipEventRecord(end, stream.get()));
  stream.Wait();
  float ms = 0;
  QRD_MUST(hipEventElapsedTime(&ms, start, end));
  QRD_MUST(hipEventDestroy(start));
  QRD_MUST(hipEventDestroy(end));
  return ms * 1e3 / kReplays / kCalls;
}

// Answers "fused" and "separate" with a time until "next".
std::string RunRank(const std::string& directory, uint32_t ranks, RankProcess& process) {
  ServedRank self(directory, process.rank(), ranks);
  const Memory memory = self.comm.Allocate(kTensors * kTensorBytes);
  auto* base = static_cast<std::byte*>(memory.data());
  const uint64_t count = kTensorBytes / 2;
  for (const int tensor : {0, 1, 2}) {
    const Bytes values =
        MakeTensor(Dtype::kBf16, count, Data::kOrdinary, process.rank() * kTensors + tensor);
    QRD_MUST(hipMemcpy(base + tensor * kTensorBytes, values.data(), values.size(),
                       hipMemcpyHostToDevice));
    QRD_MUST(hipDeviceSynchronize());
  }
  for (const Shape& shape : kShapes) {
    const RankTensors tensors(&self, base, shape);
    const auto calls = [](auto call) {
      for (int i = 0; i < kCalls; ++i) call();
    };
    const Graph fused(self.stream, [&] { calls([&] { tensors.Fused(); }); });
    const Graph separate(self.stream, [&] { calls([&] { tensors.Separate(); }); });
    for (std::string wanted = process.Await(); wanted != "next"; wanted = process.Await()) {
      process.Report(
          std::to_string(Microseconds(wanted == "fused" ? fused : separate, self.stream)));
      self.comm.CheckStreams();
    }
  }
  return "";
}

// The slowest rank's time; 0 if one has none.
double Ask(RankProcesses& processes, uint32_t ranks, const std::string& what) {
  processes.SendAll(what);
  double slowest = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const std::string report = processes.AwaitReport(rank);
    const double us = std::strtod(report.c_str(), nullptr);
    if (us <= 0) {
      std::printf("rank %u: %s\n", rank, report.c_str());
      return 0;
    }
    slowest = std::max(slowest, us);
  }
  return slowest;
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

// False: something failed, and no row is printed.
bool BenchShape(const Shape& shape, uint32_t ranks, const std::string& base_policy,
                const std::string& directory, RankProcesses& processes) {
  std::vector<double> separate, fused[std::size(kCodecs)];
  for (int round = 0; round < kRounds; ++round) {
    std::string error = RunCtl(directory, "policy set " + base_policy);
    separate.push_back(Ask(processes, ranks, "separate"));
    for (size_t i = 0; i < std::size(kCodecs); ++i) {
      error += RunCtl(directory, std::string("policy set --codec ") + kCodecs[i]);
      fused[i].push_back(Ask(processes, ranks, "fused"));
    }
    bool failed = !error.empty() || separate.back() == 0;
    for (const std::vector<double>& times : fused) failed |= times.back() == 0;
    if (!failed) continue;
    std::printf("%s\n", error.c_str());
    return false;
  }
  for (size_t i = 0; i < std::size(kCodecs); ++i) {
    const double apart = Median(separate), together = Median(fused[i]);
    std::printf("| [%d,%u] | %u | %s | %.1f | %.1f | %.2f |\n", static_cast<int>(shape.tokens),
                shape.hidden, ranks, kCodecs[i], apart, together, apart / together);
  }
  std::fflush(stdout);
  return true;
}

}  // namespace

int BenchServedEpilogue(uint32_t ranks, bool library) {
  DaemonProcess daemon;
  const std::string started = daemon.Start({"--gpu", "required"});
  if (!started.empty()) {
    std::printf("no daemon with a GPU: %s\n", started.c_str());
    return 77;
  }
  const std::string base =
      library ? "--codec none --algorithm library" : "--codec none --algorithm auto";
  std::printf(
      "| shape | ranks | codec | %s + norm + fp8, separate us | fused us | speedup |\n"
      "|---|---|---|---|---|---|\n",
      library ? "library" : "qrd none");
  RankProcesses processes(ranks, Guarded([&](RankProcess& process) {
                            return RunRank(daemon.runtime_directory(), ranks, process);
                          }));
  int failed = 0;
  for (const Shape& shape : kShapes) {
    if (!BenchShape(shape, ranks, base, daemon.runtime_directory(), processes)) failed = 1;
    processes.SendAll("next");
  }
  for (const std::string& error : processes.Wait()) {
    if (error.empty()) continue;
    std::printf("rank: %s\n", error.c_str());
    failed = 1;
  }
  return failed;
}

}  // namespace qrd::testing
