// SPDX-License-Identifier: Apache-2.0
// Conformance of the GPU kernels on the device of this machine:
//   gpu_conformance GOLDEN_FOLDER [quick|rms_norm|backend]
// GOLDEN_FOLDER: golden files of codecs; those of epilogues are in its neighbour "epilogue". Prints
// every failed check, last "N passed, N failed". `quick`: small counts, for compute-sanitizer;
// `rms_norm`: only what has a norm; `backend`: only the backend as the daemon uses it, and the
// vendor's collective library. Exit status: 0 all passed, 1 a check failed, 2 bad arguments,
// 77 no GPU.
#include "conformance.h"

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "kernels/gpu/gpu_collective.h"

namespace qrd::testing {

void RunInParallel(const std::vector<std::function<void()>>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < work.size(); at = next++) work[at]();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

namespace {

void RunBackend(Report* report) {
  report->Section("the backend as the daemon uses it");
  CheckBackend(report);
  report->Section("the vendor's collective library");
  CheckCollectiveLibrary(report);
}

void RunReductions(const std::string& golden, bool quick, Report* report) {
  report->Section("golden files: codecs");
  CheckGoldenCodecs(golden, report);
  report->Section("golden files: reductions");
  CheckGoldenReductions(golden, report);
  report->Section("errors name field, value and bound");
  CheckErrors(report);
  report->Section("a missing rank");
  CheckMissingRank(report);
  report->Section("abort");
  CheckAbort(report);
  report->Section("graph replays");
  CheckGraphReplays(quick ? 3 : 300, report);
  report->Section("changing shapes");
  CheckChangingShapes(quick ? 20 : 5000, report);
  report->Section("ranks launched apart");
  CheckSeparateLaunches(report);
  report->Section("two communicators");
  CheckTwoCommunicators(report);
  if (!quick) RunBackend(report);
  report->Section("ranks on several devices");
  CheckManyDevices(report);
  if (quick) return;
  report->Section("large messages");
  CheckLargeMessages(report);
  report->Section("every instance");
  CheckEveryInstance(report);
  report->Section("codecs");
  CheckCodecs(report);
  report->Section("any wire bytes");
  CheckAnyWire(report);
}

void RunRmsNorm(const std::string& golden, bool quick, Report* report) {
  report->Section("rms_norm: golden files");
  CheckGoldenEpilogues(golden + "/../epilogue", report);
  report->Section("rms_norm: errors");
  CheckRmsNormErrors(report);
  report->Section("rms_norm: every codec, every kind of output");
  CheckRmsNormKinds(quick, report);
  report->Section("rms_norm: sharded residual");
  CheckShardedRmsNorm(quick, report);
  report->Section("rms_norm: graph replays");
  CheckRmsNormReplays(quick ? 2 : 30, report);
  report->Section("rms_norm: late ranks, outputs over inputs");
  CheckRmsNormLateRanks(report);
  report->Section("rms_norm: a missing rank");
  CheckRmsNormMissingRank(report);
  report->Section("rms_norm: sums in wire pools");
  CheckRmsNormWirePools(report);
  CheckRmsNormWirePoolsApart(report);
  report->Section("rms_norm: conversion to FP8");
  CheckFp8Conversion(report);
  if (quick) return;
  report->Section("rms_norm: shapes");
  CheckRmsNormShapes(report);
}

}  // namespace
}  // namespace qrd::testing

int main(int argc, char** argv) {
  using namespace qrd::testing;  // NOLINT(google-build-using-namespace)
  if (argc == 4 && std::string(argv[1]) == "--import") return RunImport(argv[2], argv[3]);
  const std::string part = argc == 3 ? argv[2] : "";
  if (argc < 2 || argc > 3 ||
      (argc == 3 && part != "quick" && part != "rms_norm" && part != "backend")) {
    std::fprintf(stderr, "usage: gpu_conformance GOLDEN_FOLDER [quick|rms_norm|backend]\n");
    return 2;
  }
  int devices = 0;
  if (hipGetDeviceCount(&devices) != hipSuccess || devices == 0) {
    std::printf("no GPU: skipped\n");
    return 77;
  }
  const auto target = qrd::gpu::DeviceTarget(0);
  std::printf("%d device(s), %s\n", devices, target.ok() ? target->c_str() : "?");
  Report report;
  if (part == "backend") {
    RunBackend(&report);
    return report.Finish();
  }
  if (part != "rms_norm") RunReductions(argv[1], part == "quick", &report);
  RunRmsNorm(argv[1], part == "quick", &report);
  return report.Finish();
}
