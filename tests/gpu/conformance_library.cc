// SPDX-License-Identifier: Apache-2.0
// The vendor's collective library, if this machine has one: how it is refused, and its sums over
// every device, one rank on each. QRD_TEST_COLLECTIVE_LIBRARY names its file, else the usual names
// are tried.
#include <array>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "conformance.h"
#include "kernels/gpu/collective_library.h"
#include "kernels/reference.h"

namespace qrd::testing {
namespace {

using gpu::CollectiveLibrary;
using gpu::LibraryCommunicator;

void CheckRefusals(Report* report) {
  const auto refusal = [](const char* which) {
    return CollectiveLibrary::Load(which).status().ToString();
  };
  const auto has = [&](const std::string& text, const char* part) {
    report->Check(text.find(part) != std::string::npos, "\"" + text + "\" has no \"" + part + "\"");
  };
  has(refusal("off"), "FAILED_PRECONDITION: collective_library is off");
  has(refusal("/nonexistent/libnccl.so"), "NOT_FOUND: /nonexistent/libnccl.so");
  has(refusal("libm.so.6"), "FAILED_PRECONDITION: the collective library has no function ");
  has(refusal("libm.so.6"), "ncclAllReduce");
}

// Whole numbers below 4: sums and averages of up to 16 are exact in every dtype, in any order.
std::vector<std::byte> MakeInput(Dtype dtype, uint64_t count, uint32_t rank) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7 + rank * 5) % 4);
  std::vector<std::byte> tensor(count * DtypeBytes(dtype));
  ReferenceRoundToDtype(dtype, values.data(), count, tensor.data());
  return tensor;
}

struct LibraryCase {
  Dtype dtype;
  ReduceOp op;
  uint64_t count;
  bool in_place;
  std::string Describe() const {
    return std::string(Name(dtype)) + " " + std::string(Name(op)) + " count " +
           std::to_string(count) + (in_place ? " in place" : "");
  }
};

void CheckSums(LibraryCommunicator* communicator, const LibraryCase& c,
               const std::vector<std::unique_ptr<Stream>>& streams, Report* report) {
  const auto ranks = static_cast<uint32_t>(streams.size());
  LaunchParams params;
  params.algorithm = Algorithm::kLibrary;
  params.dtype = c.dtype;
  params.op = c.op;
  params.world_size = ranks;
  params.count = c.count;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<DeviceBuffer> buffers;
  std::vector<hipStream_t> handles;
  for (uint32_t r = 0; r < ranks; ++r) {
    QRD_MUST(hipSetDevice(static_cast<int>(r)));
    inputs.push_back(MakeInput(c.dtype, c.count, r));
    for (int side = 0; side < 2; ++side) buffers.emplace_back(inputs[r].size());
    buffers[2 * r].Upload(inputs[r].data());
    params.inputs[r] = buffers[2 * r].data();
    params.outputs[r] = buffers[2 * r + (c.in_place ? 0 : 1)].data();
    handles.push_back(streams[r]->get());
  }
  QRD_MUST(hipSetDevice(0));
  if (!report->Check(communicator->AllReduce(params, handles), c.Describe())) return;
  for (const auto& stream : streams) stream->Wait();
  int device = -1;
  QRD_MUST(hipGetDevice(&device));
  report->Check(device == 0, "the current device stays");
  std::array<const void*, kWorldSizeMax> pointers = {};
  for (uint32_t r = 0; r < ranks; ++r) pointers[r] = inputs[r].data();
  std::vector<std::byte> want = inputs[0];
  if (ranks > 1) {
    ReferenceAllReduce(Codec::kNone, Algorithm::kOneShot, c.dtype, c.op, ranks, c.count,
                       pointers.data(), want.data());
  }
  for (uint32_t r = 0; r < ranks; ++r) {
    const DeviceBuffer& output = buffers[2 * r + (c.in_place ? 0 : 1)];
    report->Check(output.Download() == want && output.GuardsAreIntact(),
                  "rank " + std::to_string(r) + " of " + c.Describe());
  }
}

}  // namespace

void CheckCollectiveLibrary(Report* report) {
  CheckRefusals(report);
  const char* named = std::getenv("QRD_TEST_COLLECTIVE_LIBRARY");
  const auto library = CollectiveLibrary::Load(named != nullptr ? named : "auto");
  if (!library.ok() && named == nullptr) {
    std::printf("no collective library: not run\n");
    return;
  }
  if (!report->Check(library.status(), "load")) return;
  int device_count = 0;
  QRD_MUST(hipGetDeviceCount(&device_count));
  std::vector<int> devices(std::min<size_t>(static_cast<size_t>(device_count), kWorldSizeMax));
  std::iota(devices.begin(), devices.end(), 0);
  std::printf("%s, ranks: %zu\n", (*library)->version().c_str(), devices.size());
  // One device twice is what it refuses: then it is not offered.
  report->Check(!LibraryCommunicator::Create(library->get(), {0, 0}).ok(),
                "two ranks on a device are refused");
  auto communicator = LibraryCommunicator::Create(library->get(), devices);
  if (!report->Check(communicator.status(), "communicator")) return;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const int device : devices) {
    QRD_MUST(hipSetDevice(device));
    streams.push_back(std::make_unique<Stream>());
  }
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const uint64_t count : {0u, 1u, 1000u, 1'000'003u}) {
        CheckSums(communicator->get(), {dtype, op, count, count % 2 == 0}, streams, report);
      }
    }
  }
}

}  // namespace qrd::testing
