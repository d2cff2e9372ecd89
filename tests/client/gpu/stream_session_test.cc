// SPDX-License-Identifier: Apache-2.0
// What an operation puts on its stream, step by step, on a driver whose streams are run by hand.
#include "client/src/stream_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/core/keep_forever.h"
#include "tests/client/gpu/fake_driver.h"
#include "tests/client/gpu/stream_fixture.h"

namespace qrd::client {
namespace {

using qrd::testing::Eventually;
using qrd::testing::FakeDriver;
using qrd::testing::FakeOwner;
using qrd::testing::StreamMemory;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kHourNs = 3'600'000'000'000;
const gpu::Stream kStreamA = reinterpret_cast<gpu::Stream>(0x10);
const gpu::Stream kStreamB = reinterpret_cast<gpu::Stream>(0x20);

class StreamSessionTest : public ::testing::Test {
 protected:
  ~StreamSessionTest() override {
    // The watcher may have to release what a test left on a stream.
    owner_.lost = true;
    if (session_ != nullptr && opened_) {
      session_->Wake();
      RunAll();
      const bool ended = session_->End(NowNs());
      if (!ended) KeepForever(std::move(session_));
    }
  }
  qrd_status TryOpen() {
    session_ = std::make_unique<StreamSession>(&driver_, 0);
    const qrd_status status =
        session_->Open(memory_.fd(), memory_.bytes(), 8, &owner_, owner_.socket(), kHourNs);
    opened_ = status == QRD_OK;
    driver_.calls = 0;
    return status;
  }
  void Open() { ASSERT_EQ(TryOpen(), QRD_OK) << LastError(); }

  // Names the steps of a stream by the words that they are about.
  std::vector<std::string> Queue(gpu::Stream stream) {
    std::vector<std::string> names;
    const shm::StreamHeader* header = session_->segment().header();
    for (const FakeDriver::Item& item : driver_.queues[stream]) {
      if (item.copy) {
        names.push_back("copy " + std::to_string(item.bytes));
        continue;
      }
      const auto* word = reinterpret_cast<const void*>(item.step.address);
      const std::string name = word == &header->doorbell ? "doorbell"
                               : word == &header->done   ? "done"
                                                         : "passed";
      names.push_back(name + (item.step.wait ? " == " : " = ") + std::to_string(item.step.value));
    }
    return names;
  }
  qrd_status Put(gpu::Stream stream, uint32_t entry, bool captured = false,
                 const StreamSession::Copy& in = {}, const StreamSession::Copy& out = {}) {
    begun_ = false;
    return session_->Put(stream, entry, captured, in, out, &begun_);
  }
  // The daemon's part: takes the doorbell, ends the operation.
  uint32_t Serve() {
    shm::StreamHeader* header = memory_.header();
    const uint32_t rung = header->doorbell.exchange(0);
    if (rung == 0) return 0;
    header->done.store(1);
    shm::Completion& completion = memory_.entry(rung - 1)->completion;
    completion.sequence = ++served_;
    completion.state.store(static_cast<uint32_t>(shm::CompletionState::kDone));
    header->operations.store(served_);
    return rung;
  }
  void RunAll() {
    for (auto& [stream, items] : driver_.queues) driver_.Run(stream);
  }

