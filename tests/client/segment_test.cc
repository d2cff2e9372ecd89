// SPDX-License-Identifier: Apache-2.0
#include "client/core/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "client/core/error.h"

namespace qrd::client {
namespace {

using ::testing::HasSubstr;

UniqueFd MakeFile(const void* content, size_t content_bytes, uint64_t bytes, bool sealed = true) {
  UniqueFd fd(memfd_create("qrd-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(fd.get(), content, content_bytes, 0), static_cast<ssize_t>(content_bytes));
  if (sealed) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

constexpr uint32_t kSlots = 16;

shm::SessionHeader GoodSession() {
  shm::SessionHeader h{};
  h.magic = shm::kSessionMagic;
  h.layout_version = shm::kLayoutVersion;
  h.segment_bytes = shm::SessionSegmentBytes(kSlots);
  h.session_id = 7;
  h.rank = 1;
  h.world_size = 2;
  h.slot_count = kSlots;
  h.ring_offset_bytes = shm::kRingOffsetBytes;
  h.descriptor_offset_bytes = shm::DescriptorOffsetBytes(kSlots);
  h.completion_offset_bytes = shm::CompletionOffsetBytes(kSlots);
  return h;
}

std::string MapSession(const std::function<void(shm::SessionHeader*)>& edit) {
  shm::SessionHeader h = GoodSession();
  edit(&h);
  const uint64_t bytes = shm::SessionSegmentBytes(kSlots);
  const UniqueFd fd = MakeFile(&h, sizeof(h), bytes);
  SessionSegment segment;
  const qrd_status status = segment.Map(fd.get(), bytes, 1, 2);
  return status == QRD_OK ? "" : std::string(StatusName(status)) + ": " + LastError();
}

TEST(SessionSegmentTest, AcceptsWhatTheLayoutSays) {
  const shm::SessionHeader h = GoodSession();
  const UniqueFd fd = MakeFile(&h, sizeof(h), h.segment_bytes);
  SessionSegment segment;
  ASSERT_EQ(segment.Map(fd.get(), h.segment_bytes, 1, 2), QRD_OK) << LastError();
  EXPECT_EQ(segment.slot_count(), kSlots);
  const auto* base = reinterpret_cast<const std::byte*>(segment.producer()) - 128;
  EXPECT_EQ(reinterpret_cast<const std::byte*>(segment.consumer()) - base, 192);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(segment.ring()) - base, 256);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(segment.descriptor(3)) - base, 256 + 64 + 3 * 256);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(segment.completion(2)) - base,
            256 + 64 + 16 * 256 + 2 * 512);
}

TEST(SessionSegmentTest, RefusesEachWrongField) {
  struct Case {
    std::function<void(shm::SessionHeader*)> edit;
    const char* text;
  };
  const Case cases[] = {
      {[](auto* h) { h->magic = 1; },
       "session segment from the daemon: magic is 1, want 1396986449"},
      {[](auto* h) { h->layout_version = 9; }, "layout_version is 9, want 2"},
      {[](auto* h) { h->segment_bytes += 4096; }, "segment_bytes is"},
      {[](auto* h) { h->rank = 0; }, "rank is 0, want 1"},
      {[](auto* h) { h->world_size = 3; }, "world_size is 3, want 2"},
      {[](auto* h) { h->slot_count = 12; }, "slot_count is 12, want a power of two, 8 to 1024"},
      {[](auto* h) { h->slot_count = 4; }, "slot_count is 4, want a power of two, 8 to 1024"},
      {[](auto* h) { h->slot_count = 2048; }, "slot_count is 2048, want a power of two, 8 to 1024"},
      {[](auto* h) { h->slot_count = 0; }, "slot_count is 0, want a power of two"},
      {[](auto* h) { h->slot_count = 1024; }, "size in bytes is"},
      {[](auto* h) { h->ring_offset_bytes = ~uint64_t{0}; },
       "ring_offset_bytes is 18446744073709551615"},
      {[](auto* h) { h->descriptor_offset_bytes = 0; }, "descriptor_offset_bytes is 0, want 320"},
      {[](auto* h) { h->completion_offset_bytes += 64; },
       "completion_offset_bytes is 4480, want 4416"},
  };
  for (const Case& c : cases) {
    const std::string error = MapSession(c.edit);
    EXPECT_THAT(error, HasSubstr("INTERNAL: ")) << c.text;
    EXPECT_THAT(error, HasSubstr(c.text));
  }
}

TEST(MappingTest, RefusesAFileOfAnotherSize) {
  const char byte = 1;
  const UniqueFd fd = MakeFile(&byte, 1, 8192);
  Mapping mapping;
  EXPECT_EQ(mapping.Map(fd.get(), 4096, Access::kReadWrite, "arena"), QRD_INTERNAL);
  EXPECT_STREQ(LastError(), "arena from the daemon: size in bytes is 8192, want 4096");
  EXPECT_EQ(mapping.Map(fd.get(), uint64_t{1} << 63, Access::kReadWrite, "arena"), QRD_INTERNAL);
  EXPECT_EQ(mapping.data(), nullptr);
}

TEST(MappingTest, RefusesAFileThatCouldShrinkUnderTheReader) {
  const char byte = 1;
  const UniqueFd fd = MakeFile(&byte, 1, 4096, /*sealed=*/false);
  Mapping mapping;
  EXPECT_EQ(mapping.Map(fd.get(), 4096, Access::kReadWrite, "arena"), QRD_INTERNAL);
  EXPECT_THAT(LastError(),
              HasSubstr("arena from the daemon: seals are 0x0, want SHRINK, GROW and SEAL"));
}

TEST(MappingTest, RefusesWhatIsNotAMemoryFile) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Mapping mapping;
  EXPECT_EQ(mapping.Map(fds[0], 4096, Access::kRead, "arena"), QRD_INTERNAL);
  EXPECT_STREQ(LastError(), "arena from the daemon is not a memory file");
  close(fds[0]);
  close(fds[1]);
}

TEST(MappingTest, MovesAndUnmaps) {
  const char byte = 42;
  const UniqueFd fd = MakeFile(&byte, 1, 4096);
  Mapping a;
  ASSERT_EQ(a.Map(fd.get(), 4096, Access::kReadWrite, "arena"), QRD_OK);
  Mapping b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.data()[0], std::byte{42});
  b.Unmap();
  EXPECT_EQ(b.bytes(), 0u);
}

