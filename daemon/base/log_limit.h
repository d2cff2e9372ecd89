// SPDX-License-Identifier: Apache-2.0
// Keeps lines that others can cause at will from filling the log: at most kLinesMax of a kind in
// kWindowNs; the first line of a later window says how many were left out.
//
// Thread safety: all functions from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "daemon/base/mutex.h"

namespace qrd {

class LogLimit {
 public:
  static constexpr uint32_t kLinesMax = 20;
  static constexpr uint64_t kWindowNs = 10'000'000'000;

  // What to append to the line ("" or " (N lines like this were left out)"); nullopt: do not write
  // it.
  std::optional<std::string> Admit(uint64_t now_ns) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  uint64_t window_start_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t lines_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// spdlog::warn(text), as far as `limit` admits it.
void WarnLimited(LogLimit* limit, const std::string& text);

}  // namespace qrd
