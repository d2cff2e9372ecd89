// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm in time: graphs, ranks late or missing, inputs overwritten, bad calls.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "conformance.h"
#include "reduce_case.h"
#include "rms_norm_case.h"

namespace qrd::testing {
namespace {

using Tensors = RmsNormTensors<DeviceBuffer>;

Tensors::Check CheckOf(Report* report) {
  return [report](bool passed, const std::string& what) { report->Check(passed, what); };
}

}  // namespace

// The first (cold) replay and later ones, each with other inputs, with an eager call and a call of
// another shape in between.
void CheckRmsNormReplays(int replays, Report* report) {
  for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp4}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const uint32_t world_size : {2u, 8u}) {
        const auto communicator = MakeCommunicator(world_size, report);
        const RmsNormOptions options{.quant = Quant::kE4m3fn, .mirror = true};
        RmsNormShape shape{codec, algorithm, Dtype::kBf16, world_size, 37, 2880};
        // Also sharded, which is two_shot.
        shape.sharded = algorithm == Algorithm::kTwoShot && world_size == 8 && codec != Codec::kLp4;
        std::vector<std::unique_ptr<RmsNormData>> data;
        for (uint32_t i = 0; i < 4; ++i) {
          shape.seed = 900 + i;
          data.push_back(std::make_unique<RmsNormData>(shape));
        }
        const Tensors tensors(shape);
        const ReduceCase other_case{codec,          algorithm,  Dtype::kFp16,
                                    ReduceOp::kSum, world_size, 9'001};
        const ReduceData other_data(other_case);
        const ReduceBuffers other(other_case);
        other.Upload(other_data);
        const Stream stream;
        const hipStream_t streams[] = {stream.get()};
        const Graph graph(stream, [&] {
          for (int i = 0; i < 3; ++i) {
            report->Check(communicator->Launch(tensors.Params(options), streams), "capture");
          }
        });
        for (int replay = 0; replay < replays; ++replay) {
          const RmsNormData& now = *data[static_cast<size_t>(replay) % data.size()];
          tensors.Upload(now, options);
          if (replay % 5 == 3) {
            report->Check(communicator->Launch(tensors.Params(options), streams), "eager");
          }
          if (replay % 3 == 1) {
            report->Check(communicator->Launch(other.Params(), streams), "another operation");
          }
          graph.Replay(stream);
          stream.Wait();
          tensors.CheckResults(now, options, "replay " + std::to_string(replay), CheckOf(report));
        }
        report->Check(communicator->Health(), shape.Describe());
      }
    }
  }
}

// Every rank on its own stream, with work in front of it; outputs over input and residual; the
// input is overwritten as soon as the rank is done.
void CheckRmsNormLateRanks(Report* report) {
  for (const uint32_t world_size : {2u, 4u}) {
    const auto communicator = MakeCommunicator(world_size, report);
    std::vector<std::unique_ptr<Stream>> of_rank;
    for (uint32_t r = 0; r < world_size; ++r) of_rank.push_back(std::make_unique<Stream>());
    const DeviceBuffer junk(64 << 20);
    std::mt19937 random(3);
    uint32_t seed = 40;
    for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp2}) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        RmsNormShape shape{codec, algorithm, Dtype::kBf16, world_size, 61, 6160, ++seed};
        shape.residuals_differ = true;
        shape.sharded =
            algorithm == Algorithm::kTwoShot && world_size == 4 && codec != Codec::kInt4;
        const RmsNormData data(shape);
        const Tensors tensors(shape);
        for (int call = 0; call < 12; ++call) {
          RmsNormOptions options{.residual_out_in_place = true};
          options.norm_over_input = call % 2 == 0;
          if (call % 4 >= 2) options.quant = Quant::kE4m3fn, options.mirror = true;
          tensors.Upload(data, options);
          const LaunchParams params = tensors.Params(options);
          for (uint32_t r = 0; r < world_size; ++r) {
            if (random() % 2 == 0) {
              QRD_MUST(hipMemsetAsync(junk.data(), static_cast<int>(r), random() % junk.bytes(),
                                      of_rank[r]->get()));
            }
            const hipStream_t streams[] = {of_rank[r]->get()};
            report->Check(communicator->LaunchRanks(params, 1u << r, streams), "launch");
            if (options.norm_over_input) continue;
            QRD_MUST(hipMemsetAsync(tensors.Input(r).data(), 0xFF, tensors.Input(r).bytes(),
                                    of_rank[r]->get()));
          }
          for (const auto& stream : of_rank) stream->Wait();
          for (uint32_t r = 0; r < world_size && !options.norm_over_input; ++r) {
            tensors.Input(r).Upload(data.input(r).data());
          }
          tensors.CheckResults(data, options, "late ranks", CheckOf(report));
        }
      }
    }
    report->Check(communicator->Health(), "late ranks");
  }
}

