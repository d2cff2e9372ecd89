// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/served_fixture.h"

#include <cstdlib>
#include <exception>

namespace qrd::testing {
namespace {

Options RankOptions(const std::string& runtime_directory, uint32_t rank, uint32_t world_size,
                    const std::string& communicator, const std::string& group) {
  int devices = 1;
  const char* spread = std::getenv("QRD_TEST_SPREAD_RANKS");
  if (spread != nullptr && std::string(spread) == "1") QRD_MUST(hipGetDeviceCount(&devices));
  // The runtime's context of the device becomes the thread's.
  QRD_MUST(hipSetDevice(static_cast<int>(rank) % devices));
  QRD_MUST(hipFree(nullptr));
  Options options;
  options.runtime_directory = runtime_directory;
  options.communicator = communicator;
  options.group = group;
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = std::chrono::seconds(60);
  options.device = "current";
  return options;
}

}  // namespace

ServedRank::ServedRank(const std::string& runtime_directory, uint32_t rank, uint32_t world_size,
                       const std::string& communicator, const std::string& group)
    : comm(RankOptions(runtime_directory, rank, world_size, communicator, group)) {}

void ServedRank::AllReduce(const Bytes& input, void* in, void* out, uint64_t count, Dtype dtype,
                           ReduceOp op) {
  QRD_MUST(hipMemcpyAsync(in, input.data(), input.size(), hipMemcpyHostToDevice, stream.get()));
  comm.AllReduceOnStream(in, out, count, static_cast<qrd_dtype>(dtype),
                         static_cast<qrd_reduce_op>(op), stream.get());
}

Bytes ServedRank::Download(const void* from, uint64_t bytes) {
  Bytes to(bytes);
  QRD_MUST(hipMemcpyAsync(to.data(), from, bytes, hipMemcpyDeviceToHost, stream.get()));
  stream.Wait();
  return to;
}

Bytes Expected(Codec codec, Algorithm algorithm, Dtype dtype, ReduceOp op,
               const std::vector<Bytes>& inputs, uint64_t count) {
  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes result(count * DtypeBytes(dtype));
  ReferenceAllReduce(codec, algorithm, dtype, op, static_cast<uint32_t>(inputs.size()), count,
                     pointers.data(), result.data());
  return result;
}

std::vector<Bytes> Tensors(Dtype dtype, uint64_t count, uint32_t world_size, uint32_t seed) {
  std::vector<Bytes> tensors;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    tensors.push_back(MakeTensor(dtype, count, Data::kOrdinary, seed * kWorldSizeMax + rank));
  }
  return tensors;
}

std::string Difference(const Bytes& got, const Bytes& want) {
  if (got.size() != want.size()) return "another size";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) return "byte " + std::to_string(i) + " differs";
  }
  return "";
}

RankProcesses::Body Guarded(std::function<std::string(RankProcess&)> body) {
  return [body = std::move(body)](RankProcess& self) -> std::string {
    try {
      return body(self);
    } catch (const std::exception& error) {
      return error.what();
    }
  };
}

uint64_t ServedTest::FreeDeviceBytes() {
  RankProcesses probe(1, [](RankProcess& self) {
    size_t free = 0, total = 0;
    if (hipMemGetInfo(&free, &total) != hipSuccess) free = 0;
    self.Report(std::to_string(free));
    return std::string();
  });
  return std::strtoull(probe.AwaitReport(0).c_str(), nullptr, 10);
}

void ServedTest::SetUp() {
  if (FreeDeviceBytes() == 0) GTEST_SKIP() << "no GPU that this build can use";
  ASSERT_EQ(daemon_.Start({"--gpu", "required"}), "");
}

std::string RunCtl(const std::string& runtime_directory, const std::string& arguments) {
  const char* program = std::getenv("QRD_QRCTL_EXECUTABLE");
  const std::string command = std::string(program != nullptr ? program : QRD_QRCTL_EXECUTABLE) +
                              " --runtime-directory " + runtime_directory + " " + arguments +
                              " >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  return status == 0 ? "" : command + ": " + std::to_string(status);
}

std::string ServedTest::Ctl(const std::string& arguments) const {
  return RunCtl(directory(), arguments);
}

void ServedTest::SetPolicy(const std::string& codec, const std::string& algorithm) {
  ASSERT_EQ(Ctl("policy set --codec " + codec + " --algorithm " + algorithm), "");
}

}  // namespace qrd::testing
