// SPDX-License-Identifier: Apache-2.0
// Typed reading of JSON objects whose errors name the field, its value and what is wanted.
//
// Thread safety: pure functions. All throw std::invalid_argument.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace qrd::tools {

// `"field" is VALUE, want WANT`, the value cut to 40 characters.
[[noreturn]] void RefuseField(const char* field, const nlohmann::json& value,
                              const std::string& want);

const nlohmann::json& FieldOf(const nlohmann::json& record, const char* field);
std::string TextOf(const nlohmann::json& record, const char* field);
bool FlagOf(const nlohmann::json& record, const char* field);
// Whole: 0.5, 1e300 and -1 are none.
uint64_t NumberOf(const nlohmann::json& record, const char* field, uint64_t low, uint64_t high);
// Finite as a float.
float FloatOf(const nlohmann::json& record, const char* field);

// What `parse` (std::optional) makes of a text.
template <typename Parse>
auto NamedOf(const nlohmann::json& record, const char* field, Parse parse) {
  const auto value = parse(TextOf(record, field));
  if (!value.has_value()) RefuseField(field, record.at(field), "a known name");
  return *value;
}

}  // namespace qrd::tools
