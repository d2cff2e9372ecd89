// SPDX-License-Identifier: Apache-2.0
// Numbers for people (1.5 MiB, 3m 20s) and back (4K, 64M).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qrd::tools {

// "0 B", "512 B", "4 KiB", "1.5 MiB": three digits at most unless the value is exact.
std::string HumanBytes(uint64_t bytes);
// "4K", "1M", "100": exact, for columns; bytes that are no whole number of KiB stay digits.
std::string ShortBytes(uint64_t bytes);
// "12,345,678"
std::string GroupDigits(uint64_t number);
// "12,345, none failed" or "12,345, of which 6 failed": commas in numbers are not those of a list.
std::string CountWithFailures(uint64_t number, uint64_t failed);
// "850ms", "12s", "3m 20s", "2h 03m", "5d 01h"
std::string HumanSeconds(double seconds);
// Four significant digits without exponent where that is short: "3.142", "12.35", "1234",
// "0.01235".
std::string Significant(double value, int digits = 4);

// "4096", "4K", "4KiB", "1.5M", "2GiB", "1T": powers of 1024. `what` names the value in errors.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text, absl::string_view what);

}  // namespace qrd::tools