  StreamMemory memory_{8};
  FakeOwner owner_;
  FakeDriver driver_;
  std::unique_ptr<StreamSession> session_;
  bool opened_ = false;
  bool begun_ = false;
  uint64_t served_ = 0;
};

TEST_F(StreamSessionTest, AnOperationRingsWaitsAndSaysThatItPassed) {
  Open();
  ASSERT_EQ(session_->NextTicket(), 1u);
  ASSERT_EQ(Put(kStreamA, 5), QRD_OK);
  EXPECT_THAT(Queue(kStreamA), ElementsAre("done = 0", "doorbell = 6", "done == 1", "passed = 1"));
  EXPECT_FALSE(driver_.Run(kStreamA));
  EXPECT_FALSE(session_->Passed(1));
  EXPECT_FALSE(session_->Quiet());
  EXPECT_EQ(Serve(), 6u);
  EXPECT_TRUE(driver_.Run(kStreamA));
  EXPECT_TRUE(session_->Passed(1));
  EXPECT_TRUE(session_->Quiet());
}

TEST_F(StreamSessionTest, CopiesAreInsideOfTheOrder) {
  Open();
  char in[8] = "input", out[8] = "", staging[8] = "";
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  ASSERT_EQ(Put(kStreamA, 0, false, {address(staging), address(in), 8},
                {address(out), address(staging), 8}),
            QRD_OK);
  EXPECT_THAT(Queue(kStreamA), ElementsAre("copy 8", "done = 0", "doorbell = 1", "done == 1",
                                           "copy 8", "passed = 1"));
  EXPECT_FALSE(driver_.Run(kStreamA));
  EXPECT_STREQ(staging, "input");
  EXPECT_STREQ(out, "");
  std::strcpy(staging, "output");
  Serve();
  EXPECT_TRUE(driver_.Run(kStreamA));
  EXPECT_STREQ(out, "output");
}

TEST_F(StreamSessionTest, ACapturedOperationHasNothingThatDiffersBetweenLaunches) {
  Open();
  ASSERT_EQ(Put(kStreamA, 2, true), QRD_OK);
  EXPECT_THAT(Queue(kStreamA), ElementsAre("done = 0", "doorbell = 3", "done == 1"));
  EXPECT_EQ(session_->NextTicket(), 1u);
  EXPECT_TRUE(session_->Quiet());
}

TEST_F(StreamSessionTest, AnotherStreamWaitsForTheOperationBefore) {
  Open();
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  ASSERT_EQ(Put(kStreamA, 1), QRD_OK);
  ASSERT_EQ(Put(kStreamB, 2), QRD_OK);
  EXPECT_THAT(Queue(kStreamB),
              ElementsAre("passed == 2", "done = 0", "doorbell = 3", "done == 1", "passed = 3"));
  // However the streams get on, the doorbell is rung in the order of the calls.
  EXPECT_FALSE(driver_.Run(kStreamB));
  EXPECT_EQ(memory_.header()->doorbell.load(), 0u);
  std::vector<uint32_t> order;
  for (int i = 0; i < 6; ++i) {
    driver_.Run(kStreamB);
    driver_.Run(kStreamA);
    if (const uint32_t rung = Serve(); rung != 0) order.push_back(rung);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_TRUE(session_->Quiet());
  // Once that one is over there is nothing to wait for.
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  EXPECT_THAT(Queue(kStreamA), ElementsAre("done = 0", "doorbell = 1", "done == 1", "passed = 4"));
}

TEST_F(StreamSessionTest, AStreamIsTheSameByItsIdNotByItsHandle) {
  Open();
  driver_.ids[kStreamA] = 1;
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  driver_.ids[kStreamA] = 2;  // destroyed, and another one got the handle
  driver_.queues[kStreamA].clear();
  ASSERT_EQ(Put(kStreamA, 1), QRD_OK);
  EXPECT_EQ(Queue(kStreamA).front(), "passed == 1");
  memory_.header()->done.store(0);
}

TEST_F(StreamSessionTest, TheStreamOfAThreadIsNotTheOneOfAnother) {
  Open();
  const gpu::Stream per_thread = reinterpret_cast<gpu::Stream>(2);
  ASSERT_EQ(Put(per_thread, 0), QRD_OK);
  driver_.queues[per_thread].clear();
  ASSERT_EQ(Put(per_thread, 1), QRD_OK);
  EXPECT_EQ(Queue(per_thread).front(), "passed == 1");
}

TEST_F(StreamSessionTest, TheHostRingsForAStreamThatIsIdle) {
  Open();
  driver_.non_blocking = true;
  for (uint32_t ticket = 1; ticket <= 3; ++ticket) {
    ASSERT_EQ(Put(kStreamA, 4), QRD_OK);
    EXPECT_THAT(Queue(kStreamA), ElementsAre("done == 1", "passed = " + std::to_string(ticket)));
    EXPECT_EQ(Serve(), 5u);
    EXPECT_TRUE(driver_.Run(kStreamA));
  }
  EXPECT_TRUE(session_->Quiet());
}

TEST_F(StreamSessionTest, AStreamThatADefaultStreamOrdersRingsItself) {
  Open();
  driver_.looks = 0;
  ASSERT_EQ(Put(kStreamA, 4), QRD_OK);
  EXPECT_THAT(Queue(kStreamA), Contains("doorbell = 5"));
  EXPECT_EQ(driver_.looks, 0);
}

TEST_F(StreamSessionTest, WithAnOperationOnItsWayTheStreamRings) {
  Open();
  driver_.non_blocking = true;
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  driver_.looks = 0;
  ASSERT_EQ(Put(kStreamB, 1), QRD_OK);
  EXPECT_EQ(driver_.looks, 0);
  EXPECT_THAT(Queue(kStreamB),
              ElementsAre("passed == 1", "done = 0", "doorbell = 2", "done == 1", "passed = 2"));
}

TEST_F(StreamSessionTest, CopiesAndCapturesAreNotPassedByTheHostsDoorbell) {
  Open();
  driver_.non_blocking = true;
  static char a[8], b[8];  // the fixture's end runs what is left on the stream
  const StreamSession::Copy copy{reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b), 8};
  ASSERT_EQ(Put(kStreamA, 0, true), QRD_OK);
  EXPECT_THAT(Queue(kStreamA), Contains("doorbell = 1"));
  driver_.queues[kStreamA].clear();
  ASSERT_EQ(Put(kStreamA, 0, false, copy, {}), QRD_OK);
  EXPECT_THAT(Queue(kStreamA).front(), "copy 8");
  EXPECT_EQ(memory_.header()->doorbell.load(), 0u);
}

TEST_F(StreamSessionTest, BusyStreamsAreLookedAtLessAndLess) {
  Open();
  driver_.non_blocking = true;
  driver_.looks = 0;
  std::atomic<uint32_t> gate{0};
  for (int i = 0; i < 256; ++i) {
    driver_.queues[kStreamA].push_back(
        {false, {true, reinterpret_cast<uintptr_t>(&gate), 1}, 0, 0});  // work of the caller
    gate.store(0);
    ASSERT_EQ(Put(kStreamA, 4), QRD_OK);
    EXPECT_EQ(memory_.header()->doorbell.load(), 0u);
    gate.store(1);
    driver_.Run(kStreamA);
    EXPECT_EQ(Serve(), 5u);
    EXPECT_TRUE(driver_.Run(kStreamA));
  }
  // After 0, 1, 3, 7, 15, 31, 63, 63 and 63 that it skips.
  EXPECT_EQ(driver_.looks, 9);
}

TEST_F(StreamSessionTest, AFailureAfterTheHostHasRungIsBegun) {
  Open();
  driver_.non_blocking = true;
  driver_.fail_at_call = driver_.calls;
  EXPECT_EQ(Put(kStreamA, 0), QRD_INTERNAL);
  EXPECT_TRUE(begun_);
  EXPECT_FALSE(session_->Quiet());
  EXPECT_EQ(Serve(), 1u);
  memory_.header()->done.store(0);
}

TEST_F(StreamSessionTest, AFailureBeforeTheDoorbellLeavesNothingBegun) {
  Open();
  static char a[8], b[8];  // the fixture's end runs what is left on the stream
  const StreamSession::Copy copy{reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b), 8};
  driver_.fail_at_call = 0;  // the copy in
  EXPECT_EQ(Put(kStreamA, 0, false, copy, copy), QRD_INTERNAL);
  EXPECT_FALSE(begun_);
  EXPECT_THAT(Queue(kStreamA), IsEmpty());
  driver_.fail_at_call = driver_.calls + 1;  // the steps
  EXPECT_EQ(Put(kStreamA, 0, false, copy, copy), QRD_INTERNAL);
  EXPECT_FALSE(begun_);
  EXPECT_EQ(session_->NextTicket(), 1u);
  EXPECT_TRUE(session_->Quiet());
}

TEST_F(StreamSessionTest, AFailureBehindTheDoorbellIsBegun) {
  Open();
  static char a[8], b[8];  // the fixture's end runs what is left on the stream
  const StreamSession::Copy copy{reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b), 8};
  driver_.fail_at_call = 2;  // the copy out
  EXPECT_EQ(Put(kStreamA, 0, false, copy, copy), QRD_INTERNAL);
  EXPECT_TRUE(begun_);
  EXPECT_FALSE(session_->Quiet());
}

