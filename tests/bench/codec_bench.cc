// SPDX-License-Identifier: Apache-2.0
// Encode and decode, one core: GB/s of payload (input of encode, output of decode counted in the
// tensor's dtype), beside a memcpy of the same payload in the same run.
//   codec_bench --benchmark_filter='Encode/int8'
//   QRD_BENCH_TARGET=AVX2 codec_bench     one instruction set instead of the best
//   QRD_BENCH_ELEMENTS=65536 codec_bench  elements of the message (1 Mi)
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

// simd_targets.h has to come before Highway.
// clang-format off
#include "kernels/simd_targets.h"
#include "hwy/targets.h"
// clang-format on

#include "kernels/codec.h"
#include "kernels/codec_kernels.h"

namespace qrd {
namespace {

uint64_t Elements() {
  const char* text = std::getenv("QRD_BENCH_ELEMENTS");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{1} << 20;
}

struct Message {
  Message(Codec codec, Dtype dtype)
      : count(Elements()),
        payload_bytes(count * DtypeBytes(dtype)),
        values(count),
        payload(payload_bytes),
        wire(EncodedBytes(codec, dtype, count)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    RoundToDtype(dtype, values.data(), count, payload.data());
    Encode(codec, dtype, payload.data(), count, wire.data());
  }

  void Report(benchmark::State& state) const {
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * payload_bytes));
    state.counters["ratio"] = static_cast<double>(payload_bytes) / static_cast<double>(wire.size());
  }

  uint64_t count;
  uint64_t payload_bytes;
  std::vector<float> values;
  std::vector<std::byte> payload, wire;
};

void EncodeMessage(benchmark::State& state, Codec codec, Dtype dtype) {
  Message message(codec, dtype);
  for (auto _ : state) {
    Encode(codec, dtype, message.payload.data(), message.count, message.wire.data());
    benchmark::ClobberMemory();
  }
  message.Report(state);
}

void DecodeMessage(benchmark::State& state, Codec codec, Dtype dtype) {
  Message message(codec, dtype);
  for (auto _ : state) {
    Decode(codec, dtype, message.wire.data(), message.count, message.values.data());
    benchmark::ClobberMemory();
  }
  message.Report(state);
}

// What the collectives do to one tile that stays in the cache.
void RoundTripTile(benchmark::State& state, Codec codec, Dtype dtype) {
  Message message(codec, dtype);
  message.count = kTileElements;
  message.payload_bytes = kTileElements * DtypeBytes(dtype);
  message.wire.resize(EncodedBytes(codec, dtype, kTileElements));
  const CodecKernels& kernels = KernelsFor(codec);
  for (auto _ : state) {
    kernels.round_trip_tile(dtype, message.values.data(), kTileElements, message.values.data());
    benchmark::ClobberMemory();
  }
  message.Report(state);
}

void CopyPayload(benchmark::State& state, Dtype dtype) {
  Message message(Codec::kNone, dtype);
  for (auto _ : state) {
    std::memcpy(message.wire.data(), message.payload.data(), message.payload_bytes);
    benchmark::ClobberMemory();
  }
  message.Report(state);
}

bool ChooseTarget() {
  const char* wanted = std::getenv("QRD_BENCH_TARGET");
  if (wanted == nullptr) return true;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (std::string(hwy::TargetName(target)) != wanted) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  std::fprintf(stderr, "QRD_BENCH_TARGET=%s: this machine or build does not have it\n", wanted);
  return false;
}

void RegisterAll() {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    const std::string suffix = "/" + std::string(Name(dtype));
    benchmark::RegisterBenchmark(("Memcpy" + suffix).c_str(), CopyPayload, dtype);
    for (const Codec codec : kAllCodecs) {
      const std::string name = "/" + std::string(Name(codec)) + suffix;
      benchmark::RegisterBenchmark(("Encode" + name).c_str(), EncodeMessage, codec, dtype);
      benchmark::RegisterBenchmark(("Decode" + name).c_str(), DecodeMessage, codec, dtype);
      benchmark::RegisterBenchmark(("RoundTripTile" + name).c_str(), RoundTripTile, codec, dtype);
    }
  }
}

}  // namespace
}  // namespace qrd

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (!qrd::ChooseTarget()) return 1;
  benchmark::AddCustomContext("simd_target", qrd::SimdTargetName());
  qrd::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
