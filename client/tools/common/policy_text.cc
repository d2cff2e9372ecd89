// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/policy_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/tools/common/args.h"
#include "client/tools/common/nearest.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;

// The n-th "quoted" piece of a message of the parser, "" if there is none.
std::string Quoted(absl::string_view message, int n) {
  const std::vector<std::string> pieces = absl::StrSplit(message, '"');
  const size_t at = static_cast<size_t>(2 * n + 1);
  return at < pieces.size() ? pieces[at] : "";
}

// The enum of the field of that name somewhere below Policy.
const EnumDescriptor* EnumOfField(const Descriptor* message, const std::string& field) {
  for (int i = 0; i < message->field_count(); ++i) {
    if (message->field(i)->name() == field) return message->field(i)->enum_type();
    if (message->field(i)->message_type() == nullptr) continue;
    if (const EnumDescriptor* e = EnumOfField(message->field(i)->message_type(), field)) return e;
  }
  return nullptr;
}

// The name that a message complains about, and what exists instead.
struct Complaint {
  std::string word;
  std::vector<std::string> known;
};

Complaint ComplaintOf(absl::string_view message) {
  Complaint complaint;
  if (absl::StrContains(message, "has no field named")) {
    const Descriptor* type =
        DescriptorPool::generated_pool()->FindMessageTypeByName(Quoted(message, 0));
    complaint.word = Quoted(message, 1);
    for (int i = 0; type != nullptr && i < type->field_count(); ++i) {
      complaint.known.push_back(type->field(i)->name());
    }
  } else if (absl::StartsWith(message, "Unknown enumeration value of")) {
    complaint.word = Quoted(message, 0);
    const EnumDescriptor* type = EnumOfField(v1::Policy::descriptor(), Quoted(message, 1));
    for (int i = 0; type != nullptr && i < type->value_count(); ++i) {
      if (type->value(i)->number() != 0) complaint.known.push_back(type->value(i)->name());
    }
  }
  return complaint;
}

// A line as the parser counts its columns and a terminal shows them: tabs to every eighth column.
std::string Expand(absl::string_view line) {
  std::string shown;
  for (const char c : line) {
    if (c == '\t') shown.append(8 - shown.size() % 8, ' ');
    if (c != '\t' && c != '\r') shown.push_back(absl::ascii_iscntrl(c) ? '?' : c);
  }
  return shown;
}

class Collector : public google::protobuf::io::ErrorCollector {
 public:
  Collector(absl::string_view text, absl::string_view file) : file_(file) {
    for (absl::string_view line : absl::StrSplit(text, '\n')) lines_.push_back(Expand(line));
  }

  void AddError(int line, int column, const std::string& message) override {
    const Complaint complaint = ComplaintOf(message);
    std::string text(absl::StripSuffix(message, "."));
    if (!complaint.known.empty())
      absl::StrAppend(&text, KnownWords(complaint.word, complaint.known));
    if (line < 0) {
      errors_.push_back(absl::StrCat(file_, ": ", text));
      return;
    }
    if (!complaint.word.empty()) GoBackTo(complaint.word, line, column);
    errors_.push_back(absl::StrCat(file_, ":", line + 1, ":", column + 1, ": ", text));
    if (static_cast<size_t>(line) >= lines_.size()) return;
    const std::string& shown = lines_[static_cast<size_t>(line)];
    if (shown.size() > 120 || column > 120) return;
    errors_.push_back(
        absl::StrCat("    ", shown, "\n    ", std::string(static_cast<size_t>(column), ' '), "^"));
  }
  std::string ToString() const { return absl::StrJoin(errors_, "\n"); }

 private:
  // The parser complains about a name when it has read the token behind it, which may be on a later
  // line: looks for the name itself.
  void GoBackTo(const std::string& word, int& line, int& column) const {
    size_t before = static_cast<size_t>(column);
    for (int at = std::min(line, static_cast<int>(lines_.size()) - 1); at >= 0; --at) {
      const std::string& shown = lines_[static_cast<size_t>(at)];
      const size_t found = before == 0 ? std::string::npos : shown.rfind(word, before - 1);
      if (found != std::string::npos) {
        line = at;
        column = static_cast<int>(found);
        return;
      }
      before = std::string::npos;
    }
  }

  std::vector<std::string> lines_;
  const std::string file_;
  std::vector<std::string> errors_;
};

std::string PayloadRange(const v1::Match& match) {
  if (match.payload_bytes_max() == 0) {
    return match.payload_bytes_min() == 0 ? "any" : ">= " + ShortBytes(match.payload_bytes_min());
  }
  if (match.payload_bytes_min() == 0) return "< " + ShortBytes(match.payload_bytes_max());
  return absl::StrCat(ShortBytes(match.payload_bytes_min()), " to <",
                      ShortBytes(match.payload_bytes_max()));
}

std::string RankRange(const v1::Match& match) {
  const uint32_t min = match.world_size_min(), max = match.world_size_max();
  if (min == 0 && max == 0) return "any";
  if (max == 0) return absl::StrCat(">= ", min);
  if (min == 0) return absl::StrCat("<= ", max);
  return min == max ? absl::StrCat(min) : absl::StrCat(min, "-", max);
}

// "CODEC_INT4" -> "int4"; numbers that this program does not know stay numbers.
std::string ShortEnumName(const EnumDescriptor* type, int number, absl::string_view prefix) {
  const google::protobuf::EnumValueDescriptor* value = type->FindValueByNumber(number);
  if (value == nullptr) return absl::StrCat("#", number);
  return absl::AsciiStrToLower(absl::StripPrefix(value->name(), prefix));
}

