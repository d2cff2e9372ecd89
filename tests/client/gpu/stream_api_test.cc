// SPDX-License-Identifier: Apache-2.0
// qrd_all_reduce_on_stream from the call to the result: order, staging, graphs, failures, the end.
#include <atomic>

#include "tests/client/gpu/device_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class StreamApiTest : public DeviceTest {
 protected:
  // Captures one operation on x; the graph.
  int Capture(float* x, size_t count) {
    gpu_->BeginCapture(stream_);
    EXPECT_EQ(Enqueue(x, count), "");
    const int graph = gpu_->EndCapture(stream_);
    EXPECT_NE(graph, 0) << "the capture was spoilt";
    return graph;
  }
};

TEST_F(StreamApiTest, MemoryOfTheDaemonIsReducedInTheStreamsOrder) {
  AttachDevice();
  float* const x = Floats(1000);
  ASSERT_EQ(Enqueue(x, 1000), "");
  EXPECT_TRUE(Silent());
  x[999] = 7;  // by what is on the stream before the operation
  EXPECT_FALSE(gpu_->Run(stream_));
  const shm::Descriptor seen = Serve();
  EXPECT_EQ(Tensor(seen.input), x);
  EXPECT_EQ(seen.count, 1000u);
  EXPECT_EQ(seen.dtype, shm::Dtype::kFp32);
  EXPECT_EQ(seen.op, shm::ReduceOp::kSum);
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_EQ(x[999], 7 + kAdded);
  const qrd_op_stats stats = LastStats();
  EXPECT_EQ(operations_, 1u);
  EXPECT_EQ(stats.status, QRD_OK);
  EXPECT_EQ(stats.sequence, 1u);
  EXPECT_EQ(stats.codec, QRD_CODEC_INT4);
  EXPECT_EQ(stats.staged, 0);
  EXPECT_EQ(AsyncError(), "");
}

TEST_F(StreamApiTest, OtherMemoryIsStagedOnTheStream) {
  AttachDevice();
  float* const in = Own(1000);
  float* const out = Own(1000);
  ASSERT_EQ(Enqueue(in, out, 1000, stream_), "");
  in[999] = 7;
  EXPECT_FALSE(gpu_->Run(stream_));
  in[999] = 8;  // too late
  Serve();
  EXPECT_EQ(out[999], 0);
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_EQ(out[999], 7 + kAdded);
  EXPECT_NE(LastStats().staged, 0);
}

TEST_F(StreamApiTest, EveryWayToOrderDoesTheSame) {
  for (const char* gate : {"batch", "memory", "kernel"}) {
    setenv("QRD_GPU_GATE", gate, 1);
    const int launches = gpu_->gate_launches();
    AttachDevice();
    float* const x = Own(10);
    ASSERT_EQ(Enqueue(x, 10), "") << gate;
    RunOne();
    EXPECT_EQ(x[9], kAdded) << gate;
    EXPECT_EQ(gpu_->gate_launches() > launches, std::string(gate) == "kernel") << gate;
    EXPECT_EQ(qrd_comm_finalize(comm_), QRD_OK);
    comm_ = nullptr;
  }
}

TEST_F(StreamApiTest, OperationsOfTwoStreamsHappenInTheOrderOfTheCalls) {
  AttachDevice();
  void* const other = gpu_->NewStream();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, x, 10, stream_), "");
  ASSERT_EQ(Enqueue(x, x, 9, other), "");
  EXPECT_FALSE(gpu_->Run(other));
  EXPECT_TRUE(Silent());
  EXPECT_FALSE(gpu_->Run(stream_));
  EXPECT_EQ(Serve().count, 10u);
  EXPECT_FALSE(gpu_->Run(other));
  EXPECT_TRUE(Silent());
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_FALSE(gpu_->Run(other));
  EXPECT_EQ(Serve().count, 9u);
  EXPECT_TRUE(gpu_->Run(other));
  EXPECT_EQ(x[8], 2 * kAdded);
  EXPECT_EQ(x[9], kAdded);
}

