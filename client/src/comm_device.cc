// SPDX-License-Identifier: Apache-2.0
// Communicators whose tensors are on a device: which one, its memory, imports, staged copies that
// the host waits for.
#include <sched.h>

#include <cctype>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/src/comm.h"
#include "client/src/device_side.h"

namespace qrd::client {
namespace {

// A copy of what was complete before it: if it takes this long, the device hangs.
constexpr uint64_t kCopyTimeoutNs = 30'000'000'000;
// Copies are short: look often at first, then leave the core to others.
constexpr uint64_t kCopySpinNs = 200'000;

constexpr const char* kImportAdvice =
    "Memory of the virtual memory API (PyTorch with expandable_segments) and of pools "
    "(cudaMallocAsync) cannot be; allocate it with cudaMalloc or hipMalloc, or use qrd_mem_alloc, "
    "or do not import it: operations on it are staged";

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "GPU-... (0000:1b:00.0), ..." of the devices that this process sees.
std::string DevicesOf(gpu::Driver* driver) {
  std::string text;
  int count = 0;
  if (driver->DeviceCount(&count) != QRD_OK) return "none";
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0;
    std::string uuid, address;
    if (driver->DeviceAt(ordinal, &device) != QRD_OK ||
        driver->DeviceUuid(device, &uuid) != QRD_OK ||
        driver->DevicePciAddress(device, &address) != QRD_OK) {
      continue;
    }
    text += (text.empty() ? "" : ", ") + uuid + " (" + address + ")";
  }
  return text;
}

qrd_status FindUuid(gpu::Driver* driver, const std::string& name, int* device) {
  int count = 0;
  if (qrd_status status = driver->DeviceCount(&count); status != QRD_OK) return status;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    std::string uuid;
    qrd_status status = driver->DeviceAt(ordinal, device);
    if (status == QRD_OK) status = driver->DeviceUuid(*device, &uuid);
    if (status != QRD_OK) return status;
    if (Lower(uuid) == Lower(name)) return QRD_OK;
  }
  return QRD_NOT_FOUND;
}

qrd_status FindDevice(gpu::Driver* driver, const std::string& name, int* device) {
  if (name == "current") return driver->CurrentDevice(device);
  const bool is_uuid = Lower(name).starts_with("gpu-");
  const qrd_status status =
      is_uuid ? FindUuid(driver, name, device) : driver->FindPciAddress(name, device);
  if (status != QRD_NOT_FOUND) return status;
  return Fail(QRD_NOT_FOUND,
              "config.device: \"%.64s\" is not a device of this process; it sees %.500s",
              name.c_str(), DevicesOf(driver).c_str());
}

}  // namespace

qrd_status Comm::OpenDevice(const std::string& name) {
  DeviceMemory::Source* const source = this;
  auto side = std::make_unique<DeviceSide>(source);
  qrd_status status = gpu::GetDriver(&side->driver);
  if (status == QRD_OK) status = FindDevice(side->driver, name, &side->device);
  if (status == QRD_OK) status = side->driver->DeviceUuid(side->device, &side->uuid);
  if (status == QRD_OK) {
    status = side->driver->OpenContext(side->device, &side->context, &side->retained);
  }
  if (status == QRD_OK) device_ = std::move(side);
  return status;
}

void Comm::CloseDevice() {
  gpu::Driver* const driver = device_->driver;
  CloseStream();
  {
    const gpu::DeviceScope scope(driver, device_->context);
    // The daemon frees the memory when the connection closes: after this.
    for (const DeviceArena& arena : device_->memory.TakeAll()) driver->CloseHandle(arena.base);
    if (device_->copy_stream != nullptr) driver->DestroyStream(device_->copy_stream);
  }
  if (device_->retained) driver->CloseContext(device_->device);
}

