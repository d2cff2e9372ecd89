// SPDX-License-Identifier: Apache-2.0
#include "kernels/memory_limit.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/host_memory.h"
#include "kernels/lockstep_team.h"
#include "kernels/simd_targets.h"
#include "kernels/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/memory_limit.cc"  // NOLINT: this file, once per instruction set
#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qrd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Bytes [first, last) of all buffers: a vector of every input read, the combination written to
// every output. 64-byte aligned.
void StreamPass(const float* const* inputs, float* const* outputs, uint32_t ranks, size_t first,
                size_t last) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t line = first / sizeof(float); line < last / sizeof(float); line += kLine) {
    for (size_t i = line; i < line + kLine; i += hn::Lanes(d)) {
      auto v = hn::Load(d, inputs[0] + i);
      for (uint32_t r = 1; r < ranks; ++r) v = hn::Add(v, hn::Load(d, inputs[r] + i));
      for (uint32_t r = 0; r < ranks; ++r) hn::Stream(v, d, outputs[r] + i);
    }
  }
  hwy::FlushStream();
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace qrd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qrd {
namespace {

HWY_EXPORT(StreamPass);

absl::Status Validate(const MemoryLimitOptions& o) {
  const auto error = [](const char* name, uint64_t value, const char* want) {
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, ": want ", want));
  };
  if (o.payload_bytes == 0 || o.payload_bytes % 64 != 0 || o.payload_bytes > kArenaBytesMax) {
    return error("payload_bytes", o.payload_bytes, "a multiple of 64 from 64 to 2^46");
  }
  if (o.ranks < 1 || o.ranks > kWorldSizeMax) return error("ranks", o.ranks, "1 to 16");
  if (o.threads > 1024) return error("threads", o.threads, "0 (one a core) to 1024");
  if (o.repetitions < 1 || o.repetitions > 1000) {
    return error("repetitions", o.repetitions, "1 to 1000");
  }
  const uint64_t wanted = 2 * o.ranks * o.payload_bytes;
  if (const uint64_t available = AvailableMemoryBytes(); wanted > available) {
    return absl::ResourceExhaustedError(absl::StrCat("payload_bytes = ", o.payload_bytes,
                                                     ": needs ", wanted, " bytes, the machine has ",
                                                     available, " available"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MemoryLimit> MeasureMemoryLimit(const MemoryLimitOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const size_t floats = options.payload_bytes / sizeof(float);
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> memory;
  float* buffers[2 * kWorldSizeMax] = {};
  for (uint32_t i = 0; i < 2 * options.ranks; ++i) {
    memory.push_back(hwy::AllocateAligned<float>(floats));
    if (memory.back() == nullptr) return absl::ResourceExhaustedError("no memory for the buffers");
    buffers[i] = memory.back().get();
    std::fill_n(buffers[i], floats, 1.0f);
  }
  LockstepTeam team(options.threads);
  const uint64_t lines = options.payload_bytes / 64;
  const auto pass = [&](uint32_t thread) {
    HWY_DYNAMIC_DISPATCH(StreamPass)
    (buffers, buffers + options.ranks, options.ranks, lines * thread / team.size() * 64,
     lines * (thread + 1) / team.size() * 64);
  };
  team.Run(pass);  // warms page tables and threads
  std::vector<double> seconds;
  for (uint32_t i = 0; i < options.repetitions; ++i) seconds.push_back(team.Run(pass));
  std::ranges::sort(seconds);
  return MemoryLimit{.seconds_median = seconds[seconds.size() / 2],
                     .seconds_min = seconds.front(),
                     .traffic_bytes = 2 * options.ranks * options.payload_bytes};
}

}  // namespace qrd
#endif  // HWY_ONCE