TEST_F(StreamApiTest, AnIdleStreamNeedNotRunForItsOperationToBegin) {
  AttachDevice();
  void* const idle = gpu_->NewNonBlockingStream();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, x, 10, idle), "");
  EXPECT_EQ(Serve().count, 10u);
  EXPECT_TRUE(gpu_->Run(idle));
  EXPECT_EQ(x[9], kAdded);
  // One that a default stream orders may have to wait for what is on that.
  void* const ordered = gpu_->NewStream();
  ASSERT_EQ(Enqueue(x, x, 10, ordered), "");
  EXPECT_TRUE(Silent());
  EXPECT_FALSE(gpu_->Run(ordered));
  EXPECT_EQ(Serve().count, 10u);
  EXPECT_TRUE(gpu_->Run(ordered));
}

TEST_F(StreamApiTest, MemoryInUseByAStreamIsNotFreed) {
  AttachDevice();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, 10), "");
  EXPECT_THAT(Outcome(qrd_mem_free(comm_, x)), StartsWith("FAILED_PRECONDITION: ptr: "));
  RunOne();
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, x)), "");
}

TEST_F(StreamApiTest, EntriesAreUsedAgainAndTheirBoundIsNamed) {
  AttachDevice();
  float* const x = Floats(10);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) ASSERT_EQ(Enqueue(x, 10), "");
    EXPECT_THAT(Enqueue(x, 10), StartsWith("RESOURCE_EXHAUSTED: operations on streams: 8, "));
    EXPECT_FALSE(gpu_->Run(stream_));
    for (int i = 0; i < 8; ++i) {
      Serve();
      EXPECT_EQ(gpu_->Run(stream_), i == 7);
    }
  }
  EXPECT_EQ(x[0], 24 * kAdded);
  EXPECT_EQ(AsyncError(), "");
}

TEST_F(StreamApiTest, ACapturedOperationRunsAtEveryLaunch) {
  AttachDevice();
  float* const x = Own(10);
  // The first call of the communicator: nothing that it sets up spoils the capture.
  const int graph = Capture(x, 10);
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_TRUE(Silent());
  for (int launch = 1; launch <= 5; ++launch) {
    x[3] = static_cast<float>(launch);
    gpu_->Launch(graph, stream_);
    RunOne();
    EXPECT_EQ(x[3], static_cast<float>(launch) + kAdded);
    EXPECT_EQ(LastStats().sequence, static_cast<uint64_t>(launch));
    EXPECT_EQ(operations_, static_cast<uint64_t>(launch));
  }
  // Between launches, operations of the program.
  ASSERT_EQ(Enqueue(x, 10), "");
  RunOne();
  gpu_->Launch(graph, stream_);
  RunOne();
  EXPECT_EQ(x[3], 5 + 3 * kAdded);
  EXPECT_EQ(AsyncError(), "");
}

TEST_F(StreamApiTest, CapturesWithTheGateKernelReplayToo) {
  setenv("QRD_GPU_GATE", "kernel", 1);
  AttachDevice();
  float* const x = Floats(10);
  const int graph = Capture(x, 10);
  for (int launch = 1; launch <= 3; ++launch) {
    gpu_->Launch(graph, stream_);
    RunOne();
    EXPECT_EQ(x[0], static_cast<float>(launch) * kAdded);
  }
}

TEST_F(StreamApiTest, CapturedOperationsOnTheSameTensorsShareAnEntry) {
  AttachDevice();
  float* const x = Floats(100);
  gpu_->BeginCapture(stream_);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Enqueue(x, 100), "");
  for (size_t count = 1; count <= 7; ++count) ASSERT_EQ(Enqueue(x, count), "");
  EXPECT_THAT(Enqueue(x, 50),
              AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("8 of them captured in graphs")));
  const int graph = gpu_->EndCapture(stream_);
  gpu_->Launch(graph, stream_);
  EXPECT_FALSE(gpu_->Run(stream_));
  for (int i = 0; i < 27; ++i) {
    EXPECT_EQ(Serve().count, i < 20 ? 100u : static_cast<uint64_t>(i - 19));
    EXPECT_EQ(gpu_->Run(stream_), i == 26);
  }
  EXPECT_EQ(x[99], 20 * kAdded);
  EXPECT_EQ(x[0], 27 * kAdded);
}

