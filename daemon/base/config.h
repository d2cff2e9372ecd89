// SPDX-License-Identifier: Apache-2.0
// The configuration after parsing, defaults, flags and checks. proto/qrd/v1/config.proto documents
// every field, its default and its bounds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "qrd/v1/config.pb.h"

namespace qrd {

struct Config {
  std::string runtime_directory;
  std::string state_directory;
  std::string attach_group;  // empty: the daemon's
  std::string admin_group;   // empty: none
  std::string metrics_address = "127.0.0.1:9478";
  std::string log_level = "info";
  bool create_on_attach = true;
  uint32_t communicators_max = 256;
  uint32_t sessions_max = 512;
  uint32_t operations_in_flight_max = 128;
  uint32_t arenas_per_session_max = 1024;
  uint64_t arena_bytes_per_session_max = uint64_t{64} << 30;
  uint64_t arena_bytes_max = 0;  // resolved from the machine's memory
  std::string gpu = "auto";
  std::string collective_library = "auto";
  uint32_t stream_entries_per_session = 4096;
  uint64_t device_arena_bytes_max = 0;  // 0: 80 % of the devices' memory, once they are known
  uint32_t worker_threads = 0;          // resolved to the number of cores
  uint32_t spin_us_max = 200;
  uint32_t operation_timeout_ms = 30000;
  uint32_t attach_timeout_ms = 30000;
  uint32_t drain_timeout_ms = 10000;
  std::vector<v1::Communicator> communicators;
  v1::Policy initial_policy;
  std::map<std::string, uint32_t> communicator_weights;
};

// Parses protobuf text. INVALID_ARGUMENT: "FILE:LINE:COLUMN: ..." naming an unknown field.
absl::StatusOr<v1::Config> ParseConfigText(const std::string& text, const std::string& file_name);

// Applies defaults (environment, uid, machine) and checks every bound; the error names field, value
// and bound.
absl::StatusOr<Config> ResolveConfig(const v1::Config& proto);

// Every field, with the values in force (`qrd --print-config`).
v1::Config ConfigToProto(const Config& config);

}  // namespace qrd
