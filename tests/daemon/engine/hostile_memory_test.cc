// SPDX-License-Identifier: Apache-2.0
// Clients that write what they should not into shared memory (F27, F35). After each attack the
// daemon serves another group.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/data_path.h"

namespace qrd::testing {
namespace {

using ::testing::HasSubstr;

class HostileMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    good = daemon.Group(2, "good");
    for (auto& client : good) good_arenas.push_back(client->Alloc(8192));
    bad = daemon.Group(1, "bad");
    arena = bad[0]->Alloc(1 << 16);
  }
  void TearDown() override { ExpectGoodGroupIsServed(); }

  void ExpectGoodGroupIsServed() {
    uint32_t slots[2];
    for (size_t r = 0; r < 2; ++r) {
      good_arenas[r].at<float>(0)[0] = static_cast<float>(r + 1);
      slots[r] = good[r]->Post(good[r]->AllReduce(good_arenas[r], 0, 4096, 1));
    }
    for (size_t r = 0; r < 2; ++r) {
      const RawCompletion c = good[r]->Wait(slots[r]);
      ASSERT_EQ(c.status, shm::Status::kOk) << c.message;
      EXPECT_EQ(good_arenas[r].at<float>(4096)[0], 3.0f);
    }
  }

  RawCompletion RunBad(const std::function<void(shm::Descriptor*)>& change) {
    shm::Descriptor d = bad[0]->AllReduce(arena, 0, 32768, 16);
    change(&d);
    return bad[0]->Wait(bad[0]->Post(d));
  }

  DataPath daemon;
  std::vector<std::unique_ptr<RawClient>> good, bad;
  std::vector<RawArena> good_arenas;
  RawArena arena;
};

TEST_F(HostileMemoryTest, EveryBadDescriptorIsRefusedByFieldValueAndBound) {
  struct Case {
    std::function<void(shm::Descriptor*)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](auto* d) { d->kind = shm::Kind{99}; }, "kind is 99: want 1 (all_reduce)"},
      {[](auto* d) { d->kind = shm::Kind{0}; }, "kind is 0: want 1"},
      {[](auto* d) { d->dtype = Dtype{0}; }, "dtype is 0: want 1 (fp16), 2 (bf16) or 3 (fp32)"},
      {[](auto* d) { d->dtype = Dtype{4294967295}; }, "dtype is 4294967295"},
      {[](auto* d) { d->op = ReduceOp{3}; }, "op is 3: want 1 (sum) or 2 (avg)"},
      {[](auto* d) { d->flags = 1u << 31; }, "flags is 2147483648: want 0"},
      {[](auto* d) { d->sequence += 1; }, "sequence is"},
      {[](auto* d) { d->sequence = 0; }, "sequence is 0: want"},
      {[](auto* d) { d->timeout_ms = 3'600'001; }, "timeout_ms is 3600001: want 0 to 3600000"},
      {[](auto* d) { d->epilogue = 2; }, "epilogue is 2: want 0 (none) or 1 (rms_norm)"},
      {[](auto* d) { d->rms_norm.reserved[58] = 1; },
       "rms_norm has other bytes than 0 without an epilogue"},
      {[](auto* d) { d->count = uint64_t{1} << 63; },
       "count is 9223372036854775808: input has room for"},
      {[](auto* d) { d->count = UINT64_MAX; },
       "count is 18446744073709551615: input has room for 16384"},
      {[](auto* d) { d->count = uint64_t{1} << 62; },
       "count is 4611686018427387904: input has room"},
      {[](auto* d) { d->count = 16385; },
       "count is 16385: input has room for 16384 elements of 4 bytes"},
      {[](auto* d) { d->count = 8193; }, "count is 8193: output has room for 8192"},
      {[](auto* d) { d->input.arena_id = 0; },
       "input: arena_id is 0: this session has no such arena"},
      {[](auto* d) { d->input.arena_id = 77; },
       "input: arena_id is 77: this session has no such arena"},
      {[](auto* d) { d->output.arena_id = UINT32_MAX; }, "output: arena_id is 4294967295"},
      {[](auto* d) { d->output.generation = 9; }, "output: stale handle: arena 1 of generation 9"},
      {[](auto* d) { d->input.offset_bytes = 2; }, "input.offset_bytes is 2: want a multiple of 4"},
      {[](auto* d) { d->input.offset_bytes = 65540; },
       "input.offset_bytes is 65540: arena 1 has 65536"},
      {[](auto* d) { d->output.offset_bytes = uint64_t{1} << 63; },
       "output.offset_bytes is 9223372036854775808: arena 1 has 65536 bytes"},
      {[](auto* d) { d->output.offset_bytes = 65536; },
       "count is 16: output has room for 0 elements"},
      {[](auto* d) { d->output.offset_bytes = 60; },
       "output overlaps input: offset_bytes are 60 and 0"},
      {[](auto* d) { d->input.offset_bytes = 32772; }, "output overlaps input"},
  };
  for (const Case& test : cases) {
    const RawCompletion c = RunBad(test.change);
    EXPECT_EQ(c.status, shm::Status::kInvalidArgument) << test.text;
    EXPECT_THAT(c.message, HasSubstr(test.text));
    EXPECT_EQ(c.rank_mask, 1u);
  }
  EXPECT_EQ(daemon.fake().chunks(), 0u);
  EXPECT_EQ(RunBad([](shm::Descriptor*) {}).status, shm::Status::kOk);
}

