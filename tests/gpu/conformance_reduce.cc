// SPDX-License-Identifier: Apache-2.0
// Results of the collectives against the scalar reference and the golden files.
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance.h"
#include "reduce_case.h"

namespace qrd::testing {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Communicators on device 0 by world size.
class Communicators {
 public:
  gpu::GpuCollective& Of(uint32_t world_size, Report* report) {
    auto& communicator = by_size_[world_size];
    if (communicator == nullptr) communicator = MakeCommunicator(world_size, report);
    return *communicator;
  }

 private:
  std::map<uint32_t, std::unique_ptr<gpu::GpuCollective>> by_size_;
};

void RunCase(const ReduceCase& c, const ReduceData& data, gpu::GpuCollective& communicator,
             Report* report) {
  const ReduceBuffers buffers(c);
  buffers.Upload(data);
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  if (!report->Check(communicator.Launch(buffers.Params(), streams), c.Describe())) return;
  stream.Wait();
  report->Check(communicator.Health(), c.Describe());
  buffers.Check(data, "", report);
  if (c.world_size > 1 && c.count != 0) {
    report->Check(communicator.non_finite() == data.non_finite,
                  "NaN and Inf counted: " + std::to_string(communicator.non_finite()) + ", want " +
                      std::to_string(data.non_finite) + ": " + c.Describe());
  }
}

void RunCases(const std::vector<ReduceCase>& cases, Report* report) {
  Communicators communicators;
  std::vector<std::function<void()>> work;
  for (const ReduceCase& c : cases) {
    work.push_back([&, c] {
      const ReduceData data(c);
      const std::lock_guard<std::mutex> lock(DeviceMutex());
      RunCase(c, data, communicators.Of(c.world_size, report), report);
    });
  }
  RunInParallel(work);
}

}  // namespace

