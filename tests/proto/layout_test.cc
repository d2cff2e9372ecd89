// SPDX-License-Identifier: Apache-2.0
// Goal: no byte of shared memory moves by accident, since client and daemon of different builds
// share it. Method: every number of proto/shm/layout.h is written down once more, as in layout.md.
// If a line here fails, the layout changed: that needs a new kLayoutVersion and new tables, not a
// new number in this file alone.
#include "proto/shm/layout.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "client/include/qrd/qrd.h"
#include "gtest/gtest.h"

namespace qrd::shm {
namespace {

// offsetof on these types is fine: they are standard layout (first test).
#define EXPECT_FIELD(type, field, offset_bytes, width_bytes) \
  EXPECT_EQ(offsetof(type, field), size_t{offset_bytes});    \
  EXPECT_EQ(sizeof(std::declval<type&>().field), size_t{width_bytes})

TEST(LayoutTest, VersionMagicsAndBoundsAreTheDocumentedOnes) {
  EXPECT_EQ(kLayoutVersion, 2u);
  EXPECT_EQ(kNodeMagic, 0x4E445251u);
  EXPECT_EQ(kSessionMagic, 0x53445251u);
  EXPECT_EQ(std::memcmp(&kNodeMagic, "QRDN", 4), 0);
  EXPECT_EQ(std::memcmp(&kSessionMagic, "QRDS", 4), 0);
  EXPECT_EQ(kCacheLineBytes, 64u);
  EXPECT_EQ(kSlotsMin, 8u);
  EXPECT_EQ(kSlotsMax, 1024u);
  EXPECT_EQ(kWorldSizeMax, 16u);
  EXPECT_EQ(kMessageBytes, 384u);
}

template <typename T>
void ExpectPlain(size_t bytes, size_t alignment) {
  EXPECT_TRUE(std::is_standard_layout_v<T>);
  EXPECT_TRUE(std::is_trivially_destructible_v<T>);
  EXPECT_EQ(sizeof(T), bytes);
  EXPECT_EQ(alignof(T), alignment);
}

TEST(LayoutTest, TypesArePlainAndHaveTheDocumentedSize) {
  ExpectPlain<Tensor>(16, 8);
  ExpectPlain<Descriptor>(256, 64);
  ExpectPlain<Completion>(512, 64);
  ExpectPlain<SessionHeader>(128, 64);
  ExpectPlain<ProducerLine>(64, 64);
  ExpectPlain<ConsumerLine>(64, 64);
  ExpectPlain<NodeHeader>(192, 64);
}

TEST(LayoutTest, NoTypeThatTheDaemonCopiesHasHiddenPadding) {
  EXPECT_TRUE(std::has_unique_object_representations_v<Tensor>);
  EXPECT_TRUE(std::has_unique_object_representations_v<Descriptor>);
  EXPECT_TRUE(std::has_unique_object_representations_v<SessionHeader>);
}

TEST(LayoutTest, SharedWordsAreLockFreeAndOfTheirPlainSize) {
  EXPECT_TRUE(std::atomic<uint32_t>::is_always_lock_free);
  EXPECT_TRUE(std::atomic<uint64_t>::is_always_lock_free);
  EXPECT_EQ(sizeof(std::atomic<uint32_t>), 4u);  // a futex word
  EXPECT_EQ(sizeof(std::atomic<uint64_t>), 8u);
}

TEST(LayoutTest, TensorFields) {
  EXPECT_FIELD(Tensor, arena_id, 0, 4);
  EXPECT_FIELD(Tensor, generation, 4, 4);
  EXPECT_FIELD(Tensor, offset_bytes, 8, 8);
}

TEST(LayoutTest, DescriptorFields) {
  EXPECT_FIELD(Descriptor, kind, 0, 4);
  EXPECT_FIELD(Descriptor, dtype, 4, 4);
  EXPECT_FIELD(Descriptor, op, 8, 4);
  EXPECT_FIELD(Descriptor, flags, 12, 4);
  EXPECT_FIELD(Descriptor, sequence, 16, 8);
  EXPECT_FIELD(Descriptor, count, 24, 8);
  EXPECT_FIELD(Descriptor, input, 32, 16);
  EXPECT_FIELD(Descriptor, output, 48, 16);
  EXPECT_FIELD(Descriptor, timeout_ms, 64, 4);
  EXPECT_FIELD(Descriptor, epilogue, 68, 4);
  EXPECT_FIELD(Descriptor, rms_norm, 72, 184);
  EXPECT_FIELD(RmsNorm, residual, 0, 16);
  EXPECT_FIELD(RmsNorm, weight, 16, 16);
  EXPECT_FIELD(RmsNorm, residual_out, 32, 16);
  EXPECT_FIELD(RmsNorm, out8, 48, 16);
  EXPECT_FIELD(RmsNorm, scales, 64, 16);
  EXPECT_FIELD(RmsNorm, mirror, 80, 16);
  EXPECT_FIELD(RmsNorm, tokens, 96, 8);
  EXPECT_FIELD(RmsNorm, hidden, 104, 4);
  EXPECT_FIELD(RmsNorm, eps_bits, 108, 4);
  EXPECT_FIELD(RmsNorm, divisor_bits, 112, 4);
  EXPECT_FIELD(RmsNorm, scale_group, 116, 4);
  EXPECT_FIELD(RmsNorm, quant, 120, 1);
  EXPECT_FIELD(RmsNorm, gemma, 121, 1);
  EXPECT_FIELD(RmsNorm, weight_dtype, 122, 1);
  EXPECT_FIELD(RmsNorm, operands, 123, 1);
  EXPECT_FIELD(RmsNorm, residual_layout, 124, 1);
  EXPECT_FIELD(RmsNorm, reserved, 125, 59);
}

TEST(LayoutTest, CompletionFields) {
  EXPECT_FIELD(Completion, state, 0, 4);
  EXPECT_FIELD(Completion, status, 4, 4);
  EXPECT_FIELD(Completion, sequence, 8, 8);
  EXPECT_FIELD(Completion, payload_bytes, 16, 8);
  EXPECT_FIELD(Completion, wire_bytes, 24, 8);
  EXPECT_FIELD(Completion, policy_generation, 32, 8);
  EXPECT_FIELD(Completion, codec, 40, 4);
  EXPECT_FIELD(Completion, algorithm, 44, 4);
  EXPECT_FIELD(Completion, first_post_ns, 48, 8);
  EXPECT_FIELD(Completion, ready_ns, 56, 8);
  EXPECT_FIELD(Completion, start_ns, 64, 8);
  EXPECT_FIELD(Completion, end_ns, 72, 8);
  EXPECT_FIELD(Completion, nonfinite_count, 80, 8);
  EXPECT_FIELD(Completion, rank_mask, 88, 4);
  EXPECT_FIELD(Completion, reserved, 92, 36);
  EXPECT_FIELD(Completion, message, 128, 384);
}

TEST(LayoutTest, SessionHeaderFields) {
  EXPECT_FIELD(SessionHeader, magic, 0, 4);
  EXPECT_FIELD(SessionHeader, layout_version, 4, 4);
  EXPECT_FIELD(SessionHeader, segment_bytes, 8, 8);
  EXPECT_FIELD(SessionHeader, session_id, 16, 8);
  EXPECT_FIELD(SessionHeader, rank, 24, 4);
  EXPECT_FIELD(SessionHeader, world_size, 28, 4);
  EXPECT_FIELD(SessionHeader, slot_count, 32, 4);
  EXPECT_FIELD(SessionHeader, reserved0, 36, 4);
  EXPECT_FIELD(SessionHeader, ring_offset_bytes, 40, 8);
  EXPECT_FIELD(SessionHeader, descriptor_offset_bytes, 48, 8);
  EXPECT_FIELD(SessionHeader, completion_offset_bytes, 56, 8);
  EXPECT_FIELD(SessionHeader, reserved, 64, 64);
}

TEST(LayoutTest, RingLineFields) {
  EXPECT_FIELD(ProducerLine, tail, 0, 8);
  EXPECT_FIELD(ProducerLine, ring_full, 8, 8);
  EXPECT_FIELD(ProducerLine, padding, 16, 48);
  EXPECT_FIELD(ConsumerLine, head, 0, 8);
  EXPECT_FIELD(ConsumerLine, padding, 8, 56);
}

TEST(LayoutTest, NodeHeaderFields) {
  EXPECT_FIELD(NodeHeader, magic, 0, 4);
  EXPECT_FIELD(NodeHeader, layout_version, 4, 4);
  EXPECT_FIELD(NodeHeader, segment_bytes, 8, 8);
  EXPECT_FIELD(NodeHeader, daemon_start_ns, 16, 8);
  EXPECT_FIELD(NodeHeader, padding, 24, 40);
  EXPECT_FIELD(NodeHeader, engine_sleeping, 64, 4);
  EXPECT_FIELD(NodeHeader, padding2, 68, 60);
  EXPECT_FIELD(NodeHeader, progress_ns, 128, 8);
  EXPECT_FIELD(NodeHeader, padding3, 136, 56);
  EXPECT_EQ(kNodeSegmentBytes, 4096u);
}

TEST(LayoutTest, PartsOfASessionSegmentLieWhereTheTableSays) {
  EXPECT_EQ(kProducerOffsetBytes, 128u);
  EXPECT_EQ(kConsumerOffsetBytes, 192u);
  EXPECT_EQ(kRingOffsetBytes, 256u);
  const struct {
    uint32_t slot_count;
    uint64_t descriptors, completions, segment;
  } rows[] = {{8, 320, 2368, 8192},
              {16, 320, 4416, 16384},
              {128, 768, 33536, 102400},
              {1024, 4352, 266496, 794624}};
  for (const auto& row : rows) {
    EXPECT_EQ(DescriptorOffsetBytes(row.slot_count), row.descriptors) << row.slot_count;
    EXPECT_EQ(CompletionOffsetBytes(row.slot_count), row.completions) << row.slot_count;
    EXPECT_EQ(SessionSegmentBytes(row.slot_count), row.segment) << row.slot_count;
  }
}

TEST(LayoutTest, PartsOfASessionSegmentNeverOverlapAndAreAligned) {
  for (uint32_t n = kSlotsMin; n <= kSlotsMax; n *= 2) {
    EXPECT_GE(DescriptorOffsetBytes(n), kRingOffsetBytes + n * sizeof(uint32_t)) << n;
    EXPECT_EQ(DescriptorOffsetBytes(n) % alignof(Descriptor), 0u) << n;
    EXPECT_GE(CompletionOffsetBytes(n), DescriptorOffsetBytes(n) + n * sizeof(Descriptor)) << n;
    EXPECT_EQ(CompletionOffsetBytes(n) % alignof(Completion), 0u) << n;
    EXPECT_GE(SessionSegmentBytes(n), CompletionOffsetBytes(n) + n * sizeof(Completion)) << n;
    EXPECT_EQ(SessionSegmentBytes(n) % 4096, 0u) << n;
  }
}

TEST(LayoutTest, StreamSegment) {
  EXPECT_EQ(kStreamMagic, 0x54445251u);
  EXPECT_EQ(sizeof(StreamHeader), 256u);
  EXPECT_EQ(offsetof(StreamHeader, magic), 0u);
  EXPECT_EQ(offsetof(StreamHeader, layout_version), 4u);
  EXPECT_EQ(offsetof(StreamHeader, segment_bytes), 8u);
  EXPECT_EQ(offsetof(StreamHeader, session_id), 16u);
  EXPECT_EQ(offsetof(StreamHeader, entry_count), 24u);
  EXPECT_EQ(offsetof(StreamHeader, entry_offset_bytes), 32u);
  EXPECT_EQ(offsetof(StreamHeader, doorbell), 64u);
  EXPECT_EQ(offsetof(StreamHeader, done), 128u);
  EXPECT_EQ(offsetof(StreamHeader, failed_entry), 192u);
  EXPECT_EQ(offsetof(StreamHeader, operations), 200u);
  EXPECT_EQ(sizeof(StreamEntry), 768u);
  EXPECT_EQ(offsetof(StreamEntry, descriptor), 0u);
  EXPECT_EQ(offsetof(StreamEntry, completion), 256u);
  EXPECT_EQ(kStreamEntryOffsetBytes, 4096u);
  EXPECT_EQ(kStreamEntriesMin, 8u);
  EXPECT_EQ(kStreamEntriesMax, 65536u);
  EXPECT_EQ(StreamSegmentBytes(8), 12288u);
  EXPECT_EQ(StreamSegmentBytes(4096), 3149824u);
  EXPECT_EQ(StreamSegmentBytes(65536), 50335744u);
}

TEST(LayoutTest, EnumNumbersNeverChange) {
  EXPECT_EQ(static_cast<uint32_t>(Kind::kAllReduce), 1u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::kFp16), 1u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::kBf16), 2u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::kFp32), 3u);
  EXPECT_EQ(static_cast<uint32_t>(ReduceOp::kSum), 1u);
  EXPECT_EQ(static_cast<uint32_t>(ReduceOp::kAvg), 2u);
  EXPECT_EQ(static_cast<uint32_t>(CompletionState::kIdle), 0u);
  EXPECT_EQ(static_cast<uint32_t>(CompletionState::kWaiting), 1u);
  EXPECT_EQ(static_cast<uint32_t>(CompletionState::kDone), 2u);
}

