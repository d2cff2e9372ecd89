// SPDX-License-Identifier: Apache-2.0
// The collectives in time: call after call, in graphs, with ranks late, missing or on other streams
// and devices.
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "conformance.h"
#include "reduce_case.h"

namespace qrd::testing {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A case with its data on host and device.
struct Prepared {
  explicit Prepared(const ReduceCase& a_case, const std::vector<int>& devices = {})
      : c(a_case), data(a_case), buffers(a_case, devices) {
    buffers.Upload(data);
  }
  ReduceCase c;
  ReduceData data;
  ReduceBuffers buffers;
};

}  // namespace

// F07, F13 of the field failures: shapes, codecs and dtypes change from call to call, nobody waits.
void CheckChangingShapes(int calls, Report* report) {
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    const auto communicator = MakeCommunicator(world_size, report);
    std::vector<std::unique_ptr<Prepared>> prepared;
    uint32_t seed = 50;
    for (const uint64_t count : {1'048'576u, 2'097'152u, 524'296u, 5u, 70'000u}) {
      for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp3}) {
        const bool odd = ++seed % 2 != 0;
        prepared.push_back(std::make_unique<Prepared>(
            ReduceCase{codec, odd ? Algorithm::kTwoShot : Algorithm::kOneShot,
                       seed % 3 == 0 ? Dtype::kFp32 : Dtype::kBf16, ReduceOp::kSum, world_size,
                       count / (world_size / 2), false, 0, Data::kOrdinary, seed}));
      }
    }
    const Stream stream;
    const hipStream_t streams[] = {stream.get()};
    std::mt19937 random(7);
    for (int call = 0; call < calls; ++call) {
      const Prepared& p = *prepared[random() % prepared.size()];
      if (!communicator->Launch(p.buffers.Params(), streams).ok()) break;
    }
    for (const auto& p : prepared) {
      report->Check(communicator->Launch(p->buffers.Params(), streams), "the last call");
    }
    stream.Wait();
    report->Check(communicator->Health(), "after changing shapes");
    report->Check(communicator->finished_operations(0) == calls + prepared.size(),
                  "finished operations: " + std::to_string(communicator->finished_operations(0)));
    for (const auto& p : prepared) p->buffers.Check(p->data, "changing shapes", report);
  }
}

// F13, F14: every replay is right for its own input, also after an eager call in between.
void CheckGraphReplays(int replays, Report* report) {
  for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp4}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (const uint32_t world_size : {2u, 8u}) {
        const auto communicator = MakeCommunicator(world_size, report);
        ReduceCase c{codec, algorithm, Dtype::kFp16, ReduceOp::kSum, world_size, 30'011};
        std::vector<ReduceData> data;
        for (uint32_t i = 0; i < 5; ++i) {
          c.seed = 900 + i;
          data.emplace_back(c);
        }
        const ReduceBuffers buffers(c);
        const Stream stream;
        const hipStream_t streams[] = {stream.get()};
        const Graph graph(stream, [&] {
          for (int i = 0; i < 3; ++i) {
            report->Check(communicator->Launch(buffers.Params(), streams), "capture");
          }
        });
        bool right = true;
        for (int replay = 0; replay < replays; ++replay) {
          const ReduceData& now = data[static_cast<size_t>(replay) % data.size()];
          buffers.Upload(now);
          if (replay % 7 == 3) {
            right = communicator->Launch(buffers.Params(), streams).ok() && right;
          }
          graph.Replay(stream);
          stream.Wait();
          right = buffers.Output(world_size - 1).Download() == now.want && right;
        }
        report->Check(right, std::to_string(replays) + " replays of " + c.Describe());
        report->Check(communicator->Health(), c.Describe());
      }
    }
  }
}

// A rank that never comes ends the wait, is named, and the communicator works again after Reset().
void CheckMissingRank(Report* report) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const Codec codec : {Codec::kInt6, Codec::kNone}) {
      const auto communicator = MakeCommunicator(3, report, 50'000'000);
      const Prepared p(ReduceCase{codec, algorithm, Dtype::kBf16, ReduceOp::kSum, 3, 5'000'000});
      const Stream stream;
      const hipStream_t streams[] = {stream.get()};
      const double start = Seconds();
      report->Check(communicator->LaunchRanks(p.buffers.Params(), 0b101, streams), "launch");
      stream.Wait();
      report->Check(Seconds() - start < 2, "the wait was bounded");
      const absl::Status health = communicator->Health();
      report->Check(health.ToString().find("for rank 1") != std::string::npos,
                    "the missing rank is named: " + health.ToString());
      const absl::Status refused = communicator->Launch(p.buffers.Params(), streams);
      report->Check(refused.code() == absl::StatusCode::kFailedPrecondition, refused.ToString());
      report->Check(communicator->Reset(), "reset");
      p.buffers.Upload(p.data);
      report->Check(communicator->Launch(p.buffers.Params(), streams), "after reset");
      stream.Wait();
      report->Check(communicator->Health(), "after reset");
      p.buffers.Check(p.data, "after reset", report);
    }
  }
}

