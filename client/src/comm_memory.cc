// SPDX-License-Identifier: Apache-2.0
// Memory of a communicator: arenas, registered ranges, the staging cache.
#include <cinttypes>
#include <utility>

#include "client/core/error.h"
#include "client/src/comm.h"

namespace qrd::client {
namespace {

constexpr size_t kAlignmentBytes = 64;

constexpr const char* kAllocated = "qrd_mem_alloc memory";
constexpr const char* kRegistered = "registered memory";
constexpr const char* kImported = "imported memory";

// One of the three above, so that they can be compared as pointers.
const char* KindOf(const Block& block) {
  return block.imported ? kImported : block.registered ? kRegistered : kAllocated;
}

}  // namespace

qrd_status Comm::AllocateArena(size_t bytes, std::unique_ptr<Arena>* arena) {
  if (device_ != nullptr) return AllocateDeviceBlock(bytes, arena);
  v1::ClientMessage request;
  request.mutable_arena_alloc()->set_bytes(bytes);
  v1::ServerMessage reply;
  std::vector<UniqueFd> fds;
  qrd_status status =
      CallDaemon(request, "ArenaAlloc", v1::ServerMessage::kArenaAllocated, 1, &reply, &fds);
  if (status != QRD_OK) return status;
  const v1::ArenaAllocated& allocated = reply.arena_allocated();
  auto made = std::make_unique<Arena>();
  made->id = allocated.arena_id();
  made->generation = allocated.generation();
  if (allocated.bytes() < bytes) {
    status = Fail(QRD_INTERNAL, "arena from the daemon has %" PRIu64 " bytes, want %zu or more",
                  allocated.bytes(), bytes);
  } else {
    status = made->mapping.Map(fds[0].get(), allocated.bytes(), Access::kReadWrite, "arena");
  }
  if (status != QRD_OK) {
    // Not to leak it in the daemon; the first error is the one to report, so keep its text.
    const SavedError error;
    FreeDaemonArena(*made);
    return error.Restore(status);
  }
  *arena = std::move(made);
  return QRD_OK;
}

qrd_status Comm::FreeDaemonArena(const Arena& arena) {
  if (arena.device_data != nullptr && !arena.imported) return FreeDeviceBlock(arena);
  v1::ClientMessage request;
  request.mutable_arena_free()->set_arena_id(arena.id);
  request.mutable_arena_free()->set_generation(arena.generation);
  v1::ServerMessage reply;
  const qrd_status status =
      CallDaemon(request, "ArenaFree", v1::ServerMessage::kArenaFreed, 0, &reply, nullptr);
  // A daemon that is gone has nothing to give back.
  return IsLost() ? QRD_OK : status;
}

qrd_status Comm::FreeArena(std::unique_ptr<Arena> arena) { return FreeDaemonArena(*arena); }

qrd_status Comm::CheckNoOverlap(const char* name, const Block& block) {
  const Block* other = memory_.FindOverlap(block.start, block.bytes);
  if (other == nullptr) return QRD_OK;
  return Fail(QRD_INVALID_ARGUMENT, "%s: [0x%" PRIxPTR ", +%zu) overlaps %s [0x%" PRIxPTR ", +%zu)",
              name, block.start, block.bytes, KindOf(*other), other->start, other->bytes);
}

qrd_status Comm::InsertBlock(const char* name, Block block) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (CheckNoOverlap(name, block) == QRD_OK) {
      memory_.Insert(std::move(block));
      return QRD_OK;
    }
  }
  const SavedError error;
  FreeArena(std::move(block.arena));
  return error.Restore(QRD_INVALID_ARGUMENT);
}

qrd_status Comm::MemAlloc(size_t bytes, void** ptr) {
  if (bytes == 0) return Fail(QRD_INVALID_ARGUMENT, "bytes: 0, want 1 or more");
  std::unique_ptr<Arena> arena;
  qrd_status status = AllocateArena(bytes, &arena);
  if (status == QRD_RESOURCE_EXHAUSTED && !IsLost()) {
    // The staging cache is only a convenience: it makes room before the caller is refused.
    const SavedError error;
    bool freed = false;
    for (;;) {
      std::unique_ptr<Arena> idle;
      {
        const std::lock_guard<std::mutex> lock(mu_);
        idle = memory_.TakeAnyIdle();
      }
      if (idle == nullptr) break;
      FreeArena(std::move(idle));
      freed = true;
    }
    if (!freed) return error.Restore(status);
    status = AllocateArena(bytes, &arena);
  }
  if (status != QRD_OK) return status;
  std::byte* const data = arena->data();
  Block block;
  block.start = reinterpret_cast<uintptr_t>(data);
  block.bytes = bytes;
  block.arena = std::move(arena);
  status = InsertBlock("memory from the daemon", std::move(block));
  if (status == QRD_OK) *ptr = data;
  return status;
}

