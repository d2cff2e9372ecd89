// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/scheduler.h"

#include <map>

#include "gtest/gtest.h"

namespace qrd {
namespace {

// Hands out `rounds` chunks of the flow's own size; returns bytes by flow.
std::map<uint64_t, uint64_t> Serve(FairScheduler* scheduler,
                                   std::map<uint64_t, uint64_t> chunk_bytes, int rounds) {
  std::map<uint64_t, uint64_t> served;
  for (int i = 0; i < rounds; ++i) {
    const auto flow = scheduler->Pick();
    if (!flow) break;
    scheduler->Charge(*flow, chunk_bytes[*flow]);
    served[*flow] += chunk_bytes[*flow];
  }
  return served;
}

TEST(FairSchedulerTest, NothingToPickWithoutWork) {
  FairScheduler scheduler;
  EXPECT_FALSE(scheduler.Pick().has_value());
  scheduler.Add(1, 1);
  EXPECT_FALSE(scheduler.Pick().has_value());
  scheduler.Activate(1);
  EXPECT_EQ(scheduler.Pick(), 1u);
  scheduler.Deactivate(1);
  EXPECT_FALSE(scheduler.Pick().has_value());
}

TEST(FairSchedulerTest, EqualWeightsShareByBytesNotByChunks) {
  FairScheduler scheduler;
  for (const uint64_t flow : {1, 2}) {
    scheduler.Add(flow, 1);
    scheduler.Activate(flow);
  }
  auto served = Serve(&scheduler, {{1, 1'000'000}, {2, 10'000}}, 10'000);
  EXPECT_NEAR(static_cast<double>(served[1]) / static_cast<double>(served[2]), 1.0, 0.02);
}

TEST(FairSchedulerTest, WeightsDivideTheBytes) {
  FairScheduler scheduler;
  const std::map<uint64_t, uint32_t> weights = {{1, 1}, {2, 3}, {3, 10}};
  for (const auto& [flow, weight] : weights) {
    scheduler.Add(flow, weight);
    scheduler.Activate(flow);
  }
  auto served = Serve(&scheduler, {{1, 4096}, {2, 4096}, {3, 4096}}, 14'000);
  EXPECT_NEAR(static_cast<double>(served[1]), 1000 * 4096, 4096);
  EXPECT_NEAR(static_cast<double>(served[2]), 3000 * 4096, 4096);
  EXPECT_NEAR(static_cast<double>(served[3]), 10000 * 4096, 4096);
}

TEST(FairSchedulerTest, LightFlowWaitsForOneChunkOfTheFloodAtMost) {
  FairScheduler scheduler;
  scheduler.Add(1, 1);
  scheduler.Add(2, 1);
  scheduler.Activate(1);  // the flood
  for (int i = 0; i < 1000; ++i) {
    scheduler.Charge(scheduler.Pick().value(), 1 << 20);
    if (i % 10 != 0) continue;
    scheduler.Activate(2);  // one small operation
    EXPECT_EQ(scheduler.Pick(), 2u) << i;
    scheduler.Charge(2, 4096);
    scheduler.Deactivate(2);
  }
}

TEST(FairSchedulerTest, IdlenessEarnsNoCredit) {
  FairScheduler scheduler;
  scheduler.Add(1, 1);
  scheduler.Add(2, 1);
  scheduler.Activate(1);
  for (int i = 0; i < 1000; ++i) scheduler.Charge(1, 1 << 20);
  scheduler.Activate(2);  // was idle for a gigabyte
  auto served = Serve(&scheduler, {{1, 1 << 20}, {2, 1 << 20}}, 100);
  EXPECT_NEAR(static_cast<double>(served[1]), 50 << 20, 2 << 20);
}

TEST(FairSchedulerTest, BlockedFlowKeepsItsPlace) {
  FairScheduler scheduler;
  scheduler.Add(1, 1);
  scheduler.Add(2, 1);
  scheduler.Activate(1);
  scheduler.Activate(2);
  scheduler.Charge(1, 100);
  scheduler.Block(2);  // its only chunk runs on another thread
  EXPECT_EQ(scheduler.Pick(), 1u);
  for (int i = 0; i < 5; ++i) scheduler.Charge(1, 100);
  scheduler.Activate(2);
  auto served = Serve(&scheduler, {{1, 100}, {2, 100}}, 5);
  EXPECT_EQ(served[2], 500u);  // catches up
}

TEST(FairSchedulerTest, NoFlowOfManyStarves) {
  FairScheduler scheduler;
  std::map<uint64_t, uint64_t> bytes;
  for (uint64_t flow = 0; flow < 500; ++flow) {
    scheduler.Add(flow, 1 + static_cast<uint32_t>(flow % 100));
    scheduler.Activate(flow);
    bytes[flow] = 1 + flow * 997 % 65'536;
  }
  // Until the heaviest has had its turn several times over.
  auto served = Serve(&scheduler, bytes, 400'000);
  for (const auto& [flow, chunk] : bytes) EXPECT_GE(served[flow], chunk) << flow;
}

TEST(FairSchedulerTest, UnknownFlowsAreIgnored) {
  FairScheduler scheduler;
  scheduler.Activate(7);
  scheduler.Block(7);
  scheduler.Charge(7, 1);
  scheduler.Deactivate(7);
  scheduler.Remove(7);
  EXPECT_FALSE(scheduler.Pick().has_value());
}

TEST(FairSchedulerTest, RemovedFlowIsNeverPicked) {
  FairScheduler scheduler;
  scheduler.Add(1, 1);
  scheduler.Add(2, 1);
  scheduler.Activate(1);
  scheduler.Activate(2);
  scheduler.Remove(1);
  EXPECT_EQ(Serve(&scheduler, {{2, 10}}, 10)[2], 100u);
}

}  // namespace
}  // namespace qrd