// A rank that never comes ends the wait; after Reset() rows are counted from the start again.
void CheckRmsNormMissingRank(Report* report) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kInt6, Codec::kInt4, Codec::kNone}) {
      const auto communicator = MakeCommunicator(3, report, 50'000'000);
      RmsNormShape shape{codec, algorithm, Dtype::kBf16, 3, 900, 6160, 1};
      shape.sharded = algorithm == Algorithm::kTwoShot && codec == Codec::kInt6;
      const RmsNormData data(shape);
      const RmsNormOptions options{.quant = Quant::kE4m3fn};
      const Tensors tensors(shape);
      tensors.Upload(data, options);
      const Stream stream;
      const hipStream_t streams[] = {stream.get()};
      report->Check(communicator->LaunchRanks(tensors.Params(options), 0b101, streams), "launch");
      stream.Wait();
      const absl::Status health = communicator->Health();
      report->Check(health.ToString().find("for rank 1") != std::string::npos,
                    "the missing rank is named: " + health.ToString());
      report->Check(communicator->Reset(), "reset");
      tensors.Upload(data, options);
      report->Check(communicator->Launch(tensors.Params(options), streams), "after reset");
      stream.Wait();
      tensors.CheckResults(data, options, "after reset", CheckOf(report));
    }
  }
}