qrd_status Comm::RemoveBlock(const char* what, void* ptr) {
  const uintptr_t start = reinterpret_cast<uintptr_t>(ptr);
  if (ptr == nullptr) return Fail(QRD_INVALID_ARGUMENT, "ptr: NULL");
  if (device_ != nullptr) RetireStreamOperations();
  Block* block;
  std::unique_ptr<Arena> device_block;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    block = memory_.FindStart(start);
    if (block == nullptr || KindOf(*block) != what || block->leaving) {
      const Block* around = memory_.FindOverlap(start, 1);
      if (around != nullptr && KindOf(*around) == what && !around->leaving) {
        return Fail(QRD_INVALID_ARGUMENT,
                    "ptr: %p lies %zu bytes inside of %s, want its start 0x%" PRIxPTR, ptr,
                    static_cast<size_t>(start - around->start), what, around->start);
      }
      return Fail(QRD_NOT_FOUND, "ptr: %p is not %s of this communicator", ptr, what);
    }
    if (block->pins > 0) {
      return Fail(QRD_FAILED_PRECONDITION,
                  "ptr: %u buffers of operations in flight use %p; wait first", block->pins, ptr);
    }
    // The sub-allocator may give the addresses out again as soon as it has them.
    if (block->arena->device_data != nullptr && !block->imported) {
      device_block = memory_.Remove(block);
    } else {
      block->leaving = true;
    }
  }
  if (device_block != nullptr) return FreeDaemonArena(*device_block);
  // The daemon first: while it holds the arena, the addresses stay ours and nothing else can be
  // there.
  const qrd_status status = FreeDaemonArena(*block->arena);
  std::unique_ptr<Arena> arena;
  const std::lock_guard<std::mutex> lock(mu_);
  if (status == QRD_OK) {
    arena = memory_.Remove(block);
  } else {
    block->leaving = false;
  }
  return status;
}

qrd_status Comm::MemFree(void* ptr) { return RemoveBlock(kAllocated, ptr); }

qrd_status Comm::MemRegister(void* ptr, size_t bytes) {
  if (qrd_status status = CheckRange("ptr", ptr, bytes); status != QRD_OK) return status;
  Block block;
  block.start = reinterpret_cast<uintptr_t>(ptr);
  block.bytes = bytes;
  block.registered = true;
  block.arena_offset = block.start % kAlignmentBytes;
  {
    // Before the daemon is asked: the common mistake costs nothing. InsertBlock checks again.
    const std::lock_guard<std::mutex> lock(mu_);
    if (qrd_status status = CheckNoOverlap("ptr", block); status != QRD_OK) return status;
  }
  if (qrd_status status = CheckPointerKind("ptr", ptr); status != QRD_OK) return status;
  if (bytes > SIZE_MAX - kAlignmentBytes) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "bytes: %zu do not fit a staging copy", bytes);
  }
  const qrd_status status = AllocateArena(bytes + block.arena_offset, &block.arena);
  return status == QRD_OK ? InsertBlock("ptr", std::move(block)) : status;
}

qrd_status Comm::MemDeregister(void* ptr) { return RemoveBlock(kRegistered, ptr); }

qrd_status Comm::MemRelease(void* ptr) { return RemoveBlock(kImported, ptr); }

qrd_status Comm::AcquireStaging(size_t bytes, std::unique_ptr<Arena>* arena) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    *arena = memory_.TakeIdle(bytes);
  }
  if (*arena != nullptr) return QRD_OK;
  qrd_status status = AllocateArena(MemoryTable::StagingBytes(bytes), arena);
  // A class is up to twice the size: near the daemon's bound the exact size may still fit.
  if (status == QRD_RESOURCE_EXHAUSTED && !IsLost()) status = AllocateArena(bytes, arena);
  return status;
}

void Comm::DropExcessStaging() {
  for (;;) {
    std::unique_ptr<Arena> arena;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      arena = memory_.TakeExcess();
    }
    if (arena == nullptr) return;
    FreeArena(std::move(arena));
  }
}

}  // namespace qrd::client