// The same of an operation with RMSNorm, [2, 128] bf16 with everything in one arena.
TEST_F(HostileMemoryTest, EveryBadFieldOfRmsNormIsRefusedByFieldValueAndBound) {
  const auto run = [&](const std::function<void(shm::Descriptor*)>& change) {
    return RunBad([&](shm::Descriptor* d) {
      const auto at = [&](uint64_t offset_bytes) {
        shm::Tensor tensor = d->input;
        tensor.offset_bytes = offset_bytes;
        return tensor;
      };
      d->dtype = shm::Dtype::kBf16;
      d->count = 256;
      d->epilogue = 1;
      d->output = at(4096);
      shm::RmsNorm& n = d->rms_norm;
      n.weight = at(8192);
      n.residual = at(12288);
      n.residual_out = at(16384);
      n.tokens = 2;
      n.hidden = 128;
      n.eps_bits = 0x3F000000;
      n.weight_dtype = 2;
      n.operands = 1;
      change(d);
    });
  };
  struct Case {
    std::function<void(shm::RmsNorm*)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](auto* n) { n->quant = 3; }, "rms_norm.quant is 3: want 0 (none)"},
      {[](auto* n) { n->gemma = 2; }, "rms_norm.gemma is 2: want 0 or 1"},
      {[](auto* n) { n->weight_dtype = 9; }, "rms_norm.weight_dtype is 9: want 1 (fp16)"},
      {[](auto* n) { n->operands = 4; }, "rms_norm.operands is 4: want 0 to 3"},
      {[](auto* n) { n->residual_layout = 2; },
       "rms_norm.residual_layout is 2: want 0 (full) or 1 (sharded)"},
      {[](auto* n) { n->reserved[58] = 1; }, "rms_norm.reserved[58] is 1: want 0"},
      {[](auto* n) { n->tokens = UINT64_MAX; }, "tokens = 18446744073709551615"},
      {[](auto* n) { n->tokens = 3; }, "count = 256: want tokens * hidden = 384"},
      {[](auto* n) { n->eps_bits = 0; }, "eps = 0: want a finite number"},
      {[](auto* n) { n->residual_out.offset_bytes = 65536 - 256; },
       "count is 256: residual_out has room for 128"},
      {[](auto* n) { n->residual_layout = 1, n->residual_out.offset_bytes = 65536 - 240; },
       "own rows * hidden is 256: residual_out has room for 120"},
      {[](auto* n) { n->residual_layout = 1, n->residual_out = {}; },
       "residual_out: arena_id is 0"},
  };
  for (const Case& test : cases) {
    const RawCompletion c = run([&](shm::Descriptor* d) { test.change(&d->rms_norm); });
    EXPECT_EQ(c.status, shm::Status::kInvalidArgument) << test.text;
    EXPECT_THAT(c.message, HasSubstr(test.text));
  }
}

