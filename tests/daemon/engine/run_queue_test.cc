// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/run_queue.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/engine/worker_pool.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"

namespace qrd {
namespace {

Job MakeJob(uint64_t flow, uint64_t tiles) {
  Job job;
  job.flow = flow;
  job.tiles = tiles;
  job.params.count = tiles * kTileElements;
  return job;
}

TEST(RunQueueTest, ChunksCoverEachTileOnceAndEndOnce) {
  RunQueue queue(2);
  queue.AddFlow(1, 1);
  Job job = MakeJob(1, 1000);
  queue.Push(&job);
  uint64_t next = 0;
  Chunk chunk;
  while (queue.Take(&chunk)) {
    EXPECT_EQ(chunk.range.first, next);
    EXPECT_GT(chunk.range.last, chunk.range.first);
    next = chunk.range.last;
    const bool last = next == 1000;
    EXPECT_EQ(queue.Finish(chunk, 1, chunk.start_ns + 1000), last);
  }
  EXPECT_EQ(next, 1000u);
  EXPECT_EQ(queue.PopFinished(), &job);
  EXPECT_EQ(queue.PopFinished(), nullptr);
  EXPECT_FALSE(job.cancelled);
}

TEST(RunQueueTest, OperationsOfAFlowRunOneAfterTheOther) {
  RunQueue queue(2);
  queue.AddFlow(1, 1);
  Job first = MakeJob(1, 1), second = MakeJob(1, 1);
  queue.Push(&first);
  queue.Push(&second);
  Chunk chunk, other;
  ASSERT_TRUE(queue.Take(&chunk));
  EXPECT_EQ(chunk.job, &first);
  EXPECT_FALSE(queue.Take(&other));  // the first one still runs
  EXPECT_TRUE(queue.Finish(chunk, 0, chunk.start_ns));
  ASSERT_TRUE(queue.Take(&other));
  EXPECT_EQ(other.job, &second);
}

TEST(RunQueueTest, FlowsInterleaveChunkByChunk) {
  RunQueue queue(1);
  queue.AddFlow(1, 1);
  queue.AddFlow(2, 1);
  Job flood = MakeJob(1, 100'000), light = MakeJob(2, 1);
  queue.Push(&flood);
  Chunk chunk;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue.Take(&chunk));
    queue.Finish(chunk, 0, chunk.start_ns + 100'000);
  }
  queue.Push(&light);
  ASSERT_TRUE(queue.Take(&chunk));
  EXPECT_EQ(chunk.job, &light);
}

TEST(RunQueueTest, ChunksShrinkWhenTilesAreSlow) {
  RunQueue queue(1);
  queue.AddFlow(1, 1);
  Job job = MakeJob(1, 1'000'000);
  queue.Push(&job);
  Chunk chunk;
  for (int i = 0; i < 200; ++i) {  // 50 us a tile
    ASSERT_TRUE(queue.Take(&chunk));
    const uint64_t tiles = chunk.range.last - chunk.range.first;
    queue.Finish(chunk, 0, chunk.start_ns + tiles * 50'000);
  }
  ASSERT_TRUE(queue.Take(&chunk));
  EXPECT_EQ(chunk.range.last - chunk.range.first, RunQueue::kChunkTargetNs / 50'000);
}

TEST(RunQueueTest, CancelTakesAQueuedJobOutAtOnce) {
  RunQueue queue(1);
  queue.AddFlow(1, 1);
  Job running = MakeJob(1, 1), waiting = MakeJob(1, 1);
  queue.Push(&running);
  queue.Push(&waiting);
  queue.Cancel(&waiting);
  EXPECT_EQ(queue.PopFinished(), &waiting);
  EXPECT_TRUE(waiting.cancelled);
  Chunk chunk;
  ASSERT_TRUE(queue.Take(&chunk));
  EXPECT_EQ(chunk.job, &running);
}

TEST(RunQueueTest, CancelWaitsForTheRunningChunk) {
  RunQueue queue(1);
  queue.AddFlow(1, 1);
  Job job = MakeJob(1, 1'000'000);
  queue.Push(&job);
  Chunk chunk, none;
  ASSERT_TRUE(queue.Take(&chunk));
  queue.Cancel(&job);
  EXPECT_EQ(queue.PopFinished(), nullptr);
  EXPECT_FALSE(queue.Take(&none));
  EXPECT_TRUE(queue.Finish(chunk, 0, chunk.start_ns));
  EXPECT_EQ(queue.PopFinished(), &job);
  EXPECT_TRUE(job.cancelled);
}

TEST(RunQueueTest, CancelOfAJobWhoseLastChunkRunsIsTooLate) {
  RunQueue queue(1);
  queue.AddFlow(1, 1);
  Job job = MakeJob(1, 1);
  queue.Push(&job);
  Chunk chunk;
  ASSERT_TRUE(queue.Take(&chunk));
  queue.Cancel(&job);
  queue.Finish(chunk, 0, chunk.start_ns);
  queue.Cancel(&job);
  EXPECT_EQ(queue.PopFinished(), &job);
  EXPECT_FALSE(job.cancelled);
}

TEST(WorkerPoolTest, WorkersRunEveryTileOnceAndReportEachJob) {
  testing::FakeBackend backend;
  RunQueue queue(4);
  std::multiset<uint64_t> tiles;
  backend.OnChunk([&](const LaunchParams&, TileRange range) {
    for (uint64_t tile = range.first; tile < range.last; ++tile) tiles.insert(tile);
  });
  std::vector<float> in(100 * kTileElements, 1.0f), out(in.size());
  std::atomic<int> reported{0};
  WorkerPool pool(3, &queue, &backend, [&] { ++reported; });
  ASSERT_TRUE(pool.Start().ok());
  queue.AddFlow(1, 1);
  for (int round = 0; round < 20; ++round) {
    Job job = MakeJob(1, 100);
    job.params.inputs[0] = in.data();
    job.params.outputs[0] = out.data();
    queue.Push(&job);
    pool.Notify();
    const uint64_t end_ns = MonotonicNs() + 20'000'000'000;
    Job* done = nullptr;
    while (done == nullptr && MonotonicNs() < end_ns) {
      done = queue.PopFinished();
      std::this_thread::yield();
    }
    ASSERT_EQ(done, &job);
  }
  pool.Stop();
  EXPECT_EQ(reported.load(), 20);
  EXPECT_EQ(tiles.size(), 2000u);
  for (uint64_t tile = 0; tile < 100; ++tile) EXPECT_EQ(tiles.count(tile), 20u);
}

}  // namespace
}  // namespace qrd
