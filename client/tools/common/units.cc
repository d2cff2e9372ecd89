// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/units.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace qrd::tools {
namespace {

constexpr absl::string_view kPrefixes = "KMGTPE";

}  // namespace

std::string HumanBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  int prefix = -1;
  while (value >= 1024 && prefix + 1 < static_cast<int>(kPrefixes.size())) {
    value /= 1024;
    ++prefix;
  }
  const int decimals = value == std::floor(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return absl::StrFormat("%.*f %ciB", decimals, value, kPrefixes[prefix]);
}

std::string ShortBytes(uint64_t bytes) {
  int prefix = -1;
  while (bytes >= 1024 && bytes % 1024 == 0 && prefix + 1 < static_cast<int>(kPrefixes.size())) {
    bytes /= 1024;
    ++prefix;
  }
  return prefix < 0 ? absl::StrCat(bytes) : absl::StrFormat("%d%c", bytes, kPrefixes[prefix]);
}

std::string GroupDigits(uint64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string CountWithFailures(uint64_t number, uint64_t failed) {
  return absl::StrCat(
      GroupDigits(number),
      failed == 0 ? ", none failed" : absl::StrCat(", of which ", GroupDigits(failed), " failed"));
}

std::string HumanSeconds(double seconds) {
  if (!(seconds > 0)) return "0s";
  if (seconds < 1) return absl::StrFormat("%.0fms", seconds * 1e3);
  const uint64_t s = static_cast<uint64_t>(seconds);
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm %02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh %02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd %02dh", s / 86400, s / 3600 % 24);
}

std::string Significant(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == 0) return "0";
  const int magnitude = static_cast<int>(std::floor(std::log10(std::fabs(value))));
  if (magnitude < -3 || magnitude >= 9)
    return absl::StrFormat("%.*e", std::max(0, digits - 2), value);
  return absl::StrFormat("%.*f", std::max(0, digits - 1 - magnitude), value);
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text, absl::string_view what) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": \"", text, "\" ", why,
                                                   "; want bytes such as 4096, 4K, 1.5M or 2GiB"));
  };
  absl::string_view number = absl::StripAsciiWhitespace(text);
  std::string lower = absl::AsciiStrToLower(number);
  number = lower;
  double scale = 1;
  if (absl::EndsWith(number, "ib")) {
    number.remove_suffix(2);
    if (number.empty() || !absl::ascii_isalpha(number.back())) return bad("has no known unit");
  } else if (absl::EndsWith(number, "b") && number.size() > 1) {
    number.remove_suffix(1);
  }
  if (!number.empty() && absl::ascii_isalpha(number.back())) {
    const size_t at = kPrefixes.find(absl::ascii_toupper(number.back()));
    if (at == absl::string_view::npos) return bad("has no known unit");
    scale = std::pow(1024.0, static_cast<double>(at + 1));
    number.remove_suffix(1);
  }
  number = absl::StripTrailingAsciiWhitespace(number);
  double value = 0;
  // Also refuses hexadecimal and "inf", which SimpleAtod reads.
  const bool plain = number.find_first_not_of("0123456789.-") == absl::string_view::npos;
  if (!plain || !absl::SimpleAtod(number, &value)) return bad("is not a number of bytes");
  value *= scale;
  if (value < 0) return bad("is negative");
  if (!(value < 0x1p63)) return bad("is above the bound 2^63 - 1");
  if (value != std::floor(value)) return bad("is not a whole number of bytes");
  return static_cast<uint64_t>(value);
}

}  // namespace qrd::tools
