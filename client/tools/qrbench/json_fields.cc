// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/json_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace qrd::tools {

using Json = nlohmann::json;

void RefuseField(const char* field, const Json& value, const std::string& want) {
  // Bytes that are not UTF-8 become U+FFFD.
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  throw std::invalid_argument(
      absl::StrCat("\"", field, "\" is ", text.substr(0, 40), ", want ", want));
}

const Json& FieldOf(const Json& record, const char* field) {
  if (!record.is_object() || !record.contains(field)) {
    throw std::invalid_argument(absl::StrCat("\"", field, "\" is missing"));
  }
  return record[field];
}

std::string TextOf(const Json& record, const char* field) {
  const Json& value = FieldOf(record, field);
  if (!value.is_string()) RefuseField(field, value, "a text");
  return value.get<std::string>();
}

bool FlagOf(const Json& record, const char* field) {
  const Json& value = FieldOf(record, field);
  if (!value.is_boolean()) RefuseField(field, value, "true or false");
  return value.get<bool>();
}

uint64_t NumberOf(const Json& record, const char* field, uint64_t low, uint64_t high) {
  const Json& value = FieldOf(record, field);
  // Negative ones are integers, but not unsigned.
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number >= low && number <= high) return number;
  }
  RefuseField(field, value, absl::StrCat("a whole number from ", low, " to ", high));
}

float FloatOf(const Json& record, const char* field) {
  const Json& value = FieldOf(record, field);
  if (value.is_number()) {
    const auto number = value.get<double>();
    if (std::fabs(number) <= std::numeric_limits<float>::max()) return static_cast<float>(number);
  }
  RefuseField(field, value, "a number within the range of float");
}

}  // namespace qrd::tools
