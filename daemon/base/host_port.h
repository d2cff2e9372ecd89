// SPDX-License-Identifier: Apache-2.0
// "127.0.0.1:9478", "[::1]:0", "localhost:9478".
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace qrd {

struct HostPort {
  std::string host;  // a numeric address, without brackets
  bool is_ipv6 = false;
  uint16_t port = 0;

  std::string ToString() const;
};

// No name service: the host is a numeric address or "localhost" (127.0.0.1). The error completes a
// sentence: `is "x": want ...`.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

}  // namespace qrd