// Otherwise the word could pass the value that the second stream waits for before it looks.
TEST_F(StreamSessionTest, ACopyThatFailsBehindTheWaitForAnotherStreamKeepsTheOrder) {
  Open();
  static char a[8], b[8];  // the fixture's end runs what is left on the stream
  const StreamSession::Copy copy{reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b), 8};
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  driver_.fail_at_call = driver_.calls + 1;  // the copy in, behind the wait
  EXPECT_EQ(Put(kStreamB, 1, false, copy, copy), QRD_INTERNAL);
  EXPECT_STREQ(LastError(), "Copy: the fake refuses");
  EXPECT_FALSE(begun_);
  EXPECT_THAT(Queue(kStreamB), ElementsAre("passed == 1", "passed = 2"));
  ASSERT_EQ(Put(kStreamA, 1), QRD_OK);
  driver_.Run(kStreamA);
  EXPECT_EQ(Serve(), 1u);
  EXPECT_FALSE(driver_.Run(kStreamA));
  EXPECT_EQ(memory_.header()->doorbell.load(), 0u);
  EXPECT_TRUE(driver_.Run(kStreamB));
  EXPECT_FALSE(driver_.Run(kStreamA));
  EXPECT_EQ(Serve(), 2u);
  EXPECT_TRUE(driver_.Run(kStreamA));
  EXPECT_TRUE(session_->Quiet());
}