void CheckEveryInstance(Report* report) {
  std::vector<ReduceCase> cases;
  uint32_t seed = 0;
  for (const KernelInstance& instance : AllInstances()) {
    for (uint32_t world_size = 1; world_size <= 8; ++world_size) {
      const uint64_t shapes[] = {1, 31, 2048 * world_size, 4097 + 13 * world_size, 100'003};
      for (const uint64_t count : shapes) {
        ++seed;
        cases.push_back({instance.codec, instance.algorithm, instance.dtype,
                         seed % 3 == 0 ? ReduceOp::kAvg : ReduceOp::kSum, world_size, count,
                         seed % 2 == 0, seed % 5 == 0 ? 1u : 0u,
                         seed % 4 == 0   ? Data::kAdversarial
                         : seed % 7 == 0 ? Data::kBits
                                         : Data::kOrdinary,
                         seed});
      }
    }
    for (const uint32_t world_size : {12u, 16u}) {
      cases.push_back({instance.codec, instance.algorithm, instance.dtype, ReduceOp::kSum,
                       world_size, 40'001, false, 0, Data::kOrdinary, ++seed});
    }
  }
  RunCases(cases, report);
}

void CheckLargeMessages(Report* report) {
  std::vector<ReduceCase> cases;
  uint32_t seed = 1000;
  // Far more tiles than blocks hold at once.
  for (const Codec codec : {Codec::kNone, Codec::kInt8, Codec::kInt4, Codec::kLp3, Codec::kLp3c}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      cases.push_back({codec, algorithm, Dtype::kBf16, ReduceOp::kSum, 2, 24'000'007, true, 0,
                       Data::kOrdinary, ++seed});
      cases.push_back({codec, algorithm, Dtype::kFp16, ReduceOp::kSum, 8, 12'000'001, false, 0,
                       Data::kOrdinary, ++seed});
    }
  }
  RunCases(cases, report);
}

void CheckGoldenReductions(const std::string& folder, Report* report) {
  const std::string inputs = ReadText(folder + "/inputs.bin"),
                    results = ReadText(folder + "/results.bin");
  const auto index = nlohmann::json::parse(ReadText(folder + "/index.json"), nullptr, false);
  if (!report->Check(index.is_array(), folder + "/index.json is readable")) return;
  Communicators communicators;
  int records = 0;
  for (const auto& record : index) {
    if (record.at("test") != "reduce") continue;
    ReduceCase c;
    c.codec = ParseCodec(record.at("codec").get<std::string>()).value();
    c.dtype = ParseDtype(record.at("dtype").get<std::string>()).value();
    c.algorithm = ParseAlgorithm(record.at("algorithm").get<std::string>()).value();
    c.op = ParseReduceOp(record.at("op").get<std::string>()).value();
    c.world_size = record.at("ranks").get<uint32_t>();
    c.count = record.at("n").get<uint64_t>();
    const auto input = record.at("input").get<uint64_t>();
    const auto stride = record.at("stride").get<uint64_t>();
    const auto result = record.at("result").get<uint64_t>();
    ReduceCase empty = c;
    empty.count = 0;
    ReduceData data(empty);
    const auto* bytes = reinterpret_cast<const std::byte*>(inputs.data());
    for (uint32_t r = 0; r < c.world_size; ++r) {
      const std::byte* at = bytes + input + r * stride;
      data.inputs[r].assign(at, at + c.bytes());
    }
    const auto* want = reinterpret_cast<const std::byte*>(results.data()) + result;
    data.want.assign(want, want + c.bytes());
    const ReduceBuffers buffers(c);
    buffers.Upload(data);
    const Stream stream;
    const hipStream_t streams[] = {stream.get()};
    report->Check(communicators.Of(c.world_size, report).Launch(buffers.Params(), streams),
                  record.dump());
    stream.Wait();
    buffers.Check(data, "golden", report);
    ++records;
  }
  report->Check(records > 50, "golden reduce records: " + std::to_string(records));
}

// F08, F09, F10: bad calls are refused before a launch, in words.
void CheckErrors(Report* report) {
  const auto communicator = MakeCommunicator(2, report);
  ReduceCase c;
  c.count = 4096;
  const ReduceBuffers buffers(c);
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  const auto refuses = [&](const LaunchParams& params, const char* words) {
    const absl::Status status = communicator->Launch(params, streams);
    report->Check(!status.ok() && status.ToString().find(words) != std::string::npos,
                  std::string("want an error with '") + words + "', got " + status.ToString());
  };
  LaunchParams params = buffers.Params();
  params.world_size = 3;
  refuses(params, "world_size = 3: want 2");
  params = buffers.Params();
  params.codec = static_cast<Codec>(77);
  refuses(params, "codec = 77");
  params = buffers.Params();
  params.inputs[1] = nullptr;
  refuses(params, "inputs[1] = null");
  params = buffers.Params();
  params.inputs[1] = static_cast<const std::byte*>(params.inputs[1]) + 1;
  refuses(params, "inputs[1] is misaligned");
  params = buffers.Params();
  params.outputs[0] = const_cast<void*>(params.inputs[1]);
  refuses(params, "outputs[0] overlaps inputs[1]");
  params = buffers.Params();
  params.count = ~uint64_t{0};
  refuses(params, "count = ");
  const absl::Status status = communicator->Launch(buffers.Params(), {});
  report->Check(status.ToString().find("streams has 0: want 1") != std::string::npos,
                status.ToString());
  gpu::GpuCollective::Options options;
  options.device_of_rank = {0, 99};
  report->Check(!gpu::GpuCollective::Create(options).ok(), "a device that is not there");
  options.device_of_rank = {0, 0};
  options.pool_bytes_max = 1000;
  report->Check(gpu::GpuCollective::Create(options).status().ToString().find("pool_bytes_max") !=
                    std::string::npos,
                "a pool that is too small");
  const auto large = MakeCommunicator(8, report);
  report->Check(large->pool_bytes(0) <= uint64_t{128} << 20,
                "pool of " + std::to_string(large->pool_bytes(0)) + " bytes");
}

}  // namespace qrd::testing