qrd_status Comm::CheckPointerKind(const char* name, const void* ptr) {
  if (device_ == nullptr) {
    const char* library = nullptr;
    if (!gpu::IsDeviceMemory(ptr, &library)) return QRD_OK;
    return Fail(QRD_INVALID_ARGUMENT,
                "%s: %p is device memory (%s), but the communicator has host memory: set "
                "config.device",
                name, ptr, library);
  }
  const gpu::DeviceScope scope(device_->driver, device_->context);
  if (scope.status() != QRD_OK) return scope.status();
  gpu::PointerInfo info;
  const qrd_status status = device_->driver->DescribePointer(ptr, &info);
  if (status != QRD_OK) return status;
  if (info.kind == gpu::PointerInfo::Kind::kHost) {
    return Fail(QRD_INVALID_ARGUMENT,
                "%s: %p is host memory, but the communicator's tensors are on device %s", name, ptr,
                device_->uuid.c_str());
  }
  if (info.kind == gpu::PointerInfo::Kind::kDevice && info.device != device_->device) {
    std::string uuid = "unknown";
    device_->driver->DeviceUuid(info.device, &uuid);
    return Fail(QRD_INVALID_ARGUMENT,
                "%s: %p is memory of device %s, but the communicator's tensors are on device %s",
                name, ptr, uuid.c_str(), device_->uuid.c_str());
  }
  return QRD_OK;
}

