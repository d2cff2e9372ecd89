// SPDX-License-Identifier: Apache-2.0
// Gloo's all-reduce of fp32 sums over loopback TCP (its only transport in Debian), timed as in
// timing.h.
//
//   gloo_all_reduce FOLDER SECONDS BYTES...
//
// Forks its second rank; FOLDER is empty and holds the rendezvous. Prints "bytes p50_us p99_us
// samples" for each size.
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "timing.h"

namespace {

constexpr int kWorldSize = 2;

void AllReduce(const std::shared_ptr<gloo::Context>& context, std::vector<float>& input,
               std::vector<float>& output) {
  gloo::AllreduceOptions options(context);
  options.setInput(input.data(), input.size());
  options.setOutput(output.data(), output.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  options.setTimeout(std::chrono::seconds(30));
  gloo::allreduce(options);
}

// Rank 0's number of samples.
int Agree(const std::shared_ptr<gloo::Context>& context, int count) {
  gloo::BroadcastOptions options(context);
  options.setOutput(&count, 1);
  options.setRoot(0);
  gloo::broadcast(options);
  return count;
}

void Measure(const std::shared_ptr<gloo::Context>& context, size_t bytes, double seconds) {
  const size_t count = bytes / sizeof(float);
  const int buffers = BufferCount(bytes);
  const std::vector<float> mine(count, static_cast<float>(context->rank + 1));
  std::vector<std::vector<float>> input(buffers, mine), output(buffers, std::vector<float>(count));
  std::vector<double> samples(kWarmup);
  const auto run = [&] {
    for (size_t i = 0; i < samples.size(); ++i) {
      const double start = NowSeconds();
      AllReduce(context, input[i % buffers], output[i % buffers]);
      samples[i] = NowSeconds() - start;
    }
  };
  run();
  CheckResult(output[0].data(), count, kWorldSize);
  samples.resize(Agree(context, SampleCount(seconds, samples.data())));
  run();
  if (context->rank == 0) PrintResult(bytes, samples.data(), static_cast<int>(samples.size()));
}

int RunRank(int rank, const std::string& folder, double seconds, const std::vector<size_t>& sizes) {
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = "localhost";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, kWorldSize);
    gloo::rendezvous::FileStore store(folder);
    context->connectFullMesh(store, device);
    for (size_t bytes : sizes) Measure(context, bytes, seconds);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gloo rank %d: %s\n", rank, e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: gloo_all_reduce FOLDER SECONDS BYTES...\n");
    return 2;
  }
  std::vector<size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  const pid_t child = fork();
  if (child < 0) return 1;
  const int status = RunRank(child == 0 ? 1 : 0, argv[1], std::strtod(argv[2], nullptr), sizes);
  if (child == 0) _exit(status);
  int child_status = 0;
  waitpid(child, &child_status, 0);
  return status != 0 || child_status != 0;
}
