// SPDX-License-Identifier: Apache-2.0
// The bytes that a client process and the daemon share. layout.md has the same facts as tables.
//
// Three kinds of segments, all memfds made and sealed (SHRINK, GROW, SEAL) by the daemon and passed
// over the attach socket:
//
//   node segment     one for all sessions, read only for clients (F_SEAL_FUTURE_WRITE)
//   session segment  one a session: header, ring indices, submission ring, descriptors, completions
//   stream segment   one a session that asked for it (StreamOpen): stream-ordered operations
//
// Life of an operation: the client fills a free descriptor slot, writes the slot's number into the
// submission ring, publishes `tail` (release) and, if the engine sleeps, writes the doorbell
// eventfd. The daemon reads `tail` (acquire), copies ring entry and descriptor out, validates the
// copies, and in the end fills the completion of the same slot and sets its `state` to done
// (release).
//
// Life of a stream-ordered operation: the client fills a free entry of the stream segment and puts
// three steps on its stream: write 0 to `done`, write entry + 1 to `doorbell` (both the client
// itself may, if the stream is idle), wait until `done` is 1. When the steps run (once, or at every
// replay of a graph), the daemon sees `doorbell`, copies the entry's descriptor out, stores 0 to
// `doorbell`, and runs the operation as the session's next one. In the end the device stores 1 to
// `done` (or, if it failed, the daemon does), and the daemon fills the entry's completion. The
// words toggle, so that a graph can be replayed; one operation of a session is on its way at a
// time, so its streams must be ordered among themselves.
//
// Thread safety: one producer and one consumer a ring; several client threads must lock among
// themselves. There is no lock in shared memory.
// Trust: the daemon treats every byte that a client can write as hostile: no pointers, nothing read
// twice, every bound checked. It never reads back what only the daemon should write.
//
// Invariants
//   1. All fields are little-endian, naturally aligned, of fixed width; padding is zero.
//   2. A word is written by one side only, except Completion::state (protocol below).
//   3. A change of any offset, size or meaning is a new kLayoutVersion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace qrd::shm {

inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr uint32_t kNodeMagic = 0x4E445251;     // "QRDN"
inline constexpr uint32_t kSessionMagic = 0x53445251;  // "QRDS"
inline constexpr uint32_t kStreamMagic = 0x54445251;   // "QRDT"
inline constexpr uint32_t kCacheLineBytes = 64;
inline constexpr uint32_t kSlotsMin = 8;
inline constexpr uint32_t kSlotsMax = 1024;
inline constexpr uint32_t kStreamEntriesMin = 8;
inline constexpr uint32_t kStreamEntriesMax = 65536;
inline constexpr uint32_t kWorldSizeMax = 16;
inline constexpr uint32_t kMessageBytes = 384;  // error text of a completion, NUL included

// Result of an operation or an attach request. The C API's enum qrd_status has the same numbers.
// Numbers are never reused.
enum class Status : uint32_t {
  kOk = 0,
  kInvalidArgument = 1,     // the caller's fault: do not retry
  kFailedPrecondition = 2,  // right call, wrong state
  kResourceExhausted = 3,   // a named bound is reached
  kUnavailable = 4,         // try again later (draining)
  kTimeout = 5,             // names the ranks that did not arrive
  kMismatch = 6,            // ranks posted operations that differ; names field and ranks
  kPeerLost = 7,            // a rank's process is gone; names it
  kDaemonLost = 8,          // the daemon is gone: finalize and init again
  kAborted = 9,             // a rank, or an operator, called abort
  kPermissionDenied = 10,
  kNotFound = 11,
  kAlreadyExists = 12,
  kUnimplemented = 13,
  kInternal = 14,    // a bug of qrd
  kInProgress = 15,  // not done yet (test, or wait that timed out)
};

enum class Kind : uint32_t { kAllReduce = 1 };
enum class Dtype : uint32_t { kFp16 = 1, kBf16 = 2, kFp32 = 3 };
enum class ReduceOp : uint32_t { kSum = 1, kAvg = 2 };

// A run of bytes in one of the session's own arenas. generation guards against a stale id.
struct Tensor {
  uint32_t arena_id;
  uint32_t generation;
  uint64_t offset_bytes;
};

