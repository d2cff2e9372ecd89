// SPDX-License-Identifier: Apache-2.0
// Speed of the GPU kernels on this device, every figure a ratio from this run:
//   gpu_bench [codecs] [reduce] [small] [links] [--epilogue]     default: all
// codecs: encode and decode of 256 MiB against a device copy. reduce: 2, 4, 8 ranks on the device
// against the least traffic 2S + 4cS of each rank at the copy's rate. small: time of one call in a
// graph of 20. links: copies between each two devices, one way and both. --epilogue: the fused norm
// against its steps apart. Times are medians of graph replays, data are random (N(0,1)); inputs of
// codecs and reduce are far larger than the cache. Exit status: 0, 2 bad arguments, 77 no GPU.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench_support.h"
#include "reduce_case.h"

namespace qrd::testing {
namespace {

// Median seconds of one run of `record`, which puts `runs` runs on the stream.
double Time(int runs, const std::function<void(hipStream_t)>& record) {
  const Stream stream;
  const Graph graph(stream, [&] { record(stream.get()); });
  hipEvent_t start, end;
  QRD_MUST(hipEventCreate(&start));
  QRD_MUST(hipEventCreate(&end));
  std::vector<double> seconds;
  for (int i = 0; i < 13; ++i) {
    QRD_MUST(hipEventRecord(start, stream.get()));
    graph.Replay(stream);
    QRD_MUST(hipEventRecord(end, stream.get()));
    stream.Wait();
    float ms = 0;
    QRD_MUST(hipEventElapsedTime(&ms, start, end));
    if (i >= 3) seconds.push_back(ms / 1e3 / runs);
  }
  QRD_MUST(hipEventDestroy(start));
  QRD_MUST(hipEventDestroy(end));
  std::ranges::nth_element(seconds, seconds.begin() + 5);
  return seconds[5];
}

// Read and written bytes a second.
double CopyRate(uint64_t bytes) {
  const DeviceBuffer from(bytes), to(bytes);
  Fill(from, Dtype::kFp16, 1);
  const double seconds = Time(4, [&](hipStream_t stream) {
    for (int i = 0; i < 4; ++i) {
      QRD_MUST(hipMemcpyAsync(to.data(), from.data(), bytes, hipMemcpyDeviceToDevice, stream));
    }
  });
  return 2 * static_cast<double>(bytes) / seconds;
}

void BenchCodecs() {
  constexpr uint64_t kBytes = 256 * kMiB;
  const double copy = CopyRate(kBytes);
  std::printf("\n| copy of 256 MiB | %.2f TB/s |\n\n", copy / 1e12);
  std::printf(
      "| codec | dtype | encode us | of copy | decode us | of copy |\n|---|---|---|---|---|---|\n");
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    const uint64_t count = kBytes / DtypeBytes(dtype);
    const DeviceBuffer x(kBytes), y(kBytes);
    Fill(x, dtype, 1);
    for (const Codec codec : kAllCodecs) {
      if (gpu::KernelsOf(codec, dtype) == nullptr) continue;
      const uint64_t wire_bytes = EncodedBytes(codec, dtype, count);
      const DeviceBuffer wire(wire_bytes);
      const double moved = static_cast<double>(kBytes + wire_bytes);
      const double encode = Time(4, [&](hipStream_t stream) {
        for (int i = 0; i < 4; ++i) {
          (void)gpu::LaunchEncode(codec, dtype, false, x.data(), count, wire.data(), stream);
        }
      });
      const double decode = Time(4, [&](hipStream_t stream) {
        for (int i = 0; i < 4; ++i) {
          (void)gpu::LaunchDecode(codec, dtype, false, wire.data(), count, y.data(), stream);
        }
      });
      std::printf("| %s | %s | %.1f | %.0f %% | %.1f | %.0f %% |\n",
                  std::string(Name(codec)).c_str(), std::string(Name(dtype)).c_str(), encode * 1e6,
                  100 * moved / encode / copy, decode * 1e6, 100 * moved / decode / copy);
    }
  }
}

double TimeReduce(gpu::GpuCollective& communicator, const ReduceBuffers& buffers, int runs) {
  const LaunchParams params = buffers.Params();
  const double seconds = Time(runs, [&](hipStream_t stream) {
    const hipStream_t streams[] = {stream};
    for (int i = 0; i < runs; ++i) {
      const absl::Status status = communicator.Launch(params, streams);
      if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
    }
  });
  if (!communicator.Health().ok()) std::printf("%s\n", communicator.Health().ToString().c_str());
  return seconds;
}

void BenchReduce() {
  const double copy = CopyRate(256 * kMiB);
  std::printf(
      "\n| ranks | MiB a rank | codec | algorithm | us | of 2S+4cS | of 2S at codec none |\n"
      "|---|---|---|---|---|---|---|\n");
  Report report;
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    const auto communicator = MakeCommunicator(world_size, &report);
    for (const uint64_t mib : {64u, 256u}) {
      for (const Codec codec : kAllCodecs) {
        if (gpu::KernelsOf(codec, Dtype::kBf16) == nullptr) continue;
        for (const Algorithm algorithm : {Algorithm::kTwoShot, Algorithm::kOneShot}) {
          if (algorithm == Algorithm::kOneShot && (world_size > 2 || mib > 64)) continue;
          const ReduceCase c{codec,          algorithm,  Dtype::kBf16,
                             ReduceOp::kSum, world_size, mib * kMiB / 2};
          const ReduceBuffers buffers(c);
          for (uint32_t r = 0; r < world_size; ++r) Fill(buffers.Input(r), c.dtype, r + 1);
          const double seconds = TimeReduce(*communicator, buffers, 3);
          const double wire = static_cast<double>(EncodedBytes(codec, c.dtype, c.count));
          const double payload = static_cast<double>(c.bytes());
          const double limit = world_size * (2 * payload + 4 * wire) / copy;
          std::printf("| %u | %d | %s | %s | %.1f | %.0f %% | %.0f %% |\n", world_size,
                      static_cast<int>(mib), std::string(Name(codec)).c_str(),
                      std::string(Name(algorithm)).c_str(), seconds * 1e6, 100 * limit / seconds,
                      100 * world_size * 2 * payload / copy / seconds);
          std::fflush(stdout);
        }
      }
    }
  }
}