TEST_F(StreamSessionTest, ATicketThatCannotBeUsedUpIsBegun) {
  Open();
  static char a[8], b[8];  // the fixture's end runs what is left on the stream
  const StreamSession::Copy copy{reinterpret_cast<uintptr_t>(a), reinterpret_cast<uintptr_t>(b), 8};
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  driver_.fail_at_call = driver_.calls + 1;
  driver_.fail_calls = 2;
  EXPECT_EQ(Put(kStreamB, 1, false, copy, copy), QRD_INTERNAL);
  EXPECT_TRUE(begun_);
  EXPECT_FALSE(session_->Quiet());
}

TEST_F(StreamSessionTest, ChoosesTheFirstWayThatWorks) {
  Open();
  EXPECT_EQ(session_->mode(), gpu::StepMode::kBatch);
}

TEST_F(StreamSessionTest, FallsBackToTheGateKernel) {
  driver_.modes = {{gpu::StepMode::kKernel, true}};
  Open();
  EXPECT_EQ(session_->mode(), gpu::StepMode::kKernel);
}

TEST_F(StreamSessionTest, WhatCannotBeCapturedUsesTheGateKernelInCaptures) {
  driver_.modes.erase(gpu::StepMode::kBatch);
  driver_.memory_capturable = false;
  Open();
  EXPECT_EQ(session_->mode(), gpu::StepMode::kMemory);
  EXPECT_EQ(session_->capture_refusal(), "");
  ASSERT_EQ(Put(kStreamA, 0, true), QRD_OK);
  EXPECT_EQ(driver_.last_mode, gpu::StepMode::kKernel);
  driver_.queues[kStreamA].clear();
  ASSERT_EQ(Put(kStreamA, 1), QRD_OK);
  EXPECT_EQ(driver_.last_mode, gpu::StepMode::kMemory);
}

TEST_F(StreamSessionTest, WithoutAnyWayToCaptureTheReasonIsKept) {
  driver_.modes = {{gpu::StepMode::kMemory, true}};
  driver_.memory_capturable = false;
  Open();
  EXPECT_THAT(session_->capture_refusal(), HasSubstr("the fake has no mode 2"));
}

TEST_F(StreamSessionTest, AStreamThatDoesNotWaitIsRefused) {
  driver_.waits_work = false;
  EXPECT_EQ(TryOpen(), QRD_UNIMPLEMENTED);
  EXPECT_THAT(LastError(), HasSubstr("the stream did not wait for a word"));
  session_.reset();
  EXPECT_THAT(driver_.registered, IsEmpty());
}

TEST_F(StreamSessionTest, TheEnvironmentForcesAWay) {
  setenv("QRD_GPU_GATE", "kernel", 1);
  Open();
  EXPECT_EQ(session_->mode(), gpu::StepMode::kKernel);
  unsetenv("QRD_GPU_GATE");
}

TEST_F(StreamSessionTest, AnUnknownWayIsNamed) {
  setenv("QRD_GPU_GATE", "kernal", 1);
  EXPECT_EQ(TryOpen(), QRD_INVALID_ARGUMENT);
  unsetenv("QRD_GPU_GATE");
  EXPECT_STREQ(LastError(), "QRD_GPU_GATE: \"kernal\", want batch, memory or kernel");
}

TEST_F(StreamSessionTest, WhatCannotBeRegisteredIsGivenBack) {
  driver_.registrations_max = 1;
  EXPECT_EQ(TryOpen(), QRD_INTERNAL);
  session_.reset();
  EXPECT_THAT(driver_.registered, IsEmpty());
}

TEST_F(StreamSessionTest, TheFirstFailureStaysAndHasTheDaemonsText) {
  Open();
  EXPECT_EQ(session_->CheckFailure().status, QRD_OK);
  shm::Completion& completion = memory_.entry(3)->completion;
  completion.status = shm::Status::kPeerLost;
  completion.sequence = 17;
  completion.payload_bytes = 64;
  completion.rank_mask = 2;
  std::strcpy(completion.message, "operation 17: rank 1 is gone");
  memory_.header()->failed_entry.store(4);
  EXPECT_EQ(session_->CheckFailure().status, QRD_PEER_LOST);
  EXPECT_EQ(session_->CheckFailure().text, "operation 17: rank 1 is gone");
  EXPECT_EQ(session_->CheckFailure().stats.rank_mask, 2u);
  EXPECT_EQ(session_->CheckFailure().stats.payload_bytes, 64u);
  completion.status = shm::Status::kOk;
  EXPECT_EQ(session_->CheckFailure().status, QRD_PEER_LOST);
}