// Operands and options of epilogue 1 (residual + RMSNorm, + FP8), of the [tokens, hidden] tensor
// that the descriptor's input is. The descriptor's `output` is the normalized result, without
// quant; with it, `output` is not used and 0. Tensors that are not there are 0. All are aligned to
// 16 bytes, input and output too; out8 to 8, scales to 4.
struct RmsNorm {
  Tensor residual;      // [tokens or own rows, hidden] of the dtype; there if operands & 1
  Tensor weight;        // [hidden] of weight_dtype
  Tensor residual_out;  // [tokens or own rows, hidden] of the dtype
  Tensor out8;          // [tokens, hidden] bytes, with quant
  Tensor scales;        // [tokens, scales of a row] fp32, with quant
  Tensor mirror;        // [tokens, hidden] of the dtype, with quant; there if operands & 2
  uint64_t tokens;
  uint32_t hidden;
  uint32_t eps_bits;      // of an fp32
  uint32_t divisor_bits;  // of an fp32; 0: the format's maximum
  uint32_t scale_group;   // elements of a scale: 0 (the row) or 128
  uint8_t quant;          // 0 none, 1 e4m3fn, 2 e4m3fnuz
  uint8_t gemma;          // 0, 1
  uint8_t weight_dtype;   // enum Dtype
  uint8_t operands;       // bit 0: residual, bit 1: mirror
  // 0 full; 1 sharded: residual and residual_out have the rows of the session's rank only, tokens /
  // world_size and one more on the first tokens % world_size ranks; on a rank without rows both are
  // 0, whatever operands says.
  uint8_t residual_layout;
  uint8_t reserved[59];  // must be 0
};
static_assert(sizeof(RmsNorm) == 184);

// What a client asks for. Written by the client, read once by the daemon.
struct alignas(kCacheLineBytes) Descriptor {
  Kind kind;
  Dtype dtype;
  ReduceOp op;
  uint32_t flags;  // must be 0
  // Counts the session's posts from 1: the k-th operation of a rank is matched with the k-th of the
  // others. The daemon refuses a gap.
  uint64_t sequence;
  uint64_t count;       // elements, from 0
  Tensor input;         // count * sizeof(dtype) bytes; not looked at if count is 0
  Tensor output;        // the same; either equal to input (in place) or disjoint from it
  uint32_t timeout_ms;  // from the first rank's post, at most 3600000; 0: the daemon's default
  uint32_t epilogue;    // 0 none, 1 RMSNorm
  RmsNorm rms_norm;     // all 0 without an epilogue
};
static_assert(sizeof(Descriptor) == 256);
static_assert(offsetof(Descriptor, sequence) == 16);
static_assert(offsetof(Descriptor, input) == 32);
static_assert(offsetof(Descriptor, output) == 48);
static_assert(offsetof(Descriptor, timeout_ms) == 64);
static_assert(offsetof(Descriptor, rms_norm) == 72);

// Completion::state. The client stores kIdle before it publishes the slot; a client that is about
// to sleep changes kIdle to kWaiting (compare-exchange) and waits on the word with FUTEX_WAIT; the
// daemon exchanges kDone (release) and wakes only if it found kWaiting. A client that sees kDone
// (acquire) may read the other fields.
enum class CompletionState : uint32_t { kIdle = 0, kWaiting = 1, kDone = 2 };

// How an operation ended. Written by the daemon (state: see above).
struct alignas(kCacheLineBytes) Completion {
  std::atomic<uint32_t> state;
  Status status;
  uint64_t sequence;  // of the operation that this completes
  uint64_t payload_bytes;
  uint64_t wire_bytes;  // what this rank sends over links (on the host: would send) under the plan
  uint64_t policy_generation;
  uint32_t codec;            // wire format id 0..10
  uint32_t algorithm;        // 1 one_shot, 2 two_shot, 3 library (the vendor's, on GPUs)
  uint64_t first_post_ns;    // CLOCK_MONOTONIC: the daemon saw the first rank's post
  uint64_t ready_ns;         // all ranks have posted, plan made
  uint64_t start_ns;         // first tile taken by a worker
  uint64_t end_ns;           // last tile written
  uint64_t nonfinite_count;  // elements of the result that are NaN or Inf
  uint32_t rank_mask;        // ranks that are to blame (missing, lost, different), bit r = rank r
  uint32_t reserved[9];
  char message[kMessageBytes];  // NUL-terminated UTF-8, empty if status is kOk
};
static_assert(sizeof(Completion) == 512);
static_assert(offsetof(Completion, sequence) == 8);
static_assert(offsetof(Completion, message) == 128);
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// First page of a session segment. Written once by the daemon before the client sees it.
struct alignas(kCacheLineBytes) SessionHeader {
  uint32_t magic;
  uint32_t layout_version;
  uint64_t segment_bytes;
  uint64_t session_id;
  uint32_t rank;
  uint32_t world_size;
  uint32_t slot_count;  // descriptors, completions and ring entries: a power of two
  uint32_t reserved0;
  uint64_t ring_offset_bytes;        // uint32_t[slot_count]
  uint64_t descriptor_offset_bytes;  // Descriptor[slot_count]
  uint64_t completion_offset_bytes;  // Completion[slot_count]
  uint8_t reserved[64];              // 0
};
static_assert(sizeof(SessionHeader) == 128);

