// SPDX-License-Identifier: Apache-2.0
// Copies between devices: what `qrbench model --link-gbps` wants to know. On one device the only
// line is that of a copy within it.
#include <array>
#include <cstdio>
#include <memory>

#include "bench_support.h"

namespace qrd::testing {
namespace {

constexpr uint64_t kBytes = 256 * kMiB;
constexpr int kCopies = 8, kRounds = 5;

// A device with a stream and memory to copy from and to.
struct Side {
  explicit Side(int number) : device(number) {
    QRD_MUST(hipSetDevice(device));
    stream = std::make_unique<Stream>();
    from = std::make_unique<DeviceBuffer>(kBytes);
    to = std::make_unique<DeviceBuffer>(kBytes);
    QRD_MUST(hipEventCreate(&start));
    QRD_MUST(hipEventCreate(&end));
  }
  ~Side() {
    (void)hipSetDevice(device);
    (void)hipEventDestroy(start);
    (void)hipEventDestroy(end);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  int device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<DeviceBuffer> from, to;
  hipEvent_t start = nullptr, end = nullptr;
};

void Enqueue(Side& from, const Side& to) {
  QRD_MUST(hipSetDevice(from.device));
  QRD_MUST(hipEventRecord(from.start, from.stream->get()));
  for (int i = 0; i < kCopies; ++i) {
    QRD_MUST(hipMemcpyPeerAsync(to.to->data(), to.device, from.from->data(), from.device, kBytes,
                                from.stream->get()));
  }
  QRD_MUST(hipEventRecord(from.end, from.stream->get()));
}

double Seconds(const Side& side) {
  side.stream->Wait();
  float ms = 0;
  QRD_MUST(hipEventElapsedTime(&ms, side.start, side.end));
  return ms / 1e3;
}

// GB/s of one direction; with `both`, the other one runs at the same time.
double Rate(Side& a, Side& b, bool both) {
  std::array<double, kRounds> rates;
  for (double& rate : rates) {
    Enqueue(a, b);
    if (both) Enqueue(b, a);
    double seconds = Seconds(a);
    if (both) seconds = std::max(seconds, Seconds(b));
    rate = static_cast<double>(kBytes) * kCopies / seconds / 1e9;
  }
  std::ranges::nth_element(rates, rates.begin() + kRounds / 2);
  return rates[kRounds / 2];
}

void AllowAccess(int from, int to) {
  int can = 0;
  if (from == to || hipDeviceCanAccessPeer(&can, from, to) != hipSuccess || can == 0) return;
  QRD_MUST(hipSetDevice(from));
  // Already enabled is as good.
  if (hipDeviceEnablePeerAccess(to, 0) != hipSuccess) (void)hipGetLastError();
}

}  // namespace

void BenchLinks() {
  int devices = 0;
  QRD_MUST(hipGetDeviceCount(&devices));
  std::printf("\n| from | to | one way GB/s | both ways, each GB/s |\n|---|---|---|---|\n");
  if (devices == 1) {
    Side only(0);
    std::printf("| 0 | 0 | %.1f | - |\n", Rate(only, only, false));
    return;
  }
  for (int i = 0; i < devices; ++i) {
    for (int j = i + 1; j < devices; ++j) {
      AllowAccess(i, j);
      AllowAccess(j, i);
      Side a(i), b(j);
      const double there = Rate(a, b, false), back = Rate(b, a, false), both = Rate(a, b, true);
      std::printf("| %d | %d | %.1f | %.1f |\n| %d | %d | %.1f | %.1f |\n", i, j, there, both, j, i,
                  back, both);
      std::fflush(stdout);
    }
  }
  QRD_MUST(hipSetDevice(0));
}

}  // namespace qrd::testing
