// SPDX-License-Identifier: Apache-2.0
// Random and adversarial fp32 inputs for the codecs, reproducible from a seed.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec_table.h"

namespace qrd::testing {

inline constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

struct NamedInput {
  std::string name;
  std::vector<float> values;
};

inline float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// `count` values of each kind. `dtype` sets where "too large" begins.
inline std::vector<NamedInput> CodecInputs(Dtype dtype, uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const uint32_t limit = SpecOf(dtype).limit;
  std::vector<NamedInput> inputs;
  const auto add = [&](const char* name, const std::function<float(uint64_t)>& value) {
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i) values[i] = value(i);
    inputs.push_back({name, std::move(values)});
  };
  const auto pick = [&](std::initializer_list<float> choices) {
    return choices.begin()[random() % choices.size()];
  };

  add("gauss", [&](uint64_t) { return normal(random); });
  add("zero", [](uint64_t) { return 0.0f; });
  add("minus zero", [](uint64_t) { return -0.0f; });
  add("signed zeros", [&](uint64_t) { return pick({0.0f, -0.0f}); });
  add("any bits", [&](uint64_t) { return FromBits(static_cast<uint32_t>(random())); });
  // Every group another magnitude, down to subnormals, across the 2^-100 floor and up to the limit.
  add("sweep", [&](uint64_t i) {
    const int exponent = static_cast<int>((i / 32 * 37 + seed * 11) % 277) - 149;
    return std::ldexp(normal(random), exponent);
  });
  add("around the floor", [&](uint64_t i) {
    const uint32_t bits = kFloorBits + static_cast<uint32_t>(i / 32 % 9) - 4;
    return i % 32 == i / 32 % 32 ? FromBits(bits) : FromBits(bits / 2);
  });
  add("around the limit", [&](uint64_t i) {
    const uint32_t bits = limit + static_cast<uint32_t>(i / 32 % 5) - 3;
    const float value = i % 32 == 7 ? FromBits(bits) : FromBits(limit - 1) * normal(random) * 0.2f;
    return i / 32 % 2 == 0 ? value : -value;
  });
  add("subnormals",
      [&](uint64_t) { return FromBits(static_cast<uint32_t>(random()) & 0x807FFFFF); });
  add("few non-finite", [&](uint64_t i) {
    if (random() % 97 != 0 && i + 1 != count) return normal(random);
    return pick({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                 -std::numeric_limits<float>::infinity(), FromBits(0xFF800001),
                 FromBits(0x7FFFFFFF)});
  });
  // Several elements tie for the largest magnitude, of both signs, in and across lanes.
  add("tied extremes", [&](uint64_t) { return pick({-3.0f, 3.0f, 1.0f, -0.5f, 0.0f}); });
  add("all equal", [](uint64_t i) { return i / 128 % 2 == 0 ? 2.5f : -2.5f; });
  add("one spike",
      [&](uint64_t i) { return i % 64 == (i / 64 * 5) % 64 ? 1e4f : normal(random) * 1e-2f; });
  add("spike in the last place", [&](uint64_t i) { return i + 1 == count ? -7.0f : 0.01f; });
  // Half steps: ties of the int codecs' rounding, of E2M1, E4M3 and of the lp thresholds.
  add("ties", [&](uint64_t i) {
    const float unit = std::ldexp(1.0f, static_cast<int>(i / 128 % 20) - 10);
    if (i % 32 == 0) return unit * pick({8.0f, 4.0f, 128.0f, 32.0f, 6.0f, 448.0f, 12.0f});
    return unit * (static_cast<float>(static_cast<int>(random() % 65) - 32) / 8);
  });
  // Multiples of the limits C times the steps: the choices of row and lane code, one ulp around.
  add("lane limits", [&](uint64_t i) {
    if (i % 64 == 63) return std::ldexp(1.0f + static_cast<float>(i / 64 % 8) / 8, 6);
    const float limit_of_lane = pick({12.0f, 6.25f, 6.5f, 3.0f}) * pick({1.0f, 1.25f, 1.5f, 1.75f});
    const float value = std::ldexp(limit_of_lane, static_cast<int>(random() % 12) - 8);
    return FromBits(std::bit_cast<uint32_t>(value) + static_cast<uint32_t>(random() % 3) - 1);
  });
  add("heavy tails", [&](uint64_t) { return std::exp(4 * normal(random)) * normal(random); });
  return inputs;
}

}  // namespace qrd::testing
