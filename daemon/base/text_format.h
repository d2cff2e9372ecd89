// SPDX-License-Identifier: Apache-2.0
// Protobuf text files (config, policy, state) with errors that a person can act on.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace qrd {

// Larger files are refused unread.
inline constexpr uint64_t kTextFileBytesMax = uint64_t{4} << 20;

// Parses `text` into `message`. INVALID_ARGUMENT: "FILE:LINE:COLUMN: what is wrong", with the names
// that exist for an unknown field or enum value, and the line itself. `message` is cleared on
// failure.
absl::Status ParseText(const std::string& text, const std::string& file_name,
                       google::protobuf::Message* message);

// One field a line, trailing newline.
std::string PrintText(const google::protobuf::Message& message);

// Field numbers that this version does not know, in `message` or below it (a newer client set
// them).
// "" if there are none, else "field number N of qrd.v1.Rule".
std::string UnknownFieldIn(const google::protobuf::Message& message);

}  // namespace qrd