TEST(LayoutTest, StatusNumbersNeverChangeAndEqualTheOnesOfTheCApi) {
  const struct {
    Status status;
    qrd_status c_status;
    int number;
  } rows[] = {{Status::kOk, QRD_OK, 0},
              {Status::kInvalidArgument, QRD_INVALID_ARGUMENT, 1},
              {Status::kFailedPrecondition, QRD_FAILED_PRECONDITION, 2},
              {Status::kResourceExhausted, QRD_RESOURCE_EXHAUSTED, 3},
              {Status::kUnavailable, QRD_UNAVAILABLE, 4},
              {Status::kTimeout, QRD_TIMEOUT, 5},
              {Status::kMismatch, QRD_MISMATCH, 6},
              {Status::kPeerLost, QRD_PEER_LOST, 7},
              {Status::kDaemonLost, QRD_DAEMON_LOST, 8},
              {Status::kAborted, QRD_ABORTED, 9},
              {Status::kPermissionDenied, QRD_PERMISSION_DENIED, 10},
              {Status::kNotFound, QRD_NOT_FOUND, 11},
              {Status::kAlreadyExists, QRD_ALREADY_EXISTS, 12},
              {Status::kUnimplemented, QRD_UNIMPLEMENTED, 13},
              {Status::kInternal, QRD_INTERNAL, 14},
              {Status::kInProgress, QRD_IN_PROGRESS, 15}};
  for (const auto& row : rows) {
    EXPECT_EQ(static_cast<int>(row.status), row.number);
    EXPECT_EQ(static_cast<int>(row.c_status), row.number);
  }
}