TEST(NodeSegmentTest, ChecksSizeMagicAndVersion) {
  shm::NodeHeader h{};
  h.magic = shm::kNodeMagic;
  h.layout_version = shm::kLayoutVersion;
  h.segment_bytes = shm::kNodeSegmentBytes;
  NodeSegment node;
  {
    const UniqueFd fd = MakeFile(&h, sizeof(h), 4096);
    EXPECT_EQ(node.Map(fd.get(), 4096), QRD_OK);
    EXPECT_EQ(node.engine_sleeping()->load(), 0u);
    EXPECT_EQ(node.Map(fd.get(), 8192), QRD_INTERNAL);
    EXPECT_STREQ(LastError(), "node segment from the daemon: size in bytes is 8192, want 4096");
  }
  h.layout_version = 3;
  {
    const UniqueFd fd = MakeFile(&h, sizeof(h), 4096);
    EXPECT_EQ(node.Map(fd.get(), 4096), QRD_INTERNAL);
    EXPECT_STREQ(LastError(), "node segment from the daemon: layout_version is 3, want 2");
  }
  h.magic = 0;
  const UniqueFd fd = MakeFile(&h, sizeof(h), 4096);
  EXPECT_EQ(node.Map(fd.get(), 4096), QRD_INTERNAL);
  EXPECT_THAT(LastError(), HasSubstr("magic is 0, want 1313100369"));
}

}  // namespace
}  // namespace qrd::client
