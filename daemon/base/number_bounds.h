// SPDX-License-Identifier: Apache-2.0
// Bounds of the numbers of Config, for its check and for the flags' error texts.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace qrd {

struct NumberBounds {
  uint64_t min, max;
};

// nullopt if the field is no number of Config.
std::optional<NumberBounds> BoundsOf(std::string_view field);

}  // namespace qrd
