// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <iterator>
#include <span>

#include "kernels/backend.h"

namespace qrd {
namespace {

constexpr KernelInstance kInstances[] = {
#define QRD_INSTANCE(algorithm, codec, dtype, world_size_min, world_size_max, epilogue) \
  {Codec::codec,   Algorithm::algorithm, Dtype::dtype,                                  \
   world_size_min, world_size_max,       Epilogue::epilogue},
#include "kernels/instances.def"
#undef QRD_INSTANCE
};

constexpr bool WorldSizesAreSane() {
  for (const KernelInstance& instance : kInstances) {
    if (instance.world_size_min < 1 || instance.world_size_min > instance.world_size_max ||
        instance.world_size_max > kWorldSizeMax) {
      return false;
    }
  }
  return true;
}
static_assert(WorldSizesAreSane());

constexpr bool LinesAreUnique() {
  for (std::size_t i = 0; i < std::size(kInstances); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kInstances[i].codec == kInstances[j].codec &&
          kInstances[i].algorithm == kInstances[j].algorithm &&
          kInstances[i].dtype == kInstances[j].dtype) {
        return false;
      }
    }
  }
  return true;
}
static_assert(LinesAreUnique());

// RMSNorm is one of 16-bit tensors.
constexpr bool EpiloguesFitDtypes() {
  for (const KernelInstance& instance : kInstances) {
    if (instance.epilogue != Epilogue::kNone && instance.dtype == Dtype::kFp32) return false;
  }
  return true;
}
static_assert(EpiloguesFitDtypes());

}  // namespace

std::span<const KernelInstance> AllInstances() { return kInstances; }

}  // namespace qrd
