// SPDX-License-Identifier: Apache-2.0
// Flags of qrbench's subcommands and their check: words and numbers to settings.
//
// Thread safety: none; main thread only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/common/args.h"
#include "client/tools/qrbench/accuracy.h"
#include "client/tools/qrbench/all_reduce.h"
#include "client/tools/qrbench/golden.h"

namespace qrd::tools {

// What all_reduce and accuracy both have.
struct TensorFlags {
  std::string dtypes, codecs, algorithms, op = "sum", input;
  uint32_t ranks = 0;  // 0: as many as files, else 2
  uint64_t seed = 1;
};

struct AllReduceFlags {
  TensorFlags tensors;
  std::string min_bytes = "4K", max_bytes = "64M", sizes, check_bytes = "4M", devices;
  std::string sizes_flag = "--sizes";  // the one that `sizes` came by, for errors
  double factor = 4;
  AllReduceSettings settings;
};

inline constexpr uint64_t kAccuracyCountMax = uint64_t{1} << 28;

struct AccuracyFlags {
  TensorFlags tensors;
  uint64_t count = uint64_t{1} << 20;
  std::string output = "table";
};

// --start-daemon, --daemon and those of a connection.
void AddDaemonFlags(CLI::App* app, bool* start_daemon, std::string* program,
                    ConnectionFlags* connection);
// --backend, --order, --devices.
void AddGpuFlags(CLI::App* app, AllReduceFlags* flags);
// -b, -e, -f, --sizes.
void AddSizeFlags(CLI::App* app, AllReduceFlags* flags);
// Whether any of these was given; INVALID_ARGUMENT if both a range and a list were.
absl::StatusOr<bool> SizesGiven(const CLI::App& app);
void AddAllReduceFlags(CLI::App* app, AllReduceFlags* flags);
void AddAccuracyFlags(CLI::App* app, AccuracyFlags* flags);
void AddGoldenFlags(CLI::App* app, GoldenSettings* settings);

// From settings.cc. INVALID_ARGUMENT names the flag, its value and the bound; other codes are about
// the input files.
absl::StatusOr<AllReduceSettings> MakeAllReduceSettings(const AllReduceFlags& flags,
                                                        bool sizes_given);
absl::StatusOr<AccuracySettings> MakeAccuracySettings(const AccuracyFlags& flags);
// min, min * factor, ... up to max.
absl::StatusOr<std::vector<uint64_t>> SizeRange(uint64_t min_bytes, uint64_t max_bytes,
                                                double factor);

}  // namespace qrd::tools
