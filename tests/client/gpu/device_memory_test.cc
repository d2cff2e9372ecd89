// SPDX-License-Identifier: Apache-2.0
// Sub-allocation of device memory: ranges, arenas, what is fetched and given back when.
#include "client/src/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "client/core/error.h"

namespace qrd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(RangeAllocatorTest, BlocksAreAlignedAndDoNotOverlap) {
  RangeAllocator range(64 * kMiB);
  std::mt19937 random(5);
  std::map<uint64_t, uint64_t> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (random() % 3 != 0 || blocks.empty()) {
      const uint64_t bytes = 1 + random() % 200'000;
      uint64_t offset = 0;
      if (!range.Allocate(bytes, &offset)) continue;
      ASSERT_EQ(offset % RangeAllocator::kAlignmentBytes, 0u);
      ASSERT_LE(offset + bytes, range.bytes());
      const auto after = blocks.lower_bound(offset);
      if (after != blocks.end()) {
        ASSERT_LE(offset + bytes, after->first);
      }
      if (after != blocks.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second, offset);
      }
      blocks[offset] = bytes;
    } else {
      const auto victim = std::next(blocks.begin(), random() % blocks.size());
      ASSERT_TRUE(range.Free(victim->first));
      blocks.erase(victim);
    }
  }
  for (const auto& [offset, bytes] : blocks) ASSERT_TRUE(range.Free(offset));
  // All free parts have been merged again.
  uint64_t offset = 1;
  EXPECT_TRUE(range.empty());
  EXPECT_EQ(range.used_bytes(), 0u);
  EXPECT_TRUE(range.Allocate(64 * kMiB, &offset));
  EXPECT_EQ(offset, 0u);
}

TEST(RangeAllocatorTest, TheLastBlockMayEndAtAnyByte) {
  RangeAllocator range(1000);
  uint64_t a = 0, b = 0, c = 0;
  ASSERT_TRUE(range.Allocate(700, &a));
  EXPECT_FALSE(range.Allocate(300, &b));  // 768 to 1000 are left
  ASSERT_TRUE(range.Allocate(232, &b));
  EXPECT_EQ(b, 768u);
  EXPECT_FALSE(range.Allocate(1, &c));
  EXPECT_EQ(range.used_bytes(), 1000u);
  EXPECT_TRUE(range.Free(b));
  EXPECT_FALSE(range.Free(b));
  EXPECT_FALSE(range.Free(256));
  EXPECT_FALSE(range.Allocate(0, &c));
  EXPECT_FALSE(range.Allocate(UINT64_MAX, &c));
}

class FakeSource final : public DeviceMemory::Source {
 public:
  qrd_status AllocateDeviceArena(uint64_t bytes, DeviceArena* arena) override {
    requested.push_back(bytes);
    if (bytes > bytes_max) return Fail(QRD_RESOURCE_EXHAUSTED, "arena bytes: the bound");
    arena->id = next_id++;
    arena->generation = arena->id + 100;
    arena->bytes = (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    arena->base = uint64_t{arena->id} << 40;
    live[arena->id] = arena->bytes;
    return QRD_OK;
  }
  void FreeDeviceArena(const DeviceArena& arena) override { live.erase(arena.id); }

  uint32_t next_id = 1;
  uint64_t bytes_max = UINT64_MAX;
  std::vector<uint64_t> requested;
  std::map<uint32_t, uint64_t> live;
};

class DeviceMemoryTest : public ::testing::Test {
 protected:
  DeviceMemory::Place Allocate(uint64_t bytes) {
    DeviceMemory::Place place;
    EXPECT_EQ(memory_.Allocate(bytes, &place), QRD_OK) << LastError();
    return place;
  }

  FakeSource source_;
  DeviceMemory memory_{&source_};
};

TEST_F(DeviceMemoryTest, SmallBlocksShareAnArena) {
  const auto a = Allocate(100);
  const auto b = Allocate(5000);
  EXPECT_THAT(source_.requested, ElementsAre(64 * kMiB));
  EXPECT_EQ(a.arena_id, b.arena_id);
  EXPECT_EQ(a.generation, 101u);
  EXPECT_EQ(a.address, (uint64_t{1} << 40) + a.offset_bytes);
  EXPECT_EQ(b.address, (uint64_t{1} << 40) + b.offset_bytes);
  EXPECT_EQ(b.offset_bytes, 256u);
}

TEST_F(DeviceMemoryTest, ALargeBlockGetsAnArenaOfItsSize) {
  Allocate(100 * kMiB);
  EXPECT_THAT(source_.requested, ElementsAre(100 * kMiB));
}

TEST_F(DeviceMemoryTest, OneEmptyArenaIsKeptTheSmallerOne) {
  const auto small = Allocate(kMiB);
  const auto large = Allocate(100 * kMiB);
  EXPECT_TRUE(memory_.Free(large.address));
  EXPECT_EQ(source_.live.size(), 2u);
  EXPECT_TRUE(memory_.Free(small.address));
  EXPECT_THAT(source_.live, ElementsAre(std::pair(1u, 64 * kMiB)));
  Allocate(3 * kMiB);
  EXPECT_EQ(source_.requested.size(), 2u);  // the kept one is used
  memory_.DropEmpty();
  EXPECT_EQ(source_.live.size(), 1u);
}

TEST_F(DeviceMemoryTest, DropEmptyGivesTheKeptArenaBack) {
  EXPECT_TRUE(memory_.Free(Allocate(kMiB).address));
  EXPECT_EQ(source_.live.size(), 1u);
  memory_.DropEmpty();
  EXPECT_THAT(source_.live, IsEmpty());
  EXPECT_EQ(memory_.arena_count(), 0u);
}

TEST_F(DeviceMemoryTest, NearTheBoundTheBlockAloneIsAskedFor) {
  source_.bytes_max = 3 * kMiB;
  Allocate(2 * kMiB);
  EXPECT_THAT(source_.requested, ElementsAre(64 * kMiB, 2 * kMiB));
  DeviceMemory::Place place;
  EXPECT_EQ(memory_.Allocate(4 * kMiB, &place), QRD_RESOURCE_EXHAUSTED);
  EXPECT_THAT(LastError(), HasSubstr("the bound"));
}

TEST_F(DeviceMemoryTest, OnlyStartsOfBlocksAreFreed) {
  const auto block = Allocate(kMiB);
  EXPECT_FALSE(memory_.Free(block.address + 256));
  EXPECT_FALSE(memory_.Free(17));
  EXPECT_TRUE(memory_.Free(block.address));
  EXPECT_FALSE(memory_.Free(block.address));
}

TEST_F(DeviceMemoryTest, TakeAllLeavesNothing) {
  Allocate(kMiB);
  Allocate(100 * kMiB);
  EXPECT_EQ(memory_.TakeAll().size(), 2u);
  EXPECT_EQ(memory_.arena_count(), 0u);
}

}  // namespace
}  // namespace qrd::client