// Sums that fit into the wire pool, in one turn of the blocks and in many, and a pool that has no
// room for them: the same bytes. An all-reduce comes between, which leaves the pool alone.
void CheckRmsNormWirePools(Report* report) {
  const auto first = MakeCommunicator(4, report);
  gpu::GpuCollective::Options options;
  options.device_of_rank.assign(4, 0);
  options.timeout_ns = WaitNs();
  report->Check(first->wire_pool_bytes() >= uint64_t{16} << 20,
                "wire pool of " + std::to_string(first->wire_pool_bytes()) + " bytes");
  const uint64_t without = first->pool_bytes(0) - first->wire_pool_bytes();
  uint32_t seed = 80;
  for (const auto& [blocks_max, pool_bytes] :
       {std::pair<uint32_t, uint64_t>{gpu::kBlocksPerRankMax, without}, {2, uint64_t{128} << 20}}) {
    options.blocks_max = blocks_max;
    options.pool_bytes_max = pool_bytes;
    auto made = gpu::GpuCollective::Create(options);
    if (!report->Check(made.status(), "communicator")) return;
    report->Check(((*made)->wire_pool_bytes() == 0) == (pool_bytes == without), "wire pool");
    for (const Codec codec : {Codec::kInt8, Codec::kLp3, Codec::kNone}) {
      RmsNormShape shape{codec, Algorithm::kTwoShot, Dtype::kFp16, 4, 401, 2880, ++seed};
      shape.residuals_differ = true;
      const RmsNormData data(shape);
      const Tensors tensors(shape);
      const ReduceCase other_case{codec, Algorithm::kTwoShot, Dtype::kBf16, ReduceOp::kSum, 4,
                                  9'001};
      const ReduceData other_data(other_case);
      const ReduceBuffers other(other_case);
      other.Upload(other_data);
      const RmsNormOptions kind{.quant = Quant::kE4m3fn, .mirror = true};
      const Stream stream;
      const hipStream_t streams[] = {stream.get()};
      for (const auto& communicator : {first.get(), made->get()}) {
        tensors.Upload(data, kind);
        report->Check(communicator->Launch(tensors.Params(kind), streams), "launch");
        report->Check(communicator->Launch(other.Params(), streams), "another operation");
        stream.Wait();
        tensors.CheckResults(data, kind, "wire pool", CheckOf(report));
      }
    }
  }
}

// A rank a launch, with work in front of it: two operations after each other without a wait, so
// that the second one's sums come while the first one's rows are read. What the pool had before is
// from a third one: rows that begin too early show.
void CheckRmsNormWirePoolsApart(Report* report) {
  const auto communicator = MakeCommunicator(4, report);
  const Stream of_rank[4];
  const DeviceBuffer junk(64 << 20);
  std::mt19937 random(5);
  for (const Codec codec : {Codec::kInt4, Codec::kNone}) {
    const RmsNormOptions kind{.quant = Quant::kE4m3fn, .mirror = true};
    std::vector<std::unique_ptr<RmsNormData>> data;
    std::vector<std::unique_ptr<Tensors>> tensors;
    for (uint32_t seed = 90; seed < 93; ++seed) {
      RmsNormShape shape{codec, Algorithm::kTwoShot, Dtype::kBf16, 4, 401, 2880, seed};
      data.push_back(std::make_unique<RmsNormData>(shape));
      tensors.push_back(std::make_unique<Tensors>(shape));
    }
    const auto launch = [&](const Tensors& of) {
      for (uint32_t r = 0; r < 4; ++r) {
        const hipStream_t streams[] = {of_rank[r].get()};
        QRD_MUST(hipMemsetAsync(junk.data(), static_cast<int>(r), random() % junk.bytes(),
                                of_rank[r].get()));
        report->Check(communicator->LaunchRanks(of.Params(kind), 1u << r, streams), "launch apart");
      }
    };
    for (int round = 0; round < 12; ++round) {
      for (size_t i = 0; i < data.size(); ++i) tensors[i]->Upload(*data[i], kind);
      launch(*tensors[2]);
      for (const Stream& each : of_rank) each.Wait();
      launch(*tensors[0]);
      launch(*tensors[1]);
      for (const Stream& each : of_rank) each.Wait();
      for (size_t i = 0; i < data.size(); ++i) {
        tensors[i]->CheckResults(*data[i], kind, "launched apart", CheckOf(report));
      }
    }
  }
  report->Check(communicator->Health(), "launched apart");
}

void CheckRmsNormErrors(Report* report) {
  const auto communicator = MakeCommunicator(2, report);
  const RmsNormShape shape{Codec::kNone, Algorithm::kTwoShot, Dtype::kBf16, 2, 4, 64, 1};
  const Tensors tensors(shape);
  const RmsNormOptions options{.quant = Quant::kE4m3fn};
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  const auto refuses = [&](const LaunchParams& params, const char* words) {
    const absl::Status status = communicator->Launch(params, streams);
    report->Check(!status.ok() && status.ToString().find(words) != std::string::npos,
                  std::string("want an error with '") + words + "', got " + status.ToString());
  };
  LaunchParams params = tensors.Params(options);
  params.rms_norm.hidden = 60;
  refuses(params, "hidden = 60");
  params = tensors.Params(options);
  params.dtype = Dtype::kFp32;
  refuses(params, "dtype = fp32");
  params = tensors.Params(options);
  params.rms_norm.eps = 0;
  refuses(params, "eps = 0");
  params = tensors.Params(options);
  params.algorithm = Algorithm::kOneShot;
  params.rms_norm.residual_layout = ResidualLayout::kSharded;
  refuses(params, "algorithm = one_shot");
  params = tensors.Params(options);
  params.rms_norm.weight[1] = nullptr;
  refuses(params, "weight[1] = null");
  params = tensors.Params(options);
  params.rms_norm.out8[0] = static_cast<uint8_t*>(const_cast<void*>(params.inputs[1]));
  refuses(params, "overlaps");
  params = tensors.Params(options);
  params.world_size = 3;
  refuses(params, "world_size = 3");
  params = tensors.Params(options);
  params.codec = static_cast<Codec>(77);
  refuses(params, "codec = 77");
  params = tensors.Params(options);
  params.epilogue = static_cast<Epilogue>(9);
  refuses(params, "epilogue = 9");
}

}  // namespace qrd::testing
