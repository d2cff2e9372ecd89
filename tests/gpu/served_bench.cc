// SPDX-License-Identifier: Apache-2.0
// What serving costs: the same all-reduce launched by the process itself (two logical ranks on one
// device, launch and synchronize), waited for by the host through a daemon, and on a stream through
// a daemon (call and synchronize). Medians of one run, as a table with ratios.
//   gpu_served_bench                        that
//   gpu_served_bench --epilogue RANKS [library]   served_epilogue_bench.cc
#include "tests/gpu/served_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/gpu/gpu_collective.h"
#include "tests/gpu/served_fixture.h"

namespace qrd::testing {
namespace {

constexpr uint32_t kRanks = 2;
constexpr int kWarmUp = 200, kIterations = 2000;
constexpr uint64_t kPayloads[] = {4096, 65536, 1 << 20};

double MedianUs(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

template <typename Once>
double Measure(Once once) {
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + kIterations; ++i) {
    const auto start = std::chrono::steady_clock::now();
    once();
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
    if (i >= kWarmUp) times.push_back(us.count());
  }
  return MedianUs(std::move(times));
}

// Rank 0's medians, "host stream" a payload.
std::string ServedTimes(const std::string& directory, RankProcess& process) {
  ServedRank self(directory, process.rank(), kRanks);
  const Memory memory = self.comm.Allocate(2 << 20);
  auto* in = static_cast<std::byte*>(memory.data());
  for (const uint64_t bytes : kPayloads) {
    const uint64_t count = bytes / 2;
    const double host =
        Measure([&] { self.comm.AllReduce(in, in + (1 << 20), count, QRD_BF16, QRD_SUM).Wait(); });
    const double stream = Measure([&] {
      self.comm.AllReduceOnStream(in, in + (1 << 20), count, QRD_BF16, QRD_SUM, self.stream.get());
      self.stream.Wait();
    });
    process.Report(std::to_string(host) + " " + std::to_string(stream));
  }
  self.comm.CheckStreams();
  return "";
}

double OwnLaunchUs(gpu::GpuCollective* collective, uint64_t bytes, Algorithm algorithm) {
  const Stream stream;
  std::vector<DeviceBuffer> buffers;
  LaunchParams params;
  params.dtype = Dtype::kBf16;
  params.algorithm = algorithm;
  params.world_size = kRanks;
  params.count = bytes / 2;
  for (uint32_t r = 0; r < 2 * kRanks; ++r) buffers.emplace_back(bytes);
  for (uint32_t r = 0; r < kRanks; ++r) {
    params.inputs[r] = buffers[2 * r].data();
    params.outputs[r] = buffers[2 * r + 1].data();
  }
  const hipStream_t streams[] = {stream.get()};
  return Measure([&] {
    if (!collective->Launch(params, streams).ok()) std::abort();
    stream.Wait();
  });
}

int Main() {
  DaemonProcess daemon;
  const std::string started = daemon.Start({"--gpu", "required"});
  if (!started.empty()) {
    std::printf("no daemon with a GPU: %s\n", started.c_str());
    return 77;
  }
  double host[std::size(kPayloads)] = {}, stream[std::size(kPayloads)] = {};
  RankProcesses ranks(kRanks, Guarded([&](RankProcess& process) {
                        return ServedTimes(daemon.runtime_directory(), process);
                      }));
  for (size_t i = 0; i < std::size(kPayloads); ++i) {
    const std::string report = ranks.AwaitReport(0);
    ranks.AwaitReport(1);
    std::sscanf(report.c_str(), "%lf %lf", &host[i], &stream[i]);
  }
  for (const std::string& error : ranks.Wait()) {
    if (!error.empty()) std::printf("rank: %s\n", error.c_str());
  }
  daemon.Terminate();
  // Only now does this process use the GPU: what forks cannot use it before.
  gpu::GpuCollective::Options options;
  options.device_of_rank = {0, 0};
  auto collective = gpu::GpuCollective::Create(options);
  if (!collective.ok()) return 1;
  std::printf(
      "| payload | own launch us | host-waited us | over own | on a stream us | over own |\n"
      "|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < std::size(kPayloads); ++i) {
    // What auto takes for these on one device.
    const double own = OwnLaunchUs(collective->get(), kPayloads[i], Algorithm::kOneShot);
    std::printf("| %llu KiB | %.1f | %.1f | %.2f | %.1f | %.2f |\n",
                static_cast<unsigned long long>(kPayloads[i] >> 10), own, host[i], host[i] / own,
                stream[i], stream[i] / own);
  }
  return 0;
}

}  // namespace
}  // namespace qrd::testing

int main(int argc, char** argv) {
  if (argc == 1) return qrd::testing::Main();
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool library = argc == 4 && std::string(argv[3]) == "library";
  if (std::string(argv[1]) != "--epilogue" || ranks < 1 || ranks > 8 || argc > 4 ||
      (argc == 4 && !library)) {
    std::fprintf(stderr, "usage: gpu_served_bench [--epilogue RANKS [library]], RANKS 1 to 8\n");
    return 2;
  }
  return qrd::testing::BenchServedEpilogue(static_cast<uint32_t>(ranks), library);
}
