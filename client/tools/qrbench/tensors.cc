// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codec.h"

namespace qrd::tools {
namespace {

constexpr uint64_t kPiece = 2048;

// splitmix64: every input gives an independent output, so elements need no order.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Sums over elements; Add one piece at a time.
struct Accumulator {
  double signal = 0, noise = 0, max_error = 0;
  uint64_t compared = 0, nonfinite = 0;

  void Add(const double* exact, const float* result, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      if (!std::isfinite(result[i]) || !std::isfinite(exact[i])) {
        ++nonfinite;
        continue;
      }
      const double error = static_cast<double>(result[i]) - exact[i];
      signal += exact[i] * exact[i];
      noise += error * error;
      max_error = std::max(max_error, std::fabs(error));
      ++compared;
    }
  }
  Quality Finish() const {
    double db = std::numeric_limits<double>::quiet_NaN();
    if (compared > 0) {
      db = noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
    }
    return {db, max_error, compared, nonfinite};
  }
};

// `input(rank, first, count, out)` gives values that are already rounded to the dtype.
template <typename Input>
Quality MeasureWith(Dtype dtype, ReduceOp op, uint32_t ranks, uint64_t count, const void* result,
                    const Input& input) {
  Accumulator sums;
  std::vector<float> values(kPiece), got(kPiece);
  std::vector<double> exact(kPiece);
  for (uint64_t first = 0; first < count; first += kPiece) {
    const uint64_t n = std::min(kPiece, count - first);
    std::fill_n(exact.begin(), n, 0.0);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      input(rank, first, n, values.data());
      for (uint64_t i = 0; i < n; ++i) exact[i] += values[i];
    }
    if (op == ReduceOp::kAvg) {
      for (uint64_t i = 0; i < n; ++i) exact[i] /= ranks;
    }
    WidenToFp32(dtype, static_cast<const std::byte*>(result) + first * DtypeBytes(dtype), n,
                got.data());
    sums.Add(exact.data(), got.data(), n);
  }
  return sums.Finish();
}

}  // namespace

void TensorSource::Values(uint32_t rank, uint64_t first, uint64_t count, float* out) const {
  if (!files.empty()) {
    std::copy_n(files[rank].begin() + static_cast<int64_t>(first), count, out);
    return;
  }
  const uint64_t stream = Mix(seed * 1009 + rank) << 1;
  // Four uniform numbers of 16 bits: variance 4 * 2^32 / 12, mean 4 * 65535 / 2.
  constexpr float kScale = 1.0f / 37837.227f;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(stream + first + i);
    const int32_t sum = static_cast<int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                             (bits >> 32 & 0xFFFF) + (bits >> 48));
    out[i] = static_cast<float>(sum - 131070) * kScale;
  }
}

void TensorSource::Fill(uint32_t rank, Dtype dtype, uint64_t count, void* out) const {
  float values[kPiece];
  for (uint64_t first = 0; first < count; first += kPiece) {
    const uint64_t n = std::min(kPiece, count - first);
    Values(rank, first, n, values);
    RoundToDtype(dtype, values, n, static_cast<std::byte*>(out) + first * DtypeBytes(dtype));
  }
}

Quality Measure(const TensorSource& source, Dtype dtype, ReduceOp op, uint32_t ranks,
                uint64_t count, const void* result, uint64_t limit) {
  uint32_t rounded[kPiece];  // room for any dtype
  return MeasureWith(dtype, op, ranks, std::min(count, limit), result,
                     [&](uint32_t rank, uint64_t first, uint64_t n, float* out) {
                       source.Values(rank, first, n, out);
                       RoundToDtype(dtype, out, n, rounded);
                       WidenToFp32(dtype, rounded, n, out);
                     });
}

Quality MeasureInputs(Dtype dtype, ReduceOp op, const std::vector<const void*>& inputs,
                      uint64_t count, const void* result) {
  return MeasureWith(dtype, op, static_cast<uint32_t>(inputs.size()), count, result,
                     [&](uint32_t rank, uint64_t first, uint64_t n, float* out) {
                       const auto* at = static_cast<const std::byte*>(inputs[rank]);
                       WidenToFp32(dtype, at + first * DtypeBytes(dtype), n, out);
                     });
}

uint64_t Hash(const void* data, uint64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  uint64_t lanes[4] = {1, 2, 3, bytes};
  uint64_t word;
  uint64_t left = bytes;
  for (; left >= 32; left -= 32, at += 32) {
    for (int lane = 0; lane < 4; ++lane) {
      std::memcpy(&word, at + 8 * lane, 8);
      lanes[lane] = (lanes[lane] ^ word) * 0x9E3779B97F4A7C15;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  for (; left > 0; --left, ++at) {
    lanes[0] = (lanes[0] ^ static_cast<uint64_t>(*at)) * 0x100000001B3;
  }
  return Mix(lanes[0] ^ Mix(lanes[1] ^ Mix(lanes[2] ^ Mix(lanes[3]))));
}

}  // namespace qrd::tools
