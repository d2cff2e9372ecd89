// SPDX-License-Identifier: Apache-2.0
// Policies as protobuf text: errors with file, line, column, the line itself and the nearest known
// field or value. What the text means (bounds, unreachable rules) is the daemon's to judge.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "qrd/v1/policy.pb.h"

namespace qrd::tools {

inline constexpr size_t kPolicyTextBytesMax = size_t{1} << 20;

// INVALID_ARGUMENT: one "file:line:column: message" a mistake, then its line with a mark below.
absl::StatusOr<v1::Policy> ParsePolicyText(absl::string_view text, absl::string_view file);
// Reads a file, or standard input for "-". NOT_FOUND, INVALID_ARGUMENT (too long), as above.
absl::StatusOr<v1::Policy> ReadPolicyFile(const std::string& file);
// Text that ParsePolicyText reads back.
std::string PolicyToText(const v1::Policy& policy);
// Any message in protobuf text form.
std::string MessageToText(const google::protobuf::Message& message);
// Table of the rules, in the order in which they are tried, with what holds where none matches.
// Long names are cut: the text form has them whole.
std::string PolicyToTable(const v1::Policy& policy);

// "int4", "auto", "two_shot", "fp16" from the enums, and back (nullopt-like: *_UNSPECIFIED).
std::string ShortName(v1::Codec codec);
std::string ShortName(v1::Algorithm algorithm);
std::string ShortName(v1::Dtype dtype);
std::string ShortName(v1::Backend backend);
std::string ShortName(v1::Epilogue epilogue);
absl::StatusOr<v1::Codec> ParseCodecFlag(absl::string_view name, absl::string_view what);
absl::StatusOr<v1::Algorithm> ParseAlgorithmFlag(absl::string_view name, absl::string_view what);

}  // namespace qrd::tools