TEST(LayoutTest, DtypeAndOpNumbersEqualTheOnesOfTheCApi) {
  EXPECT_EQ(static_cast<int>(Dtype::kFp16), static_cast<int>(QRD_FP16));
  EXPECT_EQ(static_cast<int>(Dtype::kBf16), static_cast<int>(QRD_BF16));
  EXPECT_EQ(static_cast<int>(Dtype::kFp32), static_cast<int>(QRD_FP32));
  EXPECT_EQ(static_cast<int>(ReduceOp::kSum), static_cast<int>(QRD_SUM));
  EXPECT_EQ(static_cast<int>(ReduceOp::kAvg), static_cast<int>(QRD_AVG));
  EXPECT_EQ(QRD_WORLD_SIZE_MAX, static_cast<int>(kWorldSizeMax));
}

std::string Hex(const void* data, size_t bytes) {
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<const uint8_t*>(data)[i];
    hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return hex;
}

// The worked example of layout.md, byte for byte.
TEST(LayoutTest, WorkedExampleOfADescriptor) {
  Descriptor descriptor{};
  descriptor.kind = Kind::kAllReduce;
  descriptor.dtype = Dtype::kBf16;
  descriptor.op = ReduceOp::kSum;
  descriptor.sequence = 1;
  descriptor.count = 12288;
  descriptor.input = {.arena_id = 2, .generation = 1, .offset_bytes = 4096};
  descriptor.output = {.arena_id = 2, .generation = 1, .offset_bytes = 32768};
  descriptor.timeout_ms = 5000;
  EXPECT_EQ(Hex(&descriptor, sizeof(descriptor)),
            "01000000020000000100000000000000"
            "01000000000000000030000000000000"
            "02000000010000000010000000000000"
            "02000000010000000080000000000000"
            "8813000000000000" +
                std::string(2 * 184, '0'));
  EXPECT_EQ(DescriptorOffsetBytes(128) + 3 * sizeof(Descriptor), 1536u);
}

TEST(LayoutTest, WorkedExampleOfACompletion) {
  Completion completion{};
  completion.state.store(static_cast<uint32_t>(CompletionState::kDone));
  completion.status = Status::kOk;
  completion.sequence = 1;
  completion.payload_bytes = 24576;
  completion.wire_bytes = 6912;
  completion.policy_generation = 2;
  completion.codec = 4;
  completion.algorithm = 2;
  EXPECT_EQ(Hex(&completion, 48),
            "02000000000000000100000000000000"
            "0060000000000000001b000000000000"
            "02000000000000000400000002000000");
  EXPECT_EQ(CompletionOffsetBytes(128) + 3 * sizeof(Completion), 35072u);
}

}  // namespace
}  // namespace qrd::shm
