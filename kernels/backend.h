// SPDX-License-Identifier: Apache-2.0
// Where tensors live and collectives run. Nothing above this header includes a GPU header; the
// daemon sees backends only through it. tests/kernels/conformance_test.cc runs over every backend
// and every line of instances.def.
//
// A backend works in one of two styles:
//   divisible  (host) Run() executes a range of units on the calling thread; the engine cuts an
//              operation into ranges, so that groups share the machine fairly;
//   enqueued   (gpu)  a DeviceGroup puts whole operations on the devices and returns at once;
//   Poll() tells how far they are.
//
// Thread safety: all functions may be called from any thread. Run() on disjoint ranges of one
// operation may run at the same time. A DeviceGroup: one thread at a time, but Abort() from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/auto_plan.h"
#include "kernels/epilogue.h"
#include "kernels/types.h"

namespace qrd {

// One line of instances.def: what a backend can run.
struct KernelInstance {
  Codec codec;
  Algorithm algorithm;
  Dtype dtype;
  uint32_t world_size_min;
  uint32_t world_size_max;
  Epilogue epilogue = Epilogue::kNone;  // what it offers besides none
};
std::span<const KernelInstance> AllInstances();

struct DeviceInfo {
  std::string id;  // "host" or a GPU's UUID; never an ordinal
  std::string description;
  uint64_t memory_bytes = 0;
};

// Everything that a launch needs, by value. inputs[r] and outputs[r] are rank r's tensors: count
// elements, aligned to the element; outputs[r] is inputs[r] or disjoint from every other tensor.
struct LaunchParams {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kFp32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t world_size = 1;
  uint64_t count = 0;
  const void* inputs[kWorldSizeMax] = {};
  void* outputs[kWorldSizeMax] = {};
  // With an epilogue the results are those of `rms_norm`, and `outputs` is not looked at.
  Epilogue epilogue = Epilogue::kNone;
  RmsNormParams rms_norm;
};

// Bytes that `rank` sends over links in a validated operation (on the host: would send): what
// types.h says, or of a sharded residual the tiles that the other owners' rows touch, and then the
// own rows of out, or out8, scales and mirror, to every other rank.
uint64_t WireBytesSent(const LaunchParams& params, uint32_t rank);

// One tensor through a codec, as Encode, EncodeFp32 and Decode of kernels/codec.h do.
struct CodecParams {
  Codec codec = Codec::kNone;
  Dtype dtype = Dtype::kFp16;
  bool encode = true;
  bool from_fp32 = false;  // encode: the values are fp32. Decode always gives fp32
  uint64_t count = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

// Memory shared with a client. The backend owns it; what names it for the client (a memfd, or the
// handle of device memory) stays good as long as the arena lives.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* data() = 0;  // of a device: an address for kernels, not for the CPU
  virtual uint64_t bytes() const = 0;
  virtual int fd() const = 0;  // -1: the memory is a device's, or CloseFd() was called
  // The client has its copy: many arenas must not take the process's descriptors.
  virtual void CloseFd() {}
  // kIpcHandleBytes bytes for the runtime's "open" call in another process; empty: see fd(). Also
  // empty for memory that a client owns.
  virtual std::string_view ipc_handle() const { return {}; }
};
inline constexpr size_t kIpcHandleBytes = 64;

// Host memory, shared with a client, whose words devices can write. Unregisters in the destructor.
class DeviceVisibleMemory {
 public:
  virtual ~DeviceVisibleMemory() = default;
};

// The ranks of one group on their devices. Made when all ranks have joined; operations run in the
// order of Launch(), also with those of other groups of the communicator, which may share memory
// and streams. Never waits for a client: an operation is launched when all its ranks have posted.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;  // waits (bounded) for what runs

  // Puts a validated operation on the devices and returns. Once rank r's output is complete, and
  // visible to every process, the device stores 1 into *done_words[r] (null: no such word; else in
  // DeviceVisibleMemory); so it is for every launched operation, also for one that fails (then by
  // the host, in Poll() or the next Launch(), if the device has not). Returns a ticket; tickets
  // count up. Not OK: nothing was launched and no word will be written; RESOURCE_EXHAUSTED: too
  // many in flight, try again after a Poll() that says done.
  virtual absl::StatusOr<uint64_t> Launch(const LaunchParams& params,
                                          std::span<std::atomic<uint32_t>* const> done_words) = 0;

