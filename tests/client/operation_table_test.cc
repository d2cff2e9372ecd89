// SPDX-License-Identifier: Apache-2.0
#include "client/src/operation_table.h"

#include <gtest/gtest.h>

#include <set>

namespace qrd::client {
namespace {

TEST(OperationTableTest, EverySlotIsReservedOnceAndThenNone) {
  OperationTable table(8);
  std::set<uint32_t> slots;
  uint32_t slot = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(table.Reserve(&slot));
    slots.insert(slot);
  }
  EXPECT_EQ(slots.size(), 8u);
  EXPECT_EQ(*slots.rbegin(), 7u);
  EXPECT_FALSE(table.Reserve(&slot));
  table.Release(3);
  ASSERT_TRUE(table.Reserve(&slot));
  EXPECT_EQ(slot, 3u);
}

TEST(OperationTableTest, TokensNameOneOperationOnly) {
  OperationTable table(8);
  uint32_t slot = 0, found = 99;
  ASSERT_TRUE(table.Reserve(&slot));
  const qrd_operation first = table.Post(slot, 1);
  EXPECT_NE(first, 0u);
  ASSERT_TRUE(table.Find(first, &found));
  EXPECT_EQ(found, slot);
  table.Release(slot);
  EXPECT_FALSE(table.Find(first, &found));
  ASSERT_TRUE(table.Reserve(&slot));
  const qrd_operation second = table.Post(slot, 2);
  EXPECT_FALSE(table.Find(first, &found));
  EXPECT_TRUE(table.Find(second, &found));
}

TEST(OperationTableTest, ForgedTokensAreNotFound) {
  OperationTable table(8);
  uint32_t found = 0;
  EXPECT_FALSE(table.Find(0, &found));
  EXPECT_FALSE(table.Find(5, &found));                      // a free slot has sequence 0
  EXPECT_FALSE(table.Find(uint64_t{1} << 10 | 9, &found));  // no such slot
  EXPECT_FALSE(table.Find(~uint64_t{0}, &found));
}

TEST(OperationTableTest, ASlotWithWaitersIsFreedByTheLastOfThem) {
  OperationTable table(1);
  uint32_t slot = 0, other = 0;
  ASSERT_TRUE(table.Reserve(&slot));
  table.Post(slot, 1);
  table.AddWaiter(slot);
  table.AddWaiter(slot);
  table.RemoveWaiter(slot);
  table.Release(slot);
  EXPECT_FALSE(table.Reserve(&other));
  table.RemoveWaiter(slot);
  EXPECT_TRUE(table.Reserve(&other));
}

}  // namespace
}  // namespace qrd::client
