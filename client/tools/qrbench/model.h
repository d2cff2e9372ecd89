// SPDX-License-Identifier: Apache-2.0
// A model of the time of one all-reduce, for machines that cannot be measured here: one formula,
// few parameters a machine, each with its origin.
//
//   time = fixed + per_rank * ranks + max(link, memory, arithmetic) + codec
//
//   link        bytes that a rank sends, over the usable bandwidth of one link. In a mesh (one link
//               a pair) the share `serial` of them goes to one peer at a time, the rest to all at
//               once: sent / link * (serial + (1 - serial) / (ranks - 1)). With a switch: sent /
//               link. On one device: nothing.
//   memory      bytes read and written by all ranks of one device: each reads and writes its
//   payload,
//               and twice what it exchanges each way, over the rate of a copy
//   arithmetic  of codecs that are bound by it: payload encoded and decoded, over measured rates
//   codec       what encoding and decoding cost besides links, for each byte of payload
//
// What was fitted, and to what, is said with the parameter; model_published.h has the figures that
// it is held against, those of the fit marked.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/types.h"

namespace qrd::tools {

inline constexpr double kNotKnown = -1;

struct Parameter {
  double value = 0;
  std::string_view origin;  // measured, nominal or fitted, and where or to what
};

enum class Topology { kMesh, kSwitch, kOneDevice };

// What one kind of kernel (uncompressed, with a codec, the vendor's library) costs.
struct KernelCost {
  Parameter fixed_us, per_rank_us;
  Parameter serial;  // 0 to 1, meshes only
};

// Bus bandwidth of the library, measured with `bytes` of payload.
struct LibraryFigure {
  uint32_t ranks = 0;
  double bus_gbps = 0;
};

struct ModelMachine {
  std::string_view name, description;
  Topology topology = Topology::kMesh;
  uint32_t ranks_max = 8;
  Parameter link_gbps;         // usable: of one link and direction (mesh), of a GPU (switch)
  Parameter link_efficiency;   // reached by a kernel
  Parameter memory_gbps;       // bytes read and written by a copy
  Parameter codec_us_per_mib;  // of payload
  Parameter one_shot_fixed;    // fixed time of one_shot over that of two_shot
  Parameter arithmetic_scale;  // lane operations a second, over those of an H200
  KernelCost none, codec, library;
  bool has_library = false;
  // If there are any, the library is known at these world sizes only.
  std::string_view library_origin;
  uint64_t library_bytes = 0;
  std::array<LibraryFigure, 3> library_figures{};
};

enum class ModelAlgorithm { kOneShot, kTwoShot, kLibrary };
std::string_view AlgorithmName(ModelAlgorithm algorithm);

struct ModelCase {
  uint32_t ranks = 2;
  uint64_t payload_bytes = 0;
  Dtype dtype = Dtype::kFp16;
  Codec codec = Codec::kNone;  // ignored for the library
  ModelAlgorithm algorithm = ModelAlgorithm::kTwoShot;
};

// Microseconds.
struct Prediction {
  double fixed = 0, link = 0, memory = 0, arithmetic = 0, codec = 0;
  double total = 0;
  // "link", "memory", "arithmetic" or "fixed": the largest part.
  std::string_view bound_by;
};

// mi300x, mi355x, h200 (all ranks on one device), h200-nvlink (no figures of its own: link
// bandwidth and latency must be given).
std::span<const ModelMachine> ModelMachines();
// NOT_FOUND names what there is and the nearest.
absl::StatusOr<ModelMachine> FindModelMachine(std::string_view name);

// INVALID_ARGUMENT or UNIMPLEMENTED naming field, value and bound.
absl::StatusOr<Prediction> Predict(const ModelMachine& machine, const ModelCase& c);

}  // namespace qrd::tools
