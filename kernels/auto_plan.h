// SPDX-License-Identifier: Apache-2.0
// What `auto` means on GPUs: codec, algorithm and own kernels or the vendor's library, from facts
// that all ranks share. The table and the source of each row: auto_plan.cc; what it rests on in
// figures: kernels/gpu/README.md, "Auto". The host backend does not use it (no wire: codec none).
//
// Thread safety: pure functions, no allocation. Total: every fact has exactly one plan.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/types.h"

namespace qrd {

// What lies between the ranks of a communicator; with several kinds, the slowest.
enum class LinkKind : uint8_t {
  kSameDevice,  // all ranks on one GPU
  kXgmi,        // AMD peers, one link a pair: the links are what a large all-reduce waits for
  kNvlink,      // NVIDIA peers: links an order of magnitude faster, no figures for codecs yet
};

struct AutoFacts {
  Dtype dtype = Dtype::kBf16;
  uint64_t payload_bytes = 0;  // of one rank
  uint32_t world_size = 1;
  LinkKind link = LinkKind::kSameDevice;
  std::optional<Codec> codec;  // set by a rule of the policy: only the rest is chosen
  // No codec with fewer bits a value is chosen; kNone: none at all. Below int4 only if told.
  Codec coarsest = Codec::kInt4;
  bool library_available = false;  // RCCL or NCCL is loaded and can serve these ranks
};

struct AutoPlan {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  bool library = false;  // use the library; codec is then kNone, algorithm what serves without it

  bool operator==(const AutoPlan&) const = default;
};

AutoPlan PlanAuto(const AutoFacts& facts);

}  // namespace qrd