TEST_F(StreamSessionTest, AFailedEntryThatIsNoneIsTheDaemonsMistake) {
  Open();
  memory_.header()->failed_entry.store(9);
  EXPECT_EQ(session_->CheckFailure().status, QRD_INTERNAL);
  EXPECT_EQ(session_->CheckFailure().text, "the daemon's failed_entry is 9, want at most 8");
}

TEST_F(StreamSessionTest, TheLastOperationIsTheOneWithTheHighestNumber) {
  Open();
  qrd_op_stats stats = QRD_OP_STATS_INIT;
  EXPECT_FALSE(session_->LastStats(&stats));
  uint32_t first = 0, second = 0;
  ASSERT_TRUE(session_->entries().Take(&first));
  ASSERT_TRUE(session_->entries().Take(&second));
  session_->entries().SetStaged(first, true);
  for (const uint32_t entry : {first, second, first}) {
    ASSERT_EQ(Put(kStreamA, entry), QRD_OK);
    driver_.Run(kStreamA);
    ASSERT_EQ(Serve(), entry + 1);
    ASSERT_TRUE(driver_.Run(kStreamA));
  }
  ASSERT_TRUE(session_->LastStats(&stats));
  EXPECT_EQ(stats.sequence, 3u);
  EXPECT_EQ(stats.staged, 1);
}

TEST_F(StreamSessionTest, TheEndOfAQuietSessionUnregistersEverything) {
  Open();
  EXPECT_EQ(driver_.registered.size(), 2u);
  EXPECT_TRUE(session_->End(NowNs()));
  EXPECT_THAT(driver_.registered, IsEmpty());
  session_.reset();
}

TEST_F(StreamSessionTest, TheEndOfALostSessionWaitsUntilTheStreamsWereReleased) {
  Open();
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  ASSERT_EQ(Put(kStreamA, 1), QRD_OK);
  owner_.lost = true;
  session_->Wake();
  ASSERT_TRUE(Eventually([&] { return driver_.Run(kStreamA); }));
  EXPECT_TRUE(session_->End(NowNs()));
  EXPECT_THAT(driver_.registered, IsEmpty());
  session_.reset();
}

TEST_F(StreamSessionTest, MemoryThatAStreamMayStillUseStays) {
  Open();
  ASSERT_EQ(Put(kStreamA, 0), QRD_OK);
  owner_.lost = true;
  session_->Wake();
  EXPECT_FALSE(session_->End(NowNs()));
  EXPECT_EQ(driver_.registered.size(), 2u);
  KeepForever(std::move(session_));
  // The stream comes to it much later, and is released all the same.
  EXPECT_TRUE(Eventually([&] { return driver_.Run(kStreamA); }));
}

TEST(StreamSegmentTest, BadHeadersAreNamed) {
  const StreamMemory good(8);
  StreamSegment segment;
  EXPECT_EQ(segment.Map(good.fd(), good.bytes(), 8), QRD_OK);
  EXPECT_EQ(segment.Map(good.fd(), good.bytes(), 7), QRD_INTERNAL);
  EXPECT_STREQ(LastError(), "stream segment from the daemon: entry_count is 7, want 8 to 65536");
  EXPECT_EQ(segment.Map(good.fd(), good.bytes() + 4096, 8), QRD_INTERNAL);
  EXPECT_THAT(LastError(), HasSubstr("size in bytes"));
  const auto expect_bad = [](auto&& spoil, const char* text) {
    const StreamMemory memory(8);
    spoil(memory.header());
    StreamSegment bad;
    EXPECT_EQ(bad.Map(memory.fd(), memory.bytes(), 8), QRD_INTERNAL);
    EXPECT_THAT(LastError(), HasSubstr(text));
  };
  expect_bad([](auto* h) { h->magic = 1; }, "magic is 1");
  expect_bad([](auto* h) { h->layout_version = 9; }, "layout_version is 9");
  expect_bad([](auto* h) { h->segment_bytes = 5; }, "segment_bytes is 5");
  expect_bad([](auto* h) { h->entry_count = 16; }, "entry_count is 16, want 8");
  expect_bad([](auto* h) { h->entry_offset_bytes = 8; }, "entry_offset_bytes is 8");
}

}  // namespace
}  // namespace qrd::client
