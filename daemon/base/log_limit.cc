// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/log_limit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "spdlog/spdlog.h"

namespace qrd {

std::optional<std::string> LogLimit::Admit(uint64_t now_ns) {
  MutexLock lock(&mu_);
  if (lines_ == 0 || now_ns - window_start_ns_ >= kWindowNs) {
    window_start_ns_ = now_ns;
    lines_ = 0;
  }
  if (lines_ == kLinesMax) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  const uint64_t left_out = std::exchange(left_out_, 0);
  return left_out == 0 ? "" : absl::StrCat(" (", left_out, " lines like this were left out)");
}

void WarnLimited(LogLimit* limit, const std::string& text) {
  if (const auto suffix = limit->Admit(MonotonicNs())) spdlog::warn("{}{}", text, *suffix);
}

}  // namespace qrd
