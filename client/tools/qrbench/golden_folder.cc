// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden_folder.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/tools/common/nearest.h"
#include "client/tools/qrbench/file.h"

namespace qrd::tools {
namespace {

using Json = nlohmann::json;

// Reads fields of one record; the first mistake stays in `problem`.
class RecordReader {
 public:
  RecordReader(const Json& record, std::string* problem) : record_(record), problem_(problem) {}

  std::string Text(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return "";
    if (value->is_string()) return value->get_ref<const std::string&>();
    return Bad(absl::StrCat("\"", field, "\" is ", Shown(*value), ", want a text")), "";
  }

  uint64_t Number(const char* field, uint64_t max) {
    const Json* value = Find(field);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned() && value->get<uint64_t>() <= max) return value->get<uint64_t>();
    Bad(absl::StrCat("\"", field, "\" is ", Shown(*value), ", want a whole number from 0 to ",
                     max));
    return 0;
  }

  template <typename T>
  T Named(const char* field, std::optional<T> (*parse)(std::string_view),
          const std::vector<std::string>& known, T fallback) {
    const std::string text = Text(field);
    if (!problem_->empty()) return fallback;
    if (const std::optional<T> value = parse(text)) return *value;
    Bad(absl::StrCat("\"", field, "\": unknown value \"", text.substr(0, 40), "\"",
                     KnownWords(text, known)));
    return fallback;
  }

 private:
  static std::string Shown(const Json& value) {
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40);
  }
  const Json* Find(const char* field) {
    const auto at = record_.find(field);
    if (at != record_.end()) return &*at;
    Bad(absl::StrCat("\"", field, "\" is missing"));
    return nullptr;
  }
  void Bad(std::string text) {
    if (problem_->empty()) *problem_ = std::move(text);
  }

  const Json& record_;
  std::string* const problem_;
};

const std::vector<std::string>& CodecNames() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const Codec codec : kAllCodecs) all->push_back(std::string(Name(codec)));
    return all;
  }();
  return *names;
}

// Offsets and lengths are added and multiplied later: this bound keeps that far from overflow.
constexpr uint64_t kOffsetMax = uint64_t{1} << 48;

void ReadCodecFields(RecordReader& reader, GoldenCase& c) {
  c.input_dtype = reader.Named("in_type", ParseDtype, {"fp16", "bf16", "fp32"}, Dtype::kFp32);
  c.wire = reader.Number("wire", kOffsetMax);
  c.wire_bytes = reader.Number("wire_size", kOffsetMax);
  c.decoded = reader.Number("decoded", kOffsetMax);
  if (!c.problem.empty()) return;
  if (c.input_dtype != c.dtype && c.input_dtype != Dtype::kFp32) {
    c.problem = absl::StrCat("\"in_type\" is ", std::string(Name(c.input_dtype)),
                             ", want the dtype ", std::string(Name(c.dtype)), " or fp32");
  } else if (c.wire_bytes != EncodedBytes(c.codec, c.dtype, c.count)) {
    c.problem =
        absl::StrCat("\"wire_size\" is ", c.wire_bytes, ", the wire format has ",
                     EncodedBytes(c.codec, c.dtype, c.count), " bytes for ", c.count, " elements");
  }
}

void ReadReduceFields(RecordReader& reader, GoldenCase& c) {
  c.algorithm =
      reader.Named("algorithm", ParseAlgorithm, {"one_shot", "two_shot"}, Algorithm::kTwoShot);
  c.op = reader.Named("op", ParseReduceOp, {"sum", "avg"}, ReduceOp::kSum);
  c.ranks = static_cast<uint32_t>(reader.Number("ranks", kWorldSizeMax));
  c.stride = reader.Number("stride", kOffsetMax);
  c.result = reader.Number("result", kOffsetMax);
  if (c.problem.empty() && c.ranks == 0) c.problem = "\"ranks\" is 0, want 1 to 16";
}