  struct Progress {
    bool done = false;
    uint64_t nonfinite_count = 0;  // of a done operation: elements of one rank's result
  };
  // Not OK: the operation failed. DEADLINE_EXCEEDED (a wait inside the kernel passed its bound) or
  // ABORTED: so have all others in flight on the same memory; the next Launch() starts anew.
  // INTERNAL: the device failed for good, and done words may be missing.
  virtual absl::StatusOr<Progress> Poll(uint64_t ticket) = 0;

  // What runs ends soon and fails, other groups' operations on the same memory too.
  virtual void Abort() = 0;

  // What lies between the ranks (for PlanAuto), and whether the vendor's library can serve them.
  virtual LinkKind link() const = 0;
  virtual bool library_available() const { return false; }
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "host", "gpu"
  virtual std::string target() const = 0;     // "AVX3_SPR", "gfx942"
  virtual std::vector<DeviceInfo> devices() const = 0;
  virtual std::span<const KernelInstance> instances() const = 0;

  // OK, or UNIMPLEMENTED / INVALID_ARGUMENT naming field, value and bound. Never substitutes a
  // codec.
  virtual absl::Status Validate(const LaunchParams& params) const = 0;

  // What AUTO means here. The host has no wire: codec none.
  virtual Codec AutoCodec(Dtype dtype, uint64_t payload_bytes, uint32_t world_size) const = 0;
  virtual Algorithm AutoAlgorithm(Codec codec, Dtype dtype, uint64_t payload_bytes,
                                  uint32_t world_size) const = 0;

  // Zeroed, page-aligned, physically reserved host memory. RESOURCE_EXHAUSTED if there is none.
  // Enqueued backends: UNIMPLEMENTED, see AllocateDeviceArena.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t bytes) = 0;

  // How many units a validated operation is cut into, at most TileCount(params.count) and 0 only
  // without elements. Units are of equal size, but for the last: tiles, or with an epilogue whole
  // rows, which may be larger than a tile. Divisible backends only.
  virtual uint64_t UnitCount(const LaunchParams& params) const { return TileCount(params.count); }

  // Runs units [range.first, range.last) of a validated operation: reads the inputs of all ranks
  // there and writes the outputs of all ranks there. Returns how many elements of the reduced
  // tensor (one rank's; with an epilogue before the residual) are NaN or Inf. Blocking; bounded by
  // the range.
  // Divisible backends only.
  virtual uint64_t Run(const LaunchParams& params, TileRange range) = 0;

  // The rest: enqueued backends only. The defaults say UNIMPLEMENTED.
  virtual bool enqueued() const { return false; }
  // The id of the device that `name` (an id, or a PCI address) means. NOT_FOUND names those that
  // exist.
  virtual absl::StatusOr<std::string> FindDevice(std::string_view name) const;
  // device_of_rank[r] is an id of devices() (UUID), or its PCI address. Groups of one communicator
  // on the same devices share one pool. NOT_FOUND names the devices that exist; UNIMPLEMENTED:
  // devices that do not reach each other; RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::unique_ptr<DeviceGroup>> PlaceGroup(
      std::string_view communicator, std::span<const std::string> device_of_rank);
  // Zeroed memory on `device` (an id of devices(), or its PCI address). RESOURCE_EXHAUSTED if there
  // is none; NOT_FOUND names the devices that exist.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateDeviceArena(std::string_view device,
                                                                     uint64_t bytes);
  // Memory of a client's own allocation, by its handle. [offset_bytes, offset_bytes + bytes) of it.
  virtual absl::StatusOr<std::unique_ptr<Arena>> ImportArena(std::string_view device,
                                                             std::string_view ipc_handle,
                                                             uint64_t offset_bytes, uint64_t bytes);
  virtual absl::StatusOr<std::unique_ptr<DeviceVisibleMemory>> MakeDeviceVisible(void* data,
                                                                                 uint64_t bytes);
  // The vendor's collective library, for example "NCCL 2.28.9", or why there is none.
  virtual absl::StatusOr<std::string> collective_library() const;
  // For checks of the kernels: from and to are in memory of `device`. Waits for the end.
  virtual absl::Status RunCodec(std::string_view device, const CodecParams& params);
};

std::unique_ptr<Backend> MakeHostBackend();

// FAILED_PRECONDITION if this build has no GPU backend (QRD_GPU=none), NOT_FOUND if the machine has
// no device that it can use; both say what to do. kernels/gpu/gpu_backend.cc, or
// kernels/no_gpu_backend.cc in its place.
//
// collective_library: of ALGORITHM_LIBRARY: "auto", "off" or a path (config.proto). One that cannot
// be loaded is no error: see Backend::collective_library.
absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(
    std::string_view collective_library = "auto");

}  // namespace qrd
