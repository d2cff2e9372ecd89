// SPDX-License-Identifier: Apache-2.0
// One all-reduce with known inputs and the result that the scalar reference gives.
//
// Thread safety: none; a case belongs to one thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "device_support.h"
#include "kernels/backend.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd::testing {

struct ReduceCase {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kFp16;
  ReduceOp op = ReduceOp::kSum;
  uint32_t world_size = 2;
  uint64_t count = 0;
  bool in_place = false;
  uint64_t offset = 0;  // elements, to misalign
  Data data = Data::kOrdinary;
  uint32_t seed = 1;

  uint64_t bytes() const { return count * DtypeBytes(dtype); }
  std::string Describe() const {
    return std::string(Name(codec)) + " " + std::string(Name(algorithm)) + " " +
           std::string(Name(dtype)) + " " + std::string(Name(op)) + " N " +
           std::to_string(world_size) + " count " + std::to_string(count) +
           (in_place ? " in place" : "") + " offset " + std::to_string(offset) + " seed " +
           std::to_string(seed);
  }
};

// Host side: inputs and the result.
struct ReduceData {
  std::vector<Bytes> inputs;
  Bytes want;
  uint64_t non_finite = 0;

  explicit ReduceData(const ReduceCase& c) : want(c.bytes()) {
    std::vector<const void*> pointers;
    for (uint32_t r = 0; r < c.world_size; ++r) {
      inputs.push_back(MakeTensor(c.dtype, c.count, c.data, c.seed * 131 + r));
      pointers.push_back(inputs.back().data());
    }
    ReferenceAllReduce(c.codec, c.algorithm, c.dtype, c.op, c.world_size, c.count, pointers.data(),
                       want.data());
    std::vector<float> values(c.count);
    ReferenceWidenToFp32(c.dtype, want.data(), c.count, values.data());
    for (const float value : values) non_finite += !std::isfinite(value);
  }
};

// Device side. `device_of_rank` may be empty: all on the current device.
class ReduceBuffers {
 public:
  explicit ReduceBuffers(const ReduceCase& c, const std::vector<int>& device_of_rank = {})
      : case_(c) {
    for (uint32_t r = 0; r < c.world_size; ++r) {
      if (!device_of_rank.empty()) QRD_MUST(hipSetDevice(device_of_rank[r]));
      const uint64_t offset = c.offset * DtypeBytes(c.dtype);
      inputs_.emplace_back(c.bytes(), offset);
      if (!c.in_place) outputs_.emplace_back(c.bytes(), offset);
    }
    if (!device_of_rank.empty()) QRD_MUST(hipSetDevice(0));
  }
  void Upload(const ReduceData& data) const {
    for (uint32_t r = 0; r < case_.world_size; ++r) inputs_[r].Upload(data.inputs[r].data());
  }
  LaunchParams Params() const {
    LaunchParams params;
    params.codec = case_.codec;
    params.algorithm = case_.algorithm;
    params.dtype = case_.dtype;
    params.op = case_.op;
    params.world_size = case_.world_size;
    params.count = case_.count;
    for (uint32_t r = 0; r < case_.world_size; ++r) {
      params.inputs[r] = inputs_[r].data();
      params.outputs[r] = Output(r).data();
    }
    return params;
  }
  const DeviceBuffer& Input(uint32_t rank) const { return inputs_[rank]; }
  const DeviceBuffer& Output(uint32_t rank) const {
    return (case_.in_place ? inputs_ : outputs_)[rank];
  }
  // All ranks have the result, and nothing else was written.
  void Check(const ReduceData& data, const std::string& what, Report* report) const {
    for (uint32_t r = 0; r < case_.world_size; ++r) {
      const std::string where = what + " " + case_.Describe() + " rank " + std::to_string(r);
      report->Check(Output(r).Download() == data.want, where);
      report->Check(Output(r).GuardsAreIntact(), "bytes around " + where);
      if (!case_.in_place) {
        report->Check(inputs_[r].Download() == data.inputs[r], "input of " + where);
      }
    }
  }

 private:
  const ReduceCase case_;
  std::vector<DeviceBuffer> inputs_, outputs_;
};

// The bound of waits of ranks that all come: under a tool that makes kernels slow
// QRD_TEST_WAIT_SECONDS says more.
inline uint64_t WaitNs() {
  const char* seconds = std::getenv("QRD_TEST_WAIT_SECONDS");
  return (seconds != nullptr ? std::strtoull(seconds, nullptr, 10) : 5) * 1'000'000'000;
}

inline std::unique_ptr<gpu::GpuCollective> MakeCommunicator(uint32_t world_size, Report* report,
                                                            uint64_t timeout_ns = WaitNs()) {
  gpu::GpuCollective::Options options;
  options.device_of_rank.assign(world_size, 0);
  options.timeout_ns = timeout_ns;
  auto made = gpu::GpuCollective::Create(options);
  if (!report->Check(made.status(), "communicator of " + std::to_string(world_size))) {
    std::exit(report->Finish());
  }
  return std::move(made).value();
}

}  // namespace qrd::testing
