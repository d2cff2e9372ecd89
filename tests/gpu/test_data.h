// SPDX-License-Identifier: Apache-2.0
// Inputs that are hard for codecs, from a seed: ordinary values, runs of zeros, ties, extremes, NaN
// and Inf, subnormals, arbitrary bits. For the tests of the GPU kernels.
//
// Thread safety: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/reference.h"
#include "kernels/types.h"

namespace qrd::testing {

using Bytes = std::vector<std::byte>;

enum class Data {
  kOrdinary,     // normal, per-group amplitudes over many octaves
  kAdversarial,  // a different trap every group
  kBits,         // any bit pattern
};

inline float AdversarialValue(std::mt19937& random, uint32_t trap, uint32_t i, float amplitude) {
  const float unit = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
  const float sign = (random() & 1) != 0 ? 1.0f : -1.0f;
  switch (trap) {
    case 0:
      return sign * 0.0f;
    case 1:
      return sign * amplitude;  // all the same magnitude
    case 2:
      return static_cast<float>(static_cast<int>(random() % 33) - 16) * amplitude / 8;  // ties
    case 3:
      return i % 32 == random() % 32 ? NAN : unit * amplitude;
    case 4:
      return i % 64 == 17 ? sign * INFINITY : unit * amplitude;
    case 5:
      return unit * 65504.0f;
    case 6:
      return unit * 0x1p-24f;
    case 7:
      return unit * 0x1p-130f;
    case 8:
      return sign * (65488.0f + static_cast<float>(random() % 64));
    case 9:
      return unit * 3.3e38f;
    case 10:
      return i % 64 == random() % 64 ? sign * amplitude : unit * amplitude * 0x1p-9f;
    case 11:
      return i % 32 == 5 ? amplitude : 0;
    case 12:
      return sign * std::bit_cast<float>(
                        static_cast<uint32_t>(0x0D7FFFF0 + random() % 32));  // about 2^-100
    case 13:
      return sign * std::bit_cast<float>(static_cast<uint32_t>(0x7F7F7F00 + random() % 512));
    default:
      return unit * amplitude;
  }
}

// `count` elements of `dtype`.
inline Bytes MakeTensor(Dtype dtype, uint64_t count, Data data, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  float amplitude = 1;
  uint32_t trap = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i % 32 == 0)
      amplitude = std::ldexp(1.0f + static_cast<float>(random() % 8) / 8,
                             static_cast<int>(random() % 28) - 16);
    if (i % 64 == 0) trap = random() % 24;
    switch (data) {
      case Data::kOrdinary:
        values[i] = normal(random) * amplitude;
        break;
      case Data::kAdversarial:
        values[i] = AdversarialValue(random, trap, static_cast<uint32_t>(i), amplitude);
        break;
      case Data::kBits:
        values[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
        break;
    }
  }
  Bytes tensor(count * DtypeBytes(dtype));
  if (dtype == Dtype::kFp32 || data != Data::kBits) {
    ReferenceRoundToDtype(dtype, values.data(), count, tensor.data());
    if (dtype == Dtype::kFp32 && count != 0) {
      std::memcpy(tensor.data(), values.data(), tensor.size());
    }
  } else {
    for (std::byte& byte : tensor) byte = static_cast<std::byte>(random());
  }
  return tensor;
}

}  // namespace qrd::testing
