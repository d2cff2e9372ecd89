// SPDX-License-Identifier: Apache-2.0
// Operands for all-reduces with RMSNorm, and ways to run one on a divisible backend: whole, unit by
// unit, on threads, and as separate steps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/rms_norm.h"
#include "rms_norm_case.h"

namespace qrd::testing {

// Gaussian rows with a few large columns, a large value in the last columns of every row, and rows
// that are zero, so that a dropped tail and a wrong scale show.
inline std::vector<float> Activations(uint64_t tokens, uint32_t hidden, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> base(std::min<uint64_t>(tokens * hidden, 1 << 16));
  std::normal_distribution<float> gauss;
  for (float& value : base) value = gauss(random);
  std::vector<float> values(tokens * hidden);
  for (uint64_t row = 0; row < tokens; ++row) {
    const uint64_t start = random();
    const float amplitude = row % 7 == 5 ? 0.0f : std::ldexp(1.0f, static_cast<int>(row % 5) - 2);
    for (uint32_t i = 0; i < hidden; ++i) {
      const float outlier = i % 241 == 17 ? 20.0f : 1.0f;
      values[row * hidden + i] = base[(start + i) % base.size()] * amplitude * outlier;
    }
    values[row * hidden + hidden - 1 - row % 8] *= 32.0f;
  }
  return values;
}

inline RmsNormTensors MakeRmsNormTensors(const RmsNormShape& shape, uint64_t seed) {
  RmsNormTensors tensors;
  for (uint32_t r = 0; r < shape.world_size; ++r) {
    tensors.inputs.push_back(ToDtype(
        shape.dtype, Activations(shape.tokens, shape.hidden, seed * (kWorldSizeMax + 2) + r)));
  }
  if (shape.has_residual) {
    tensors.residuals = {ToDtype(
        shape.dtype,
        Activations(shape.tokens, shape.hidden, seed * (kWorldSizeMax + 2) + kWorldSizeMax))};
  }
  std::vector<float> weight = GaussValues(shape.hidden, seed);
  for (float& value : weight) value = 0.75f + 0.25f * value;
  tensors.weights = {ToDtype(shape.weight_dtype, weight)};
  return tensors;
}

inline uint64_t RunAllUnits(Backend& backend, const LaunchParams& params) {
  return backend.Run(params, {0, backend.UnitCount(params)});
}
inline uint64_t RunUnitsBackwards(Backend& backend, const LaunchParams& params) {
  uint64_t nonfinite = 0;
  for (uint64_t unit = backend.UnitCount(params); unit-- > 0;) {
    nonfinite += backend.Run(params, {unit, unit + 1});
  }
  return nonfinite;
}
// Units one by one, shuffled, each on the thread that is free.
inline uint64_t RunOnThreads(Backend& backend, const LaunchParams& params, int thread_count,
                             uint64_t seed) {
  std::vector<uint64_t> units(backend.UnitCount(params));
  std::iota(units.begin(), units.end(), 0);
  std::shuffle(units.begin(), units.end(), std::mt19937_64(seed));
  std::atomic<size_t> next = 0;
  std::atomic<uint64_t> nonfinite = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < units.size(); at = next++) {
        nonfinite += backend.Run(params, {units[at], units[at] + 1});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return nonfinite;
}

// The same operation as all_reduce, then add and norm (as one step or apart), then quantization.
inline void RunSeparateSteps(Backend& backend, const LaunchParams& params,
                             bool add_and_norm_apart = false) {
  const RmsNormParams& p = params.rms_norm;
  std::vector<std::vector<uint16_t>> reduced(params.world_size);
  LaunchParams plain = params;
  plain.epilogue = Epilogue::kNone;
  for (uint32_t r = 0; r < params.world_size; ++r) {
    reduced[r].resize(params.count);
    plain.outputs[r] = reduced[r].data();
  }
  ASSERT_TRUE(backend.Validate(plain).ok()) << backend.Validate(plain).ToString();
  backend.Run(plain, {0, backend.UnitCount(plain)});
  for (uint32_t r = 0; r < params.world_size; ++r) {
    std::vector<uint16_t> y(params.count);
    const NormOptions norm{params.dtype, p.tokens,       p.hidden,   p.eps,
                           p.gemma,      p.weight_dtype, p.weight[r]};
    if (add_and_norm_apart) {
      AddResidual(params.dtype, p.tokens, p.hidden, reduced[r].data(), p.residual[r],
                  p.residual_out[r]);
      RmsNorm(norm, p.residual_out[r], y.data());
    } else {
      AddRmsNorm(norm, reduced[r].data(), p.residual[r], p.residual_out[r], y.data());
    }
    void* const copy = p.quant == Quant::kNone ? p.out[r] : p.mirror[r];
    if (copy != nullptr) std::memcpy(copy, y.data(), params.count * sizeof(uint16_t));
    if (p.quant == Quant::kNone) continue;
    const QuantizeOptions quantize{params.dtype, p.tokens,      p.hidden,
                                   p.quant,      p.scale_group, p.divisor};
    QuantizeFp8(quantize, y.data(), p.out8[r], p.scales[r]);
  }
}

}  // namespace qrd::testing