absl::StatusOr<int> ParseEnumFlag(const EnumDescriptor* type, absl::string_view prefix,
                                  absl::string_view name, absl::string_view what) {
  std::vector<std::string> known;
  for (int i = 0; i < type->value_count(); ++i) {
    const int number = type->value(i)->number();
    if (number == 0) continue;
    known.push_back(ShortEnumName(type, number, prefix));
    if (known.back() == name) return number;
  }
  return CheckKnown(name, known, what);
}

}  // namespace

std::string ShortName(v1::Codec codec) {
  return ShortEnumName(v1::Codec_descriptor(), codec, "CODEC_");
}
std::string ShortName(v1::Algorithm algorithm) {
  return ShortEnumName(v1::Algorithm_descriptor(), algorithm, "ALGORITHM_");
}
std::string ShortName(v1::Dtype dtype) {
  return ShortEnumName(v1::Dtype_descriptor(), dtype, "DTYPE_");
}
std::string ShortName(v1::Epilogue epilogue) {
  if (epilogue == v1::EPILOGUE_UNSPECIFIED) return "any";
  return ShortEnumName(v1::Epilogue_descriptor(), epilogue, "EPILOGUE_");
}
std::string ShortName(v1::Backend backend) {
  return ShortEnumName(v1::Backend_descriptor(), backend, "BACKEND_");
}

absl::StatusOr<v1::Codec> ParseCodecFlag(absl::string_view name, absl::string_view what) {
  absl::StatusOr<int> number = ParseEnumFlag(v1::Codec_descriptor(), "CODEC_", name, what);
  if (!number.ok()) return number.status();
  return static_cast<v1::Codec>(*number);
}

absl::StatusOr<v1::Algorithm> ParseAlgorithmFlag(absl::string_view name, absl::string_view what) {
  absl::StatusOr<int> number = ParseEnumFlag(v1::Algorithm_descriptor(), "ALGORITHM_", name, what);
  if (!number.ok()) return number.status();
  return static_cast<v1::Algorithm>(*number);
}

absl::StatusOr<v1::Policy> ParsePolicyText(absl::string_view text, absl::string_view file) {
  if (text.size() > kPolicyTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", text.size(), " bytes, above the bound ", kPolicyTextBytesMax));
  }
  if (const size_t at = text.find('\0'); at != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not a text file: a zero byte at offset ", at));
  }
  Collector collector(text, file);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  v1::Policy policy;
  if (!parser.ParseFromString(std::string(text), &policy)) {
    return absl::InvalidArgumentError(collector.ToString());
  }
  return policy;
}

absl::StatusOr<v1::Policy> ReadPolicyFile(const std::string& file) {
  const bool standard_input = file == "-";
  const std::string shown = standard_input ? "<stdin>" : file;
  std::FILE* stream = standard_input ? stdin : std::fopen(file.c_str(), "re");
  if (stream == nullptr) {
    return absl::NotFoundError(absl::StrCat(shown, ": cannot open: ", std::strerror(errno)));
  }
  std::string text(kPolicyTextBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stream));
  const bool failed = std::ferror(stream) != 0;
  const int error = errno;
  if (!standard_input) std::fclose(stream);
  if (failed) {
    return absl::NotFoundError(absl::StrCat(shown, ": cannot read: ", std::strerror(error)));
  }
  if (text.size() > kPolicyTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(shown, ": above the bound ", kPolicyTextBytesMax, " bytes"));
  }
  return ParsePolicyText(text, shown);
}

std::string MessageToText(const google::protobuf::Message& message) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

std::string PolicyToText(const v1::Policy& policy) { return MessageToText(policy); }

std::string PolicyToTable(const v1::Policy& policy) {
  // A column that is for few people only if there is something in it.
  const bool epilogues = std::any_of(
      policy.rules().begin(), policy.rules().end(),
      [](const v1::Rule& rule) { return rule.match().epilogue() != v1::EPILOGUE_UNSPECIFIED; });
  std::vector<Column> columns = {{"#", Align::kRight},
                                 {"RULE", Align::kLeft, true},
                                 {"COMMUNICATOR", Align::kLeft, true},
                                 {"GROUP", Align::kLeft, true},
                                 {"DTYPES"},
                                 {"PAYLOAD", Align::kRight},
                                 {"RANKS", Align::kRight}};
  if (epilogues) columns.push_back({"EPILOGUE"});
  columns.push_back({"CODEC"});
  columns.push_back({"ALGORITHM"});
  Table table(columns);
  const auto any = [](const std::string& name) { return name.empty() ? std::string("any") : name; };
  for (int i = 0; i < policy.rules_size(); ++i) {
    const v1::Rule& rule = policy.rules(i);
    std::vector<std::string> dtypes;
    for (const int dtype : rule.match().dtypes()) {
      dtypes.push_back(ShortName(static_cast<v1::Dtype>(dtype)));
    }
    const v1::Algorithm algorithm = rule.action().algorithm() == v1::ALGORITHM_UNSPECIFIED
                                        ? v1::ALGORITHM_AUTO
                                        : rule.action().algorithm();
    std::vector<std::string> row = {absl::StrCat(i + 1),
                                    rule.name(),
                                    any(rule.match().communicator()),
                                    any(rule.match().group()),
                                    any(absl::StrJoin(dtypes, ",")),
                                    PayloadRange(rule.match()),
                                    RankRange(rule.match())};
    if (epilogues) row.push_back(ShortName(rule.match().epilogue()));
    row.push_back(ShortName(rule.action().codec()));
    row.push_back(ShortName(algorithm));
    table.AddRow(row);
  }
  std::vector<std::string> rest = {"-", "(no match)", "any", "any", "any", "any", "any"};
  if (epilogues) rest.push_back("any");
  rest.insert(rest.end(), {"auto", "auto"});
  table.AddRow(rest);
  return table.ToString(100);
}

}  // namespace qrd::tools
