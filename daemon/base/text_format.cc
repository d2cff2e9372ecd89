// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/text_format.h"

#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/base/names.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/unknown_field_set.h"

namespace qrd {
namespace {

namespace pb = google::protobuf;

// The text between the first pair of quotes after `marker`.
std::string QuotedAfter(std::string_view message, std::string_view marker) {
  const size_t at = message.find(marker);
  if (at == std::string_view::npos) return "";
  const size_t open = message.find('"', at + marker.size());
  if (open == std::string_view::npos) return "";
  const size_t close = message.find('"', open + 1);
  if (close == std::string_view::npos) return "";
  return std::string(message.substr(open + 1, close - open - 1));
}

const pb::EnumDescriptor* FindEnumField(const pb::Descriptor& type, const std::string& field_name,
                                        std::set<const pb::Descriptor*>* seen) {
  if (!seen->insert(&type).second) return nullptr;
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    if (field.enum_type() != nullptr && field.name() == field_name) return field.enum_type();
    if (field.message_type() == nullptr) continue;
    if (const auto* found = FindEnumField(*field.message_type(), field_name, seen)) return found;
  }
  return nullptr;
}

// protobuf says what is unknown; people want to know what exists.
std::string Alternatives(const pb::Descriptor& root, const std::string& message) {
  std::vector<std::string> names;
  if (message.find("has no field named") != std::string::npos) {
    const std::string type_name = QuotedAfter(message, "Message type");
    const pb::Descriptor* type = root.file()->pool()->FindMessageTypeByName(type_name);
    if (type == nullptr) return "";
    for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
    return absl::StrCat(" (fields: ", absl::StrJoin(names, ", "), ")");
  }
  if (message.find("Unknown enumeration value") != std::string::npos) {
    std::set<const pb::Descriptor*> seen;
    const pb::EnumDescriptor* type = FindEnumField(root, QuotedAfter(message, "for field"), &seen);
    if (type == nullptr) return "";
    for (int i = 0; i < type->value_count(); ++i) {
      if (type->value(i)->number() != 0) names.push_back(type->value(i)->name());
    }
    return absl::StrCat(" (values: ", absl::StrJoin(names, ", "), ")");
  }
  return "";
}

// Keeps the first error: later ones are mostly its echo.
class FirstError : public pb::io::ErrorCollector {
 public:
  FirstError(const std::string& text, const std::string& file_name, const pb::Descriptor& root)
      : text_(text), file_name_(file_name), root_(root) {}

  void AddError(int line, int column, const std::string& message) override {
    if (!error_.empty()) return;
    error_ = absl::StrCat(file_name_, ":", line + 1, ":", column + 1, ": ", message,
                          Alternatives(root_, message));
    const std::vector<std::string> lines = absl::StrSplit(text_, '\n');
    if (line < 0 || static_cast<size_t>(line) >= lines.size()) return;
    const std::string source(absl::StripAsciiWhitespace(lines[line]));
    if (!source.empty()) absl::StrAppend(&error_, " in ", Quoted(source));
  }

  const std::string& error() const { return error_; }

 private:
  const std::string& text_;
  const std::string& file_name_;
  const pb::Descriptor& root_;
  std::string error_;
};

}  // namespace

absl::Status ParseText(const std::string& text, const std::string& file_name,
                       pb::Message* message) {
  if (text.size() > kTextFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, " is ", text.size(), " bytes long; at most ", kTextFileBytesMax));
  }
  FirstError collector(text, file_name, *message->GetDescriptor());
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  parser.SetRecursionLimit(32);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  message->Clear();
  return absl::InvalidArgumentError(collector.error().empty()
                                        ? absl::StrCat(file_name, ": not valid protobuf text")
                                        : collector.error());
}

std::string PrintText(const pb::Message& message) {
  pb::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

std::string UnknownFieldIn(const pb::Message& message) {
  const pb::Reflection& reflection = *message.GetReflection();
  const pb::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return absl::StrCat("field number ", unknown.field(0).number(), " of ",
                        message.GetDescriptor()->full_name());
  }
  std::vector<const pb::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const pb::Message& child = field->is_repeated()
                                     ? reflection.GetRepeatedMessage(message, field, i)
                                     : reflection.GetMessage(message, field);
      const std::string found = UnknownFieldIn(child);
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace qrd
