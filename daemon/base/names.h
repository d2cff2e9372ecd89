// SPDX-License-Identifier: Apache-2.0
// The one rule for names that people choose (communicators, groups), and how untrusted text is
// shown. Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace qrd {

inline constexpr int kNameBytesMax = 64;

// "" if `name` is 1 to 64 characters of [a-z0-9._-] beginning with a letter or digit, else what is
// wrong.
std::string NameError(std::string_view name);

// The same without the rule for the first character (names of policy rules).
std::string RuleNameError(std::string_view name);

// For error texts and logs: quoted, unprintable bytes escaped, cut after `bytes_max` bytes.
std::string Quoted(std::string_view text, size_t bytes_max = 80);

}  // namespace qrd