TEST_F(HostileMemoryTest, FreedArenaIsAStaleHandle) {  // F27
  const RawArena first = bad[0]->Alloc(4096);
  ASSERT_EQ(bad[0]->Free(first), "");
  const RawArena second = bad[0]->Alloc(4096);
  EXPECT_EQ(second.arena_id, first.arena_id);
  EXPECT_NE(second.generation, first.generation);
  const RawCompletion c = bad[0]->Wait(bad[0]->Post(bad[0]->AllReduce(first, 0, 0, 4)));
  EXPECT_EQ(c.status, shm::Status::kInvalidArgument);
  EXPECT_THAT(c.message, HasSubstr("stale handle"));
  EXPECT_EQ(bad[0]->Wait(bad[0]->Post(bad[0]->AllReduce(second, 0, 0, 4))).status,
            shm::Status::kOk);
}

TEST_F(HostileMemoryTest, SlotOutOfRangeClosesTheSession) {
  bad[0]->PublishSlot(UINT32_MAX);
  EXPECT_TRUE(bad[0]->WaitForClose());
}

TEST_F(HostileMemoryTest, TailFarAheadClosesTheSession) {
  bad[0]->producer()->tail.store(17);
  bad[0]->RingDoorbell(true);
  EXPECT_TRUE(bad[0]->WaitForClose());
}

TEST_F(HostileMemoryTest, TailThatGoesBackClosesTheSession) {
  RunBad([](shm::Descriptor*) {});
  bad[0]->producer()->tail.store(0);
  bad[0]->RingDoorbell(true);
  EXPECT_TRUE(bad[0]->WaitForClose());
}

TEST_F(HostileMemoryTest, SlotInFlightTwiceClosesTheSessionAndNamesItToItsPeers) {
  auto pair = daemon.Group(2, "pair");
  const RawArena a = pair[0]->Alloc(4096), b = pair[1]->Alloc(4096);
  const uint32_t slot = pair[0]->Post(pair[0]->AllReduce(a, 0, 0, 1));
  pair[0]->PublishSlot(slot);
  EXPECT_TRUE(pair[0]->WaitForClose());
  const RawCompletion c = pair[1]->Wait(pair[1]->Post(pair[1]->AllReduce(b, 0, 0, 1)));
  EXPECT_EQ(c.status, shm::Status::kPeerLost);
  EXPECT_THAT(c.message, HasSubstr("rank 0 (process "));
  EXPECT_THAT(c.message, HasSubstr("names slot 0, whose operation is in flight"));
}

TEST_F(HostileMemoryTest, HugeRingFullCounterDoesNoHarm) {
  bad[0]->producer()->ring_full.store(UINT64_MAX);
  EXPECT_EQ(RunBad([](shm::Descriptor*) {}).status, shm::Status::kOk);
  bad[0]->producer()->ring_full.store(3);
  EXPECT_EQ(RunBad([](shm::Descriptor*) {}).status, shm::Status::kOk);
}

TEST_F(HostileMemoryTest, DaemonsWordsAreNeverReadBack) {
  RunBad([](shm::Descriptor*) {});
  bad[0]->consumer()->head.store(12345);
  auto* header = reinterpret_cast<shm::SessionHeader*>(bad[0]->segment());
  const shm::SessionHeader before = *header;
  std::memset(static_cast<void*>(header), 0xFF, sizeof(*header));
  *header = before;
  EXPECT_EQ(RunBad([](shm::Descriptor*) {}).status, shm::Status::kOk);
}