void BenchSmall() {
  Report report;
  std::printf(
      "\n| ranks | KiB a rank | codec | one_shot us | two_shot us |\n|---|---|---|---|---|\n");
  for (const uint32_t world_size : {2u, 8u}) {
    const auto communicator = MakeCommunicator(world_size, &report);
    for (const uint64_t kib : {4u, 64u, 1024u, 8192u}) {
      for (const Codec codec : {Codec::kNone, Codec::kInt8, Codec::kInt4, Codec::kLp3}) {
        double us[2];
        int i = 0;
        for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
          const ReduceCase c{codec, algorithm, Dtype::kBf16, ReduceOp::kSum, world_size, kib * 512};
          const ReduceBuffers buffers(c);
          for (uint32_t r = 0; r < world_size; ++r) Fill(buffers.Input(r), c.dtype, r + 1);
          us[i++] = TimeReduce(*communicator, buffers, 20) * 1e6;
        }
        std::printf("| %u | %d | %s | %.2f | %.2f |\n", world_size, static_cast<int>(kib),
                    std::string(Name(codec)).c_str(), us[0], us[1]);
      }
    }
  }
}

}  // namespace
}  // namespace qrd::testing

int main(int argc, char** argv) {
  std::set<std::string> parts(argv + 1, argv + argc);
  const std::set<std::string> all = {"codecs", "reduce", "small", "links", "--epilogue"};
  if (parts.empty()) parts = all;
  for (const std::string& part : parts) {
    if (all.contains(part)) continue;
    std::fprintf(stderr, "unknown argument '%s': want codecs, reduce, small, links, --epilogue\n",
                 part.c_str());
    return 2;
  }
  int devices = 0;
  if (hipGetDeviceCount(&devices) != hipSuccess || devices == 0) {
    std::printf("no GPU: skipped\n");
    return 77;
  }
  hipDeviceProp_t properties;
  QRD_MUST(hipGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  if (parts.contains("codecs")) qrd::testing::BenchCodecs();
  if (parts.contains("reduce")) qrd::testing::BenchReduce();
  if (parts.contains("small")) qrd::testing::BenchSmall();
  if (parts.contains("links")) qrd::testing::BenchLinks();
  if (parts.contains("--epilogue")) qrd::testing::BenchEpilogue();
  return 0;
}
