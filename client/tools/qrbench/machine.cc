// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/codec.h"
#include "kernels/memory_limit.h"

namespace qrd::tools {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "model name")) continue;
    const size_t colon = rest.find(':');
    if (colon != absl::string_view::npos) {
      return std::string(absl::StripAsciiWhitespace(rest.substr(colon + 1)));
    }
  }
  return "unknown CPU";
}

uint32_t UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<uint32_t>(CPU_COUNT(&set));
  return static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

Machine DescribeMachine() {
  utsname name = {};
  uname(&name);
  const uint64_t memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return {CpuModel(), absl::StrCat(name.sysname, " ", name.release), SimdTargetName(),
          UsableCores(), memory};
}

std::string CompilerVersion() {
#if defined(__clang__)
  return absl::StrCat("Clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  return absl::StrCat("GNU ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

std::optional<double> MachineLimits::AlgorithmGbps(uint64_t payload_bytes, uint32_t ranks) {
  if (payload_bytes < kPayloadBytesMin) return std::nullopt;
  const auto key = std::make_pair(payload_bytes, ranks);
  if (const auto at = measured_.find(key); at != measured_.end()) return at->second;
  MemoryLimitOptions options;
  options.payload_bytes = payload_bytes / 64 * 64;
  options.ranks = ranks;
  const absl::StatusOr<MemoryLimit> limit = MeasureMemoryLimit(options);
  std::optional<double> gbps;
  if (limit.ok()) {
    gbps = static_cast<double>(options.payload_bytes) / limit->seconds_median / 1e9;
  }
  measured_[key] = gbps;
  return gbps;
}

}  // namespace qrd::tools
