// SPDX-License-Identifier: Apache-2.0
#include "client/src/memory_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/core/unique_fd.h"

namespace qrd::client {
namespace {

Block MakeBlock(uintptr_t start, size_t bytes) {
  Block block;
  block.start = start;
  block.bytes = bytes;
  return block;
}

std::unique_ptr<Arena> MakeArena(uint32_t id, size_t bytes) {
  const UniqueFd fd(memfd_create("qrd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  auto arena = std::make_unique<Arena>();
  arena->id = id;
  EXPECT_EQ(arena->mapping.Map(fd.get(), bytes, Access::kReadWrite, "arena"), QRD_OK);
  return arena;
}

TEST(MemoryTableTest, FindsTheBlockAroundAPointerAndNothingBesideIt) {
  MemoryTable table;
  Block* block = table.Insert(MakeBlock(1000, 100));
  EXPECT_EQ(table.FindOverlap(1000, 1), block);
  EXPECT_EQ(table.FindOverlap(1099, 1), block);
  EXPECT_EQ(table.FindOverlap(1100, 1), nullptr);
  EXPECT_EQ(table.FindOverlap(999, 1), nullptr);
  EXPECT_EQ(table.FindOverlap(999, 2), block);
  EXPECT_EQ(table.FindOverlap(0, 5000), block);
  EXPECT_EQ(table.FindOverlap(1050, 0), nullptr);
  EXPECT_EQ(table.FindOverlap(2000, SIZE_MAX - 3000), nullptr);
}

TEST(MemoryTableTest, FindsTheLowestOfSeveral) {
  MemoryTable table;
  Block* low = table.Insert(MakeBlock(1000, 100));
  Block* high = table.Insert(MakeBlock(1100, 100));
  EXPECT_EQ(table.FindOverlap(1050, 100), low);
  EXPECT_EQ(table.FindOverlap(1100, 100), high);
  EXPECT_EQ(table.FindStart(1100), high);
  EXPECT_EQ(table.FindStart(1101), nullptr);
}

TEST(MemoryTableTest, TopOfTheAddressSpaceDoesNotWrap) {
  MemoryTable table;
  Block* block = table.Insert(MakeBlock(UINTPTR_MAX - 9, 10));
  EXPECT_EQ(table.FindOverlap(UINTPTR_MAX, 1), block);
  EXPECT_EQ(table.FindOverlap(0, 100), nullptr);
}

TEST(MemoryTableTest, RemoveForgetsTheBlock) {
  MemoryTable table;
  Block* block = table.Insert(MakeBlock(1000, 100));
  table.Remove(block);
  EXPECT_EQ(table.FindOverlap(1000, 100), nullptr);
}

TEST(MemoryTableTest, StagingSizesArePowersOfTwo) {
  EXPECT_EQ(MemoryTable::StagingBytes(1), size_t{64} << 10);
  EXPECT_EQ(MemoryTable::StagingBytes(64 << 10), size_t{64} << 10);
  EXPECT_EQ(MemoryTable::StagingBytes((64 << 10) + 1), size_t{128} << 10);
  EXPECT_EQ(MemoryTable::StagingBytes(SIZE_MAX), SIZE_MAX);
}

TEST(MemoryTableTest, IdleStagingIsTakenByFitNewestFirst) {
  MemoryTable table;
  table.PutIdle(MakeArena(1, 64 << 10));
  table.PutIdle(MakeArena(2, 1 << 20));
  table.PutIdle(MakeArena(3, 64 << 10));
  EXPECT_EQ(table.TakeIdle(100)->id, 3u);
  EXPECT_EQ(table.TakeIdle(100)->id, 1u);
  EXPECT_EQ(table.TakeIdle(100), nullptr);  // 1 MiB would be wasted on it
  EXPECT_EQ(table.TakeIdle(2 << 20), nullptr);
  EXPECT_EQ(table.TakeIdle(1 << 20)->id, 2u);
}

TEST(MemoryTableTest, IdleStagingIsBoundedAndTheOldestGoesFirst) {
  MemoryTable table;
  for (uint32_t id = 0; id < MemoryTable::kIdleCountMax; ++id) {
    table.PutIdle(MakeArena(id, 64 << 10));
    EXPECT_EQ(table.TakeExcess(), nullptr);
  }
  table.PutIdle(MakeArena(100, 64 << 10));
  EXPECT_EQ(table.TakeExcess()->id, 0u);
  EXPECT_EQ(table.TakeExcess(), nullptr);
  EXPECT_EQ(table.TakeAnyIdle()->id, 1u);
}

TEST(MemoryTableTest, TheTwoNewestAreKeptAtAnySize) {
  MemoryTable table;
  for (uint32_t id = 0; id < 3; ++id) table.PutIdle(MakeArena(id, size_t{1} << 30));  // sparse
  EXPECT_EQ(table.TakeExcess()->id, 0u);
  EXPECT_EQ(table.TakeExcess(), nullptr);
}

}  // namespace
}  // namespace qrd::client
