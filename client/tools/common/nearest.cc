// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/nearest.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace qrd::tools {

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::optional<std::string> Nearest(absl::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongestWord = 64;  // bounds the table of EditDistance
  if (word.empty() || word.size() > kLongestWord) return std::nullopt;
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : known) {
    const size_t longer = std::max(word.size(), candidate.size());
    const int distance = EditDistance(word, candidate);
    // A word that begins like a known one ("capa") is near whatever its length.
    const bool prefix = word.size() >= 3 && absl::StartsWith(candidate, word);
    if (!prefix && distance > static_cast<int>(longer / 3)) continue;
    if (!prefix && distance >= static_cast<int>(longer)) continue;  // nothing in common
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known) {
  const std::optional<std::string> near = Nearest(word, known);
  return near ? absl::StrCat("; did you mean \"", *near, "\"?") : "";
}

std::string KnownWords(absl::string_view word, const std::vector<std::string>& known) {
  const std::string near = DidYouMean(word, known);
  return absl::StrCat(near.empty() ? "; known: " : absl::StrCat(near, " Known: "),
                      absl::StrJoin(known, ", "));
}

}  // namespace qrd::tools
