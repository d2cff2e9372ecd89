// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of a list of known words.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qrd::tools {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`; case counts.
int EditDistance(std::string_view a, std::string_view b);

// The known word nearest to `word`, the first of equally near ones; nullopt if none is near (more than
// a third of the longer word's letters, at least 2, would have to change).
std::optional<std::string> Nearest(std::string_view word, const std::vector<std::string>& known);

// `; did you mean "int4"?`, or "" where nothing is near.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

}  // namespace qrd::tools
