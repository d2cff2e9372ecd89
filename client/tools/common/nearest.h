// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of a list of known words.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace qrd::tools {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`; case counts.
int EditDistance(absl::string_view a, absl::string_view b);

// The known word nearest to `word`, the first of equally near ones; nullopt if none is near (more
// than a third of the longer word's letters would have to change).
std::optional<std::string> Nearest(absl::string_view word, const std::vector<std::string>& known);

// `; did you mean "int4"?`, or "" where nothing is near.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known);

// The same, then the list: `; did you mean "int4"? Known: none, int4` or `; known: none, int4`.
std::string KnownWords(absl::string_view word, const std::vector<std::string>& known);

}  // namespace qrd::tools