void CheckAbort(Report* report) {
  const auto communicator = MakeCommunicator(2, report, 60'000'000'000);
  const Prepared p(
      ReduceCase{Codec::kInt4, Algorithm::kTwoShot, Dtype::kFp16, ReduceOp::kSum, 2, 100'000});
  const Stream stream;
  const hipStream_t streams[] = {stream.get()};
  const double start = Seconds();
  report->Check(communicator->LaunchRanks(p.buffers.Params(), 0b01, streams), "launch");
  report->Check(hipStreamQuery(stream.get()) == hipErrorNotReady, "rank 0 waits for rank 1");
  (void)hipGetLastError();
  communicator->Abort();
  stream.Wait();
  report->Check(Seconds() - start < 2, "the abort released the stream");
  report->Check(communicator->Health().code() == absl::StatusCode::kAborted, "aborted");
}

// As on several devices: each rank on its own stream, in one order, with delays between them (F16,
// F17).
void CheckSeparateLaunches(Report* report) {
  for (const uint32_t world_size : {2u, 4u}) {
    const auto communicator = MakeCommunicator(world_size, report);
    std::vector<std::unique_ptr<Prepared>> prepared;
    uint32_t seed = 300;
    for (const Codec codec : {Codec::kInt4, Codec::kNone, Codec::kLp2}) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        prepared.push_back(std::make_unique<Prepared>(ReduceCase{
            codec, algorithm, Dtype::kBf16, ReduceOp::kSum, world_size,
            codec == Codec::kNone ? 3'000'001u : 200'000u, false, 0, Data::kOrdinary, ++seed}));
      }
    }
    std::vector<std::unique_ptr<Stream>> of_rank;
    for (uint32_t r = 0; r < world_size; ++r) of_rank.push_back(std::make_unique<Stream>());
    const DeviceBuffer junk(64 << 20);
    std::mt19937 random(3);
    for (int call = 0; call < 300; ++call) {
      const Prepared& p = *prepared[static_cast<size_t>(call) % prepared.size()];
      for (uint32_t r = 0; r < world_size; ++r) {
        if (random() % 3 == 0) {  // work in front of the rank
          QRD_MUST(hipMemsetAsync(junk.data(), static_cast<int>(r), random() % junk.bytes(),
                                  of_rank[r]->get()));
        }
        const hipStream_t streams[] = {of_rank[r]->get()};
        report->Check(communicator->LaunchRanks(p.buffers.Params(), 1u << r, streams), "launch");
      }
      if (call >= 300 - static_cast<int>(prepared.size())) {
        for (const auto& stream : of_rank) stream->Wait();
        p.buffers.Check(p.data, "ranks apart", report);
      }
    }
    report->Check(communicator->Health(), "ranks apart");
  }
}

void CheckTwoCommunicators(Report* report) {
  const auto first = MakeCommunicator(2, report), second = MakeCommunicator(4, report);
  const Prepared a(
      ReduceCase{Codec::kInt8, Algorithm::kTwoShot, Dtype::kFp16, ReduceOp::kSum, 2, 3'000'000});
  const Prepared b(
      ReduceCase{Codec::kFp8, Algorithm::kTwoShot, Dtype::kBf16, ReduceOp::kAvg, 4, 3'000'000});
  const Stream stream_a, stream_b;
  const hipStream_t streams_a[] = {stream_a.get()}, streams_b[] = {stream_b.get()};
  for (int call = 0; call < 200; ++call) {
    report->Check(first->Launch(a.buffers.Params(), streams_a), "first");
    report->Check(second->Launch(b.buffers.Params(), streams_b), "second");
  }
  stream_a.Wait();
  stream_b.Wait();
  report->Check(first->Health(), "first");
  report->Check(second->Health(), "second");
  a.buffers.Check(a.data, "two communicators", report);
  b.buffers.Check(b.data, "two communicators", report);
}

void CheckManyDevices(Report* report) {
  int device_count = 0;
  QRD_MUST(hipGetDeviceCount(&device_count));
  if (device_count < 2) {
    std::printf("one device: not run\n");
    return;
  }
  for (const uint32_t world_size : {2u, 3u, 4u, 8u}) {
    gpu::GpuCollective::Options options;
    for (uint32_t r = 0; r < world_size; ++r) {
      options.device_of_rank.push_back(static_cast<int>(r) % device_count);
    }
    auto made = gpu::GpuCollective::Create(options);
    if (!report->Check(made.status(), "communicator on several devices")) return;
    gpu::GpuCollective& communicator = **made;
    std::vector<std::unique_ptr<Stream>> owned;
    std::vector<hipStream_t> streams;
    for (const int device : communicator.devices()) {
      QRD_MUST(hipSetDevice(device));
      owned.push_back(std::make_unique<Stream>());
      streams.push_back(owned.back()->get());
    }
    QRD_MUST(hipSetDevice(0));
    uint32_t seed = 700;
    for (const Codec codec : kAllCodecs) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        const Prepared p(ReduceCase{codec, algorithm, seed % 2 != 0 ? Dtype::kBf16 : Dtype::kFp16,
                                    ReduceOp::kSum, world_size, 700'001, seed % 3 == 0, 0,
                                    Data::kOrdinary, ++seed},
                         options.device_of_rank);
        report->Check(communicator.Launch(p.buffers.Params(), streams), p.c.Describe());
        for (const auto& stream : owned) stream->Wait();
        report->Check(communicator.Health(), p.c.Describe());
        p.buffers.Check(p.data, "several devices", report);
      }
    }
  }
}

}  // namespace qrd::testing
