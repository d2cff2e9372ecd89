// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/arena_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"

namespace qrd {
namespace {

using ::testing::HasSubstr;

class ArenaTableTest : public ::testing::Test {
 protected:
  ArenaTableTest()
      : budget(std::make_shared<ArenaBudget>(64 << 10)),
        table(std::make_unique<ArenaTable>(&backend, "", ArenaTable::Limits{4, 32 << 10}, budget,
                                           memory, counters)) {}
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }

  testing::FakeBackend backend;
  std::shared_ptr<ArenaBudget> budget;
  std::shared_ptr<MemoryThread> memory = std::make_shared<MemoryThread>();  // not started
  ArenaCounters counters;
  std::unique_ptr<ArenaTable> table;
};

TEST_F(ArenaTableTest, BytesAreRoundedUpToPagesAndCounted) {
  const auto arena = table->Allocate(1);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->bytes, 4096u);
  EXPECT_EQ(counters.arenas->load(), 1u);
  EXPECT_EQ(counters.bytes->load(), 4096u);
  EXPECT_EQ(budget->used_bytes(), 4096u);
  EXPECT_TRUE(table->Free(arena->arena_id, arena->generation).ok());
  EXPECT_EQ(counters.bytes->load(), 0u);
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_F(ArenaTableTest, EachBoundIsNamed) {
  EXPECT_EQ(Text(table->Allocate(0).status()), "arena bytes is 0, want at least 1");
  EXPECT_EQ(Text(table->Allocate(UINT64_MAX).status()),
            "arena bytes is 18446744073709551615: arena_bytes_per_session_max is 32768");
  ASSERT_TRUE(table->Allocate(28 << 10).ok());
  EXPECT_EQ(Text(table->Allocate(4097).status()),
            "session has 28672 arena bytes and asks for 8192 more: arena_bytes_per_session_max is "
            "32768");
  ArenaTable second(&backend, "", {4, 32 << 10}, budget, memory, ArenaCounters());
  ASSERT_TRUE(second.Allocate(32 << 10).ok());
  EXPECT_EQ(budget->used_bytes(), 60u << 10);
  ArenaTable third(&backend, "", {4, 32 << 10}, budget, memory, ArenaCounters());
  EXPECT_EQ(Text(third.Allocate(8 << 10).status()),
            "all sessions have 61440 arena bytes, this one asks for 8192 more: arena_bytes_max is "
            "65536");
  ArenaTable many(&backend, "", {2, 32 << 10}, budget, memory, ArenaCounters());
  ArenaTable few(&backend, "", {1, 32 << 10}, budget, memory, ArenaCounters());
  ASSERT_TRUE(few.Allocate(1).ok());
  EXPECT_EQ(Text(few.Allocate(1).status()), "session has 1 arenas: arenas_per_session_max is 1");
  EXPECT_EQ(few.Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ArenaTableTest, HandlesCarryAGeneration) {
  const auto first = table->Allocate(1);
  ASSERT_TRUE(table->Free(first->arena_id, first->generation).ok());
  const auto second = table->Allocate(1);
  EXPECT_EQ(second->arena_id, first->arena_id);
  EXPECT_THAT(Text(table->Free(first->arena_id, first->generation)), HasSubstr("stale handle"));
  EXPECT_THAT(Text(table->Lookup(first->arena_id, first->generation).status()),
              HasSubstr("stale handle: arena 1 of generation 1 was freed"));
  EXPECT_TRUE(table->Lookup(second->arena_id, second->generation).ok());
  EXPECT_EQ(table->Free(9, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table->Free(0, 0).code(), absl::StatusCode::kNotFound);
}

TEST_F(ArenaTableTest, PinnedArenaIsNotFreed) {
  const auto arena = table->Allocate(1);
  auto pin = table->Lookup(arena->arena_id, arena->generation);
  ASSERT_TRUE(pin.ok());
  const absl::Status refused = table->Free(arena->arena_id, arena->generation);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Text(refused), "arena 1 is in use by 1 tensors of operations in flight");
  pin->Reset();
  EXPECT_TRUE(table->Free(arena->arena_id, arena->generation).ok());
}

TEST_F(ArenaTableTest, PinOutlivesTheTable) {
  const auto arena = table->Allocate(1);
  auto pin = table->Lookup(arena->arena_id, arena->generation);
  table.reset();
  pin->data()[0] = std::byte{1};
  EXPECT_EQ(budget->used_bytes(), 4096u);
  pin->Reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

}  // namespace
}  // namespace qrd