TEST_F(StreamApiTest, StagingThatGrowsLeavesOlderGraphsTheirs) {
  AttachDevice();
  float* const x = Own(1 << 20);
  const int small = Capture(x, 10);
  ASSERT_EQ(Enqueue(x, 1 << 20), "");
  RunOne();
  gpu_->Launch(small, stream_);
  RunOne();
  EXPECT_EQ(x[9], 2 * kAdded);
  EXPECT_EQ(x[10], kAdded);
}

TEST_F(StreamApiTest, AnInvalidCaptureIsNamed) {
  AttachDevice();
  float* const x = Floats(10);
  gpu_->BeginCapture(stream_);
  gpu_->SpoilCapture(stream_);
  EXPECT_THAT(Enqueue(x, 10), AllOf(StartsWith("FAILED_PRECONDITION: stream: "),
                                    HasSubstr("a capture that has become invalid")));
  EXPECT_EQ(gpu_->EndCapture(stream_), 0);
}

TEST_F(StreamApiTest, TheContextOfTheThreadIsLeftAsItWas) {
  AttachDevice();
  float* const x = Own(10);
  for (const int context : {-1, 1, 0}) {
    gpu_->SetCurrent(context);
    ASSERT_EQ(Enqueue(x, 10), "");
    EXPECT_EQ(gpu_->Current(), context);
    RunOne();
  }
  gpu_->SetCurrent(-1);
}

TEST_F(StreamApiTest, AnEmptyOperationIsMatchedToo) {
  AttachDevice();
  ASSERT_EQ(Enqueue(nullptr, nullptr, 0, stream_), "");
  EXPECT_EQ(RunOne().count, 0u);
}

TEST_F(StreamApiTest, WrongArgumentsPutNothingOnTheStream) {
  AttachDevice();
  float* const x = Floats(10);
  EXPECT_THAT(Enqueue(x, x + 5, 10, stream_), StartsWith("INVALID_ARGUMENT: "));
  EXPECT_THAT(Outcome(qrd_all_reduce_on_stream(comm_, x, x, 10, static_cast<qrd_dtype>(9), QRD_SUM,
                                               stream_)),
              StartsWith("INVALID_ARGUMENT: dtype: "));
  int no_stream = 0;
  EXPECT_THAT(Enqueue(x, x, 10, &no_stream), StartsWith("INTERNAL: cuStreamIsCapturing: "));
  EXPECT_TRUE(gpu_->Run(stream_));
}

TEST_F(StreamApiTest, AFailureLetsTheStreamGoOnAndIsReported) {
  AttachDevice();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, 10), "");
  ASSERT_EQ(Enqueue(x, 10), "");
  EXPECT_FALSE(gpu_->Run(stream_));
  Serve(QRD_PEER_LOST, "operation 1: rank 1 is gone");
  EXPECT_FALSE(gpu_->Run(stream_));
  Serve(QRD_ABORTED, "operation 2: the group has failed");
  EXPECT_TRUE(gpu_->Run(stream_));
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_EQ(AsyncError(&stats), "PEER_LOST: operation 1: rank 1 is gone");
  EXPECT_EQ(stats.status, QRD_PEER_LOST);
  EXPECT_EQ(stats.sequence, 1u);
  EXPECT_EQ(stats.rank_mask, 2u);
  EXPECT_EQ(Enqueue(x, 10), "PEER_LOST: operation 1: rank 1 is gone");
  qrd_operation none = 0;
  EXPECT_EQ(qrd_all_reduce(comm_, x, x, 10, QRD_FP32, QRD_SUM, &none), QRD_PEER_LOST);
  EXPECT_TRUE(gpu_->Run(stream_));
  EXPECT_EQ(AsyncError(), "PEER_LOST: operation 1: rank 1 is gone");
}