// Ring indices count up for ever; entry = index % slot_count.
struct alignas(kCacheLineBytes) ProducerLine {
  std::atomic<uint64_t> tail;       // client: next index to write
  std::atomic<uint64_t> ring_full;  // client: posts that it refused because all slots were in use
  uint8_t padding[48];
};
struct alignas(kCacheLineBytes) ConsumerLine {
  std::atomic<uint64_t> head;  // daemon: next index to read
  uint8_t padding[56];
};
static_assert(sizeof(ProducerLine) == 64 && sizeof(ConsumerLine) == 64);

inline constexpr uint64_t kProducerOffsetBytes = sizeof(SessionHeader);
inline constexpr uint64_t kConsumerOffsetBytes = kProducerOffsetBytes + sizeof(ProducerLine);
inline constexpr uint64_t kRingOffsetBytes = kConsumerOffsetBytes + sizeof(ConsumerLine);

// Offsets of a segment with slot_count slots (a power of two, kSlotsMin..kSlotsMax).
constexpr uint64_t DescriptorOffsetBytes(uint32_t slot_count) {
  return (kRingOffsetBytes + uint64_t{slot_count} * sizeof(uint32_t) + kCacheLineBytes - 1) /
         kCacheLineBytes * kCacheLineBytes;
}
constexpr uint64_t CompletionOffsetBytes(uint32_t slot_count) {
  return DescriptorOffsetBytes(slot_count) + uint64_t{slot_count} * sizeof(Descriptor);
}
constexpr uint64_t SessionSegmentBytes(uint32_t slot_count) {
  return (CompletionOffsetBytes(slot_count) + uint64_t{slot_count} * sizeof(Completion) + 4095) /
         4096 * 4096;
}

// First page of a stream segment. The constants are written once by the daemon before the client
// sees it. Each word that a device writes has a cache line of its own.
struct alignas(kCacheLineBytes) StreamHeader {
  uint32_t magic;
  uint32_t layout_version;
  uint64_t segment_bytes;
  uint64_t session_id;
  uint32_t entry_count;
  uint32_t reserved0;
  uint64_t entry_offset_bytes;  // StreamEntry[entry_count]
  uint8_t reserved[24];         // 0
  // Entry + 1 of the operation that the client's stream has come to; 0: none, or the daemon has it.
  alignas(kCacheLineBytes) std::atomic<uint32_t> doorbell;
  uint8_t padding1[60];
  // 1: the operation is over, the client's stream may go on. It stores 0 before it rings.
  alignas(kCacheLineBytes) std::atomic<uint32_t> done;
  uint8_t padding2[60];
  // Written by the daemon. Entry + 1 of the first operation that failed, 0: none (sticky).
  // Operations that ended, failed ones included: tells a client which entries it may use again.
  alignas(kCacheLineBytes) std::atomic<uint32_t> failed_entry;
  uint32_t reserved1;
  std::atomic<uint64_t> operations;
  uint8_t padding3[48];
};
static_assert(sizeof(StreamHeader) == 256);
static_assert(offsetof(StreamHeader, doorbell) == 64);
static_assert(offsetof(StreamHeader, done) == 128);
static_assert(offsetof(StreamHeader, failed_entry) == 192);

// Descriptor::sequence is not looked at. Completion::state: the client stores kIdle before it puts
// the operation on a stream once; the daemon stores kDone when it ended (each time).
struct alignas(kCacheLineBytes) StreamEntry {
  Descriptor descriptor;
  Completion completion;
};
static_assert(sizeof(StreamEntry) == 768);

inline constexpr uint64_t kStreamEntryOffsetBytes = 4096;
constexpr uint64_t StreamSegmentBytes(uint32_t entry_count) {
  return (kStreamEntryOffsetBytes + uint64_t{entry_count} * sizeof(StreamEntry) + 4095) / 4096 *
         4096;
}

// Node segment: written by the daemon, read only for clients.
struct alignas(kCacheLineBytes) NodeHeader {
  uint32_t magic;
  uint32_t layout_version;
  uint64_t segment_bytes;
  uint64_t daemon_start_ns;  // CLOCK_REALTIME; another value is another daemon
  uint8_t padding[40];
  // 1: the engine is about to sleep or sleeps, so a post must write the doorbell. The engine stores
  // 1, then a seq_cst fence, then looks at all tails once more; a client publishes its tail, then a
  // seq_cst fence, then loads this.
  alignas(kCacheLineBytes) std::atomic<uint32_t> engine_sleeping;
  uint8_t padding2[60];
  // CLOCK_MONOTONIC of the engine's last turn; at most about 100 ms old while the daemon runs.
  // Tells a client that waits without a time limit whether the daemon does.
  alignas(kCacheLineBytes) std::atomic<uint64_t> progress_ns;
  uint8_t padding3[56];
};
static_assert(sizeof(NodeHeader) == 192);
inline constexpr uint64_t kNodeSegmentBytes = 4096;

}  // namespace qrd::shm