qrd_status Comm::CopyStaged(void* to, const void* from, size_t bytes) {
  if (device_ == nullptr) {
    std::memcpy(to, from, bytes);
    return QRD_OK;
  }
  gpu::Driver* const driver = device_->driver;
  const gpu::DeviceScope scope(driver, device_->context);
  if (scope.status() != QRD_OK) return scope.status();
  const std::lock_guard<std::mutex> lock(device_->copy_mu);
  qrd_status status = QRD_OK;
  if (device_->copy_stream == nullptr) status = driver->CreateStream(&device_->copy_stream);
  if (status == QRD_OK) {
    status = driver->Copy(device_->copy_stream, reinterpret_cast<uintptr_t>(to),
                          reinterpret_cast<uintptr_t>(from), bytes);
  }
  const uint64_t start_ns = NowNs();
  bool done = false;
  while (status == QRD_OK) {
    status = driver->StreamDone(device_->copy_stream, &done);
    if (done) break;
    const uint64_t elapsed_ns = NowNs() - start_ns;
    if (elapsed_ns > kCopyTimeoutNs) {
      return Fail(QRD_TIMEOUT, "a copy of %zu bytes on device %s took more than %" PRIu64 " s",
                  bytes, device_->uuid.c_str(), kCopyTimeoutNs / 1'000'000'000);
    }
    if (elapsed_ns < kCopySpinNs) {
      sched_yield();
    } else {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
  return status;
}

qrd_status Comm::AllocateDeviceBlock(size_t bytes, std::unique_ptr<Arena>* arena) {
  auto made = std::make_unique<Arena>();
  DeviceMemory::Place place;
  qrd_status status = device_->memory.Allocate(bytes, &place);
  if (status == QRD_RESOURCE_EXHAUSTED && !IsLost()) {
    device_->memory.DropEmpty();
    status = device_->memory.Allocate(bytes, &place);
  }
  if (status != QRD_OK) return status;
  made->id = place.arena_id;
  made->generation = place.generation;
  made->device_data = reinterpret_cast<std::byte*>(place.address);
  made->device_bytes = bytes;
  made->offset_bytes = place.offset_bytes;
  *arena = std::move(made);
  return QRD_OK;
}

qrd_status Comm::FreeDeviceBlock(const Arena& arena) {
  const auto address = reinterpret_cast<uintptr_t>(arena.device_data);
  if (device_->memory.Free(address)) return QRD_OK;
  return Fail(QRD_INTERNAL, "no block of device memory begins at 0x%" PRIxPTR, address);
}

qrd_status Comm::AllocateDeviceArena(uint64_t bytes, DeviceArena* arena) {
  v1::ClientMessage request;
  request.mutable_arena_alloc()->set_bytes(bytes);
  v1::ServerMessage reply;
  qrd_status status =
      CallDaemon(request, "ArenaAlloc", v1::ServerMessage::kArenaAllocated, 0, &reply, nullptr);
  if (status != QRD_OK) return status;
  const v1::ArenaAllocated& allocated = reply.arena_allocated();
  Arena named;
  named.id = allocated.arena_id();
  named.generation = allocated.generation();
  if (allocated.ipc_handle().size() != gpu::kIpcHandleBytes) {
    status = Fail(QRD_INTERNAL, "arena from the daemon: ipc_handle has %zu bytes, want %zu",
                  allocated.ipc_handle().size(), gpu::kIpcHandleBytes);
  } else {
    const gpu::DeviceScope scope(device_->driver, device_->context);
    status = scope.status();
    if (status == QRD_OK) {
      status = device_->driver->OpenHandle(allocated.ipc_handle().data(), &arena->base);
    }
  }
  if (status != QRD_OK) {
    const SavedError error;
    FreeDaemonArena(named);
    return error.Restore(status);
  }
  arena->id = named.id;
  arena->generation = named.generation;
  arena->bytes = allocated.bytes();
  return QRD_OK;
}

void Comm::FreeDeviceArena(const DeviceArena& arena) {
  // The mapping first: CUDA wants it closed before the owner frees the memory.
  const SavedError error;
  {
    const gpu::DeviceScope scope(device_->driver, device_->context);
    if (scope.status() == QRD_OK) device_->driver->CloseHandle(arena.base);
  }
  Arena named;
  named.id = arena.id;
  named.generation = arena.generation;
  // Should the daemon refuse, it keeps the arena until the session ends.
  FreeDaemonArena(named);
  error.Restore(QRD_OK);
}

qrd_status Comm::CheckImport(const void* ptr, size_t bytes, gpu::DevicePtr* base) {
  gpu::Driver* const driver = device_->driver;
  gpu::PointerInfo info;
  if (qrd_status status = driver->DescribePointer(ptr, &info); status != QRD_OK) return status;
  if (info.kind != gpu::PointerInfo::Kind::kDevice) {
    return Fail(QRD_INVALID_ARGUMENT, "ptr: %p is %s memory, want memory of device %s", ptr,
                info.kind == gpu::PointerInfo::Kind::kHost ? "host" : "managed",
                device_->uuid.c_str());
  }
  if (qrd_status status = CheckPointerKind("ptr", ptr); status != QRD_OK) return status;
  if (!info.ipc_capable) {
    return Fail(QRD_UNIMPLEMENTED, "ptr: %p cannot be exported to another process. %s", ptr,
                kImportAdvice);
  }
  size_t allocation_bytes = 0;
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  if (driver->AllocationOf(address, base, &allocation_bytes) != QRD_OK) {
    return Fail(QRD_UNIMPLEMENTED, "ptr: %p belongs to no single allocation. %s", ptr,
                kImportAdvice);
  }
  if (address < *base || bytes > allocation_bytes - (address - *base)) {
    return Fail(QRD_INVALID_ARGUMENT,
                "bytes: %zu from %p pass the end of the allocation [0x%" PRIx64 ", +%zu)", bytes,
                ptr, *base, allocation_bytes);
  }
  return QRD_OK;
}

qrd_status Comm::MemImport(void* ptr, size_t bytes) {
  if (device_ == nullptr) {
    return Fail(QRD_FAILED_PRECONDITION,
                "comm: it has host memory; only device memory can be imported (config.device)");
  }
  if (qrd_status status = CheckRange("ptr", ptr, bytes); status != QRD_OK) return status;
  gpu::DevicePtr base = 0;
  char handle[gpu::kIpcHandleBytes];
  {
    const gpu::DeviceScope scope(device_->driver, device_->context);
    qrd_status status = scope.status();
    if (status == QRD_OK) status = CheckImport(ptr, bytes, &base);
    if (status != QRD_OK) return status;
    if (device_->driver->ExportHandle(base, handle) != QRD_OK) {
      const std::string why = LastError();
      return Fail(QRD_UNIMPLEMENTED, "ptr: %p cannot be exported to another process (%.200s). %s",
                  ptr, why.c_str(), kImportAdvice);
    }
  }
  Block block;
  block.start = reinterpret_cast<uintptr_t>(ptr);
  block.bytes = bytes;
  block.imported = true;
  {
    // Before the daemon is asked; InsertBlock checks again.
    const std::lock_guard<std::mutex> lock(mu_);
    if (qrd_status status = CheckNoOverlap("ptr", block); status != QRD_OK) return status;
  }
  v1::ClientMessage request;
  request.mutable_arena_import()->set_ipc_handle(handle, sizeof(handle));
  request.mutable_arena_import()->set_offset_bytes(block.start - base);
  request.mutable_arena_import()->set_bytes(bytes);
  v1::ServerMessage reply;
  const qrd_status status =
      CallDaemon(request, "ArenaImport", v1::ServerMessage::kArenaAllocated, 0, &reply, nullptr);
  if (status != QRD_OK) return status;
  block.arena = std::make_unique<Arena>();
  block.arena->id = reply.arena_allocated().arena_id();
  block.arena->generation = reply.arena_allocated().generation();
  block.arena->device_data = static_cast<std::byte*>(ptr);
  block.arena->device_bytes = bytes;
  block.arena->imported = true;
  return InsertBlock("ptr", std::move(block));
}

}  // namespace qrd::client
