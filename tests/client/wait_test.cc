// SPDX-License-Identifier: Apache-2.0
#include "client/core/wait.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "client/core/clock.h"
#include "proto/shm/layout.h"

namespace qrd::client {
namespace {

constexpr uint32_t kIdle = 0, kWaiting = 1, kDone = 2;

YieldGuard guard;

bool Never(void*) { return false; }
bool Always(void*) { return true; }

void Complete(std::atomic<uint32_t>* state) {
  if (state->exchange(kDone) == kWaiting) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(state), FUTEX_WAKE, 1 << 30, nullptr, nullptr,
            0);
  }
}

void AwaitWaiting(const std::atomic<uint32_t>& state) {
  while (state.load() != kWaiting) std::this_thread::yield();
}

TEST(WaitForDoneTest, ReturnsAtOnceIfItIsDone) {
  std::atomic<uint32_t> state{kDone};
  EXPECT_EQ(WaitForDone(&state, 0, &guard, 0, Always, nullptr), WaitResult::kDone);
}

TEST(WaitForDoneTest, SpinningSeesTheEndWithoutSleeping) {
  std::atomic<uint32_t> state{kIdle};
  std::thread daemon([&] { state.store(kDone, std::memory_order_release); });
  EXPECT_EQ(WaitForDone(&state, uint64_t{60} * 1'000'000'000, &guard, kNever, Never, nullptr),
            WaitResult::kDone);
  daemon.join();
}

TEST(WaitForDoneTest, ASleeperIsWoken) {
  std::atomic<uint32_t> state{kIdle};
  std::thread daemon([&] {
    AwaitWaiting(state);
    Complete(&state);
  });
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, Never, nullptr), WaitResult::kDone);
  daemon.join();
}

TEST(WaitForDoneTest, StopsAtTheDeadlineAndCanBeRepeated) {
  std::atomic<uint32_t> state{kIdle};
  const uint64_t start = NowNs();
  EXPECT_EQ(WaitForDone(&state, 0, &guard, start + 20 * kNsPerMs, Never, nullptr),
            WaitResult::kTimeout);
  EXPECT_GE(NowNs() - start, 20 * kNsPerMs);
  EXPECT_EQ(state.load(), kWaiting);
  std::thread daemon([&] { Complete(&state); });
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, Never, nullptr), WaitResult::kDone);
  daemon.join();
}

TEST(WaitForDoneTest, TheSpinEndsAtTheDeadlineToo) {
  std::atomic<uint32_t> state{kIdle};
  EXPECT_EQ(WaitForDone(&state, uint64_t{3600} * 1'000'000'000, &guard, NowNs() + kNsPerMs, Never,
                        nullptr),
            WaitResult::kTimeout);
}

TEST(WaitForDoneTest, AHangUpEndsTheWaitBeforeTheFirstSleep) {
  std::atomic<uint32_t> state{kIdle};
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, Always, nullptr), WaitResult::kGaveUp);
  EXPECT_EQ(state.load(), kIdle);
}

TEST(WaitForDoneTest, AHangUpIsNoticedWithinASlice) {
  std::atomic<uint32_t> state{kIdle};
  int calls = 0;
  const auto third = [](void* context) { return ++*static_cast<int*>(context) == 3; };
  const uint64_t start = NowNs();
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, third, &calls), WaitResult::kGaveUp);
  EXPECT_GE(NowNs() - start, kSliceNs);
}

TEST(WaitForDoneTest, ACompletionThatCameWithTheHangUpCounts) {
  std::atomic<uint32_t> state{kIdle};
  const auto complete = [](void* word) {
    static_cast<std::atomic<uint32_t>*>(word)->store(kDone);
    return true;
  };
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, complete, &state), WaitResult::kDone);
}

TEST(WaitForDoneTest, AWordOutsideOfTheProtocolIsWaitedForWithinTheDeadline) {
  std::atomic<uint32_t> state{77};
  EXPECT_EQ(WaitForDone(&state, 0, &guard, NowNs() + 5 * kNsPerMs, Never, nullptr),
            WaitResult::kTimeout);
  EXPECT_EQ(state.load(), 77u);
}

TEST(WaitForDoneTest, SignalsDoNotEndTheWait) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  std::atomic<uint32_t> state{kIdle};
  const pthread_t waiter = pthread_self();
  std::thread daemon([&] {
    AwaitWaiting(state);
    for (int i = 0; i < 100; ++i) pthread_kill(waiter, SIGUSR1);
    Complete(&state);
  });
  EXPECT_EQ(WaitForDone(&state, 0, &guard, kNever, Never, nullptr), WaitResult::kDone);
  daemon.join();
}

constexpr uint64_t kNow = 1'000'000'000;

TEST(SpinBudgetTest, SpinsUntilWaitsAreLongAndAgainWhenTheyAreShort) {
  SpinBudget budget(1000);
  EXPECT_EQ(budget.Get(kNow), 1000u);
  for (int i = 0; i < 20; ++i) budget.Learn(1'000'000);
  EXPECT_EQ(budget.Get(kNow), 0u);
  for (int i = 0; i < 8; ++i) budget.Learn(10);
  EXPECT_EQ(budget.Get(kNow), 1000u);
}

TEST(SpinBudgetTest, OneLongWaitChangesNothing) {
  SpinBudget budget(1000);
  budget.Learn(uint64_t{1} << 60);
  EXPECT_EQ(budget.Get(kNow), 1000u);
}

TEST(SpinBudgetTest, LongYieldsMakeWaitsSleepForAWhile) {
  SpinBudget budget(1000);
  const uint64_t end = kNow + YieldGuard::kLongYieldNs;
  EXPECT_TRUE(budget.guard()->Note(kNow, end - 1));
  EXPECT_TRUE(budget.guard()->Note(kNow, end - 1)) << "not long";
  EXPECT_TRUE(budget.guard()->Note(kNow, end)) << "one alone";
  EXPECT_EQ(budget.Get(end), 1000u);
  EXPECT_FALSE(budget.guard()->Note(kNow, end));
  EXPECT_EQ(budget.Get(end), 0u);
  EXPECT_EQ(budget.Get(end + YieldGuard::kPauseNsMin - 1), 0u);
  EXPECT_EQ(budget.Get(end + YieldGuard::kPauseNsMin), 1000u);
}

TEST(YieldGuardTest, PausesGrowWhileSpinningDoesNotPay) {
  YieldGuard own;
  uint64_t now = kNow;
  EXPECT_TRUE(own.Note(now, now + YieldGuard::kLongYieldNs));
  uint64_t pause = YieldGuard::kPauseNsMin;
  for (int i = 0; i < 10; ++i) {
    const uint64_t end = now + YieldGuard::kLongYieldNs;
    EXPECT_FALSE(own.Note(now, end));
    EXPECT_FALSE(own.MaySpin(end + pause - 1)) << i;
    EXPECT_TRUE(own.MaySpin(end + pause)) << i;
    now = end + pause;
    pause = std::min(2 * pause, YieldGuard::kPauseNsMax);
  }
  // After a spell without long yields one is nothing again.
  now += 2 * YieldGuard::kPauseNsMax;
  EXPECT_TRUE(own.Note(now, now + YieldGuard::kLongYieldNs));
  EXPECT_TRUE(own.MaySpin(now + YieldGuard::kLongYieldNs));
}

TEST(SpinBudgetTest, ABoundOfZeroNeverSpins) {
  SpinBudget budget(0);
  EXPECT_EQ(budget.Get(kNow), 0u);
  budget.Learn(5);
  EXPECT_EQ(budget.Get(kNow), 0u);
}

}  // namespace
}  // namespace qrd::client
