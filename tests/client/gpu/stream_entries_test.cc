// SPDX-License-Identifier: Apache-2.0
#include "client/src/stream_entries.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace qrd::client {
namespace {

shm::Descriptor DescriptorOf(uint64_t count, uint64_t offset_bytes = 0) {
  shm::Descriptor descriptor;
  std::memset(&descriptor, 0, sizeof(descriptor));
  descriptor.kind = shm::Kind::kAllReduce;
  descriptor.count = count;
  descriptor.input.offset_bytes = offset_bytes;
  return descriptor;
}

TEST(StreamEntriesTest, AllEntriesAreGivenOutOnceAndThenNone) {
  StreamEntries entries(8);
  std::set<uint32_t> taken;
  uint32_t entry = 0;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(entries.Take(&entry));
    EXPECT_LT(entry, 8u);
    taken.insert(entry);
  }
  EXPECT_EQ(taken.size(), 8u);
  EXPECT_EQ(entries.touched(), 8u);
  EXPECT_FALSE(entries.Take(&entry));
  entries.PutBack(3);
  ASSERT_TRUE(entries.Take(&entry));
  EXPECT_EQ(entry, 3u);
}

TEST(StreamEntriesTest, QueuedEntriesAreFreedOldestFirst) {
  StreamEntries entries(8);
  uint32_t a = 0, b = 0, again = 0;
  ASSERT_TRUE(entries.Take(&a));
  entries.Queue({a, 1, {}});
  ASSERT_TRUE(entries.Take(&b));
  entries.Queue({b, 2, {}});
  ASSERT_NE(entries.Oldest(), nullptr);
  EXPECT_EQ(entries.Oldest()->ticket, 1u);
  entries.RetireOldest();
  EXPECT_EQ(entries.Oldest()->ticket, 2u);
  ASSERT_TRUE(entries.Take(&again));
  EXPECT_EQ(again, a);
  entries.UnqueueNewest();
  EXPECT_EQ(entries.Oldest(), nullptr);
  ASSERT_TRUE(entries.Take(&again));
  EXPECT_EQ(again, b);
}

TEST(StreamEntriesTest, CapturedOperationsWithOneDescriptorShareAnEntry) {
  StreamEntries entries(8);
  uint32_t entry = 0, found = 99;
  ASSERT_TRUE(entries.Take(&entry));
  EXPECT_FALSE(entries.FindKept(DescriptorOf(5), &found));
  entries.Keep(entry, DescriptorOf(5));
  ASSERT_TRUE(entries.FindKept(DescriptorOf(5), &found));
  EXPECT_EQ(found, entry);
  EXPECT_FALSE(entries.FindKept(DescriptorOf(6), &found));
  EXPECT_FALSE(entries.FindKept(DescriptorOf(5, 256), &found));
  EXPECT_EQ(entries.kept(), 1u);
}

}  // namespace
}  // namespace qrd::client