GoldenCase ReadRecord(const Json& record, uint32_t number) {
  GoldenCase c;
  c.number = number;
  if (!record.is_object()) {
    c.problem = "the record is no JSON object";
    return c;
  }
  RecordReader reader(record, &c.problem);
  const std::string test = reader.Text("test");
  if (c.problem.empty() && test != "codec" && test != "reduce") {
    c.problem = absl::StrCat("\"test\": unknown value \"", test.substr(0, 40), "\"",
                             KnownWords(test, {"codec", "reduce"}));
  }
  if (!c.problem.empty()) return c;
  c.is_reduce = test == "reduce";
  c.dtype = reader.Named("dtype", ParseDtype, {"fp16", "bf16", "fp32"}, Dtype::kFp32);
  c.codec = reader.Named("codec", ParseCodec, CodecNames(), Codec::kNone);
  c.count = reader.Number("n", uint64_t{1} << 40);
  c.input = reader.Number("input", kOffsetMax);
  if (c.is_reduce) ReadReduceFields(reader, c);
  if (!c.is_reduce) ReadCodecFields(reader, c);
  if (!c.problem.empty()) return c;
  const auto label = record.find("name");
  c.name = absl::StrCat(test, " ", std::string(Name(c.dtype)), " ", std::string(Name(c.codec)),
                        c.is_reduce ? absl::StrCat(" ", std::string(Name(c.algorithm)), " ",
                                                   std::string(Name(c.op)), " ranks=", c.ranks)
                                    : "",
                        " n=", c.count,
                        label != record.end() && label->is_string()
                            ? absl::StrCat(" ", label->get<std::string>().substr(0, 40))
                            : "");
  return c;
}

absl::Status LoadBlob(const std::string& directory, GoldenFolder::Blob& blob) {
  absl::StatusOr<std::string> bytes = ReadFile(absl::StrCat(directory, "/", blob.name));
  if (!bytes.ok()) return bytes.status();
  blob.bytes = *std::move(bytes);
  blob.present = true;
  return absl::OkStatus();
}

}  // namespace

std::vector<GoldenCase> ParseGoldenIndex(const std::string& text) {
  std::vector<GoldenCase> cases;
  const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (whole.is_array()) {
    for (const Json& record : whole) {
      cases.push_back(ReadRecord(record, static_cast<uint32_t>(cases.size() + 1)));
    }
    return cases;
  }
  // Something in it is broken: take it line by line, so that only the broken lines fail.
  int line_number = 0;
  bool any_broken = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    absl::ConsumePrefix(&line, "[");
    if (line.empty() || line == "]" || line == ",") continue;
    const bool closes = absl::EndsWith(line, "}]");
    if (closes || absl::EndsWith(line, ",")) line.remove_suffix(1);
    const auto number = static_cast<uint32_t>(cases.size() + 1);
    const Json record = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded()) {
      GoldenCase broken;
      broken.number = number;
      broken.problem =
          absl::StrCat("line ", line_number,
                       " of index.json is not valid JSON: ", std::string(line.substr(0, 60)));
      cases.push_back(broken);
      any_broken = true;
    } else {
      cases.push_back(ReadRecord(record, number));
    }
  }
  if (!any_broken && !cases.empty()) {
    GoldenCase broken;
    broken.number = static_cast<uint32_t>(cases.size() + 1);
    broken.problem =
        "index.json as a whole is not valid JSON, though each line is: is its end missing?";
    cases.push_back(broken);
  }
  return cases;
}

absl::StatusOr<std::span<const std::byte>> GoldenFolder::Blob::Slice(uint64_t offset,
                                                                     uint64_t length) const {
  if (length > bytes.size() || offset > bytes.size() - length) {
    return absl::OutOfRangeError(absl::StrCat(name, ": bytes ", offset, " to ", offset + length,
                                              " are needed, the file has ", bytes.size()));
  }
  return std::as_bytes(std::span(bytes)).subspan(offset, length);
}

absl::StatusOr<GoldenFolder> GoldenFolder::Load(const std::string& directory) {
  GoldenFolder folder;
  absl::StatusOr<std::string> index = ReadFile(absl::StrCat(directory, "/index.json"));
  if (!index.ok()) return index.status();
  if (absl::Status status = LoadBlob(directory, folder.inputs_); !status.ok()) return status;
  for (Blob* blob : {&folder.wire_, &folder.decoded_, &folder.results_}) {
    const absl::Status status = LoadBlob(directory, *blob);
    if (absl::IsNotFound(status)) folder.missing_.push_back(blob->name);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  folder.cases_ = ParseGoldenIndex(*index);
  if (folder.cases_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(directory, "/index.json: no records"));
  }
  return folder;
}

}  // namespace qrd::tools