TEST_F(HostileMemoryTest, SegmentsAreSealed) {
  EXPECT_NE(ftruncate(bad[0]->segment_fd(), 0), 0);
  EXPECT_NE(ftruncate(bad[0]->segment_fd(), 1 << 20), 0);
  EXPECT_NE(ftruncate(bad[0]->node_fd(), 0), 0);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, bad[0]->node_fd(), 0),
            MAP_FAILED);
  const char byte = 1;
  EXPECT_LT(pwrite(bad[0]->node_fd(), &byte, 1, 0), 0);
  EXPECT_EQ(fcntl(bad[0]->segment_fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST_F(HostileMemoryTest, RandomBytesInTheWholeSegment) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    auto victim = daemon.Group(1, "fuzz");
    std::mt19937 random(seed);
    for (uint64_t i = 0; i < victim[0]->segment_bytes(); ++i) {
      if (i >= shm::kProducerOffsetBytes && i < shm::kProducerOffsetBytes + 8) continue;
      victim[0]->segment()[i] = static_cast<std::byte>(random());
    }
    // Sometimes a believable tail, sometimes none.
    const uint64_t tail = seed % 3 == 0 ? random() : random() % 17;
    victim[0]->producer()->tail.store(tail);
    victim[0]->RingDoorbell(true);
    // The same thread serves the others, after it has looked at this ring.
    ExpectGoodGroupIsServed();
  }
}

TEST_F(HostileMemoryTest, RandomDescriptorsWithValidRing) {
  auto victim = daemon.Group(1, "fuzz");
  const RawArena a = victim[0]->Alloc(1 << 16);
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    shm::Descriptor d = victim[0]->AllReduce(a, 0, 32768, 16);
    const int mutations = 1 + static_cast<int>(random() % 3);
    for (int m = 0; m < mutations; ++m) {
      auto* bytes = reinterpret_cast<uint8_t*>(&d);
      const uint64_t at = random() % (i % 2 == 0 ? 72 : 256);
      bytes[at] = static_cast<uint8_t>(random());
    }
    const RawCompletion c = victim[0]->Wait(victim[0]->Post(d));
    ASSERT_TRUE(c.done) << i;
    ASSERT_TRUE(c.status == shm::Status::kOk || c.status == shm::Status::kInvalidArgument ||
                c.status == shm::Status::kUnimplemented)
        << c.message;
    if (c.status != shm::Status::kOk) {
      ASSERT_NE(c.message, "");
    }
  }
}

TEST_F(HostileMemoryTest, DescriptorsThatChangeWhileTheDaemonReads) {
  auto victim = daemon.Group(1, "fuzz");
  const RawArena a = victim[0]->Alloc(1 << 16);
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937_64 random(11);
    while (!stop.load()) {
      auto* words =
          reinterpret_cast<uint64_t*>(victim[0]->descriptor(static_cast<uint32_t>(random() % 16)));
      // count and the offsets: good and bad values in turn.
      const uint64_t values[] = {0, 16, 16384, uint64_t{1} << 63, 32768, UINT64_MAX};
      std::atomic_ref<uint64_t>(words[3 + random() % 5])
          .store(values[random() % 6], std::memory_order_relaxed);
    }
  });
  for (int i = 0; i < 3000; ++i) {
    const RawCompletion c = victim[0]->Wait(victim[0]->Post(victim[0]->AllReduce(a, 0, 32768, 16)));
    ASSERT_TRUE(c.done);
    ASSERT_TRUE(c.status == shm::Status::kOk || c.status == shm::Status::kInvalidArgument)
        << c.message;
  }
  stop.store(true);
  scribbler.join();
}

TEST_F(HostileMemoryTest, WholeSegmentScribbledWhileItIsServed) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    auto victim = daemon.Group(1, "fuzz");
    std::mt19937_64 random(seed);
    auto* words = reinterpret_cast<uint64_t*>(victim[0]->segment());
    const uint64_t count = victim[0]->segment_bytes() / 8;
    for (int i = 0; i < 20000; ++i) {
      std::atomic_ref<uint64_t>(words[random() % count]).store(random() % 32);
      if (i % 16 == 0) victim[0]->producer()->tail.fetch_add(1);
      if (i % 1000 == 0) victim[0]->RingDoorbell(true);
    }
    ExpectGoodGroupIsServed();
  }
}

}  // namespace
}  // namespace qrd::testing