TEST_F(StreamApiTest, TheDaemonsDeathReleasesStreamsAndGraphsAndIsReported) {
  AttachDevice();
  float* const x = Floats(10);
  const int graph = Capture(x, 10);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Enqueue(x, 10), "");
  EXPECT_FALSE(gpu_->Run(stream_));
  ASSERT_TRUE(daemon_.NextAnnounced().has_value());  // taken, never ended
  daemon_.HangUp();
  EXPECT_TRUE(RunsToTheEnd(stream_));
  EXPECT_THAT(AsyncError(), StartsWith("DAEMON_LOST: "));
  EXPECT_THAT(Enqueue(x, 10), StartsWith("DAEMON_LOST: "));
  // A program that does not look goes on to launch.
  for (int i = 0; i < 3; ++i) gpu_->Launch(graph, stream_);
  EXPECT_TRUE(RunsToTheEnd(stream_));
  x[0] = 1;  // the memory is still there
  EXPECT_EQ(Outcome(qrd_mem_free(comm_, x)), "");
}

TEST_F(StreamApiTest, AReasonOfTheDaemonIsTheOneThatIsReported) {
  AttachDevice();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, 10), "");
  EXPECT_FALSE(gpu_->Run(stream_));
  daemon_.HangUp(QRD_UNAVAILABLE, "the daemon drains");
  EXPECT_TRUE(RunsToTheEnd(stream_));
  EXPECT_THAT(AsyncError(), AllOf(StartsWith("UNAVAILABLE: "), HasSubstr("the daemon drains")));
}

TEST_F(StreamApiTest, FinalizeGivesUpWhatIsOnItsWayAndReleasesTheStream) {
  AttachDevice();
  float* const x = Floats(10);
  ASSERT_EQ(Enqueue(x, 10), "");
  ASSERT_EQ(Enqueue(x, 10), "");
  std::atomic<bool> ended{false};
  std::thread device([&] { ended = RunsToTheEnd(stream_); });
  EXPECT_EQ(qrd_comm_finalize(comm_), QRD_OK);
  comm_ = nullptr;
  device.join();
  EXPECT_TRUE(ended);
}

TEST_F(StreamApiTest, ARefusalToOpenStreamsIsTheDaemonsText) {
  daemon_.on_request = [](const v1::ClientMessage& request) {
    return request.has_stream_open()
               ? FakeDaemon::Refuse(QRD_UNIMPLEMENTED, "streams: the backend has none")
               : FakeDaemon::Normal();
  };
  AttachDevice();
  float* const x = Floats(10);
  EXPECT_THAT(Enqueue(x, 10),
              AllOf(StartsWith("UNIMPLEMENTED: "), HasSubstr("streams: the backend has none")));
  EXPECT_TRUE(gpu_->Run(stream_));
}

TEST_F(StreamApiTest, ABadStreamSegmentIsRefusedForGood) {
  daemon_.edit_stream = [](shm::StreamHeader* header, v1::StreamOpened*) { header->magic = 1; };
  AttachDevice();
  float* const x = Floats(10);
  const std::string first = Enqueue(x, 10);
  EXPECT_THAT(first, StartsWith("INTERNAL: stream segment from the daemon: magic is 1"));
  EXPECT_EQ(Enqueue(x, 10), first);
  EXPECT_TRUE(gpu_->Run(stream_));
  // Operations that the host waits for still work.
  const qrd_operation operation = Post(x, x, 10);
  daemon_.Complete(*daemon_.NextPosted(), QRD_OK);
  EXPECT_EQ(Outcome(qrd_wait(comm_, operation, 0, nullptr)), "");
}

TEST_F(StreamApiTest, AnUnknownGateIsNamed) {
  setenv("QRD_GPU_GATE", "kernal", 1);
  AttachDevice();
  EXPECT_EQ(Enqueue(Floats(10), 10),
            "INVALID_ARGUMENT: QRD_GPU_GATE: \"kernal\", want batch, memory or kernel");
}

}  // namespace
}  // namespace qrd::testing
