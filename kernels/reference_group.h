// SPDX-License-Identifier: Apache-2.0
// One group of the scalar reference: values to codes and back, before the codes are cut into
// planes.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/codec_table.h"

namespace qrd::reference {

inline constexpr uint32_t kGroupMax = 128;

struct Group {
  std::array<uint8_t, kGroupMax> codes = {};
  uint32_t meta = 0;  // scale bits or group word
};
using Values = std::array<float, kGroupMax>;

// The first spec.group_elements values count. Not for codec none.
Group EncodeGroup(const CodecSpec& spec, Dtype dtype, const Values& x);
// NaN may have any sign and payload.
Values DecodeGroup(const CodecSpec& spec, Dtype dtype, const Group& group);

}  // namespace qrd::reference
