// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace qrd {
namespace {

bool IsAlphanumeric(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

std::string CharactersError(std::string_view name) {
  if (name.empty()) return "is empty; want 1 to 64 characters of [a-z0-9._-]";
  if (name.size() > kNameBytesMax) {
    return absl::StrCat("is ", name.size(), " bytes long (", Quoted(name, 24), "); at most ",
                        kNameBytesMax);
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (!IsAlphanumeric(c) && c != '.' && c != '_' && c != '-') {
      return absl::StrCat("is ", Quoted(name), ", which has ", Quoted(name.substr(i, 1)),
                          " at position ", i + 1, "; want only [a-z0-9._-]");
    }
  }
  return "";
}

}  // namespace

std::string NameError(std::string_view name) {
  std::string error = CharactersError(name);
  if (error.empty() && !IsAlphanumeric(name[0])) {
    error = absl::StrCat("is ", Quoted(name), "; must begin with a letter or digit of [a-z0-9]");
  }
  return error;
}

std::string RuleNameError(std::string_view name) { return CharactersError(name); }

std::string Quoted(std::string_view text, size_t bytes_max) {
  const bool cut = text.size() > bytes_max;
  return absl::StrCat("\"", absl::CHexEscape(std::string(text.substr(0, bytes_max))),
                      cut ? "...\"" : "\"");
}

}  // namespace qrd
