// SPDX-License-Identifier: Apache-2.0
// Where tensors live and collectives run. Nothing above this header includes a GPU header; the
// daemon sees backends only through it. tests/kernels/conformance_test.cc runs over every backend
// and every line of instances.def.
//
// A backend works in one of two styles:
//   divisible  (host) Run() executes a range of tiles on the calling thread; the engine cuts an
//              operation into ranges, so that groups share the machine fairly;
//   enqueued   (gpu)  Run() puts the whole operation on the device and returns; Poll() tells the
//   end.
//
// Thread safety: all functions may be called from any thread. Run() on disjoint tile ranges of one
// operation may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace qrd {

// One line of instances.def: what a backend can run.
struct KernelInstance {
  Codec codec;
  Algorithm algorithm;
  Dtype dtype;
  uint32_t world_size_min;
  uint32_t world_size_max;
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
};

// Memory shared with a client. The backend owns it; the fd (memfd or exported handle) stays open as
// long as the arena lives.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* data() = 0;
  virtual uint64_t bytes() const = 0;
  virtual int fd() const = 0;
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

  // Zeroed, page-aligned, physically reserved memory. RESOURCE_EXHAUSTED if there is none.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateArena(uint64_t bytes) = 0;

  // Runs tiles [range.first, range.last) of a validated operation: reads the inputs of all ranks
  // there and writes the outputs of all ranks there. Returns how many elements of the result (one
  // rank's) are NaN or Inf. Blocking; bounded by the range.
  virtual uint64_t Run(const LaunchParams& params, TileRange range) = 0;
};

std::unique_ptr<Backend> MakeHostBackend();

}  // namespace qrd
