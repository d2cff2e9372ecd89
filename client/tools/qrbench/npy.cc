// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/npy.h"

#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/tools/qrbench/file.h"
#include "kernels/codec.h"

namespace qrd::tools {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kHeaderBytesMax = 1 << 16;
constexpr uint64_t kElementsMax = uint64_t{1} << 36;

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

// The value after 'key': in the Python dict, up to a delimiter that the caller knows.
std::optional<absl::string_view> After(absl::string_view dict, absl::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = absl::StrCat(std::string(1, quote), key, std::string(1, quote));
    const size_t at = dict.find(quoted);
    if (at == absl::string_view::npos) continue;
    absl::string_view rest = absl::StripLeadingAsciiWhitespace(dict.substr(at + quoted.size()));
    if (!absl::ConsumePrefix(&rest, ":")) return std::nullopt;
    return absl::StripLeadingAsciiWhitespace(rest);
  }
  return std::nullopt;
}

absl::StatusOr<std::string> ParseDescr(absl::string_view dict) {
  const std::optional<absl::string_view> value = After(dict, "descr");
  if (!value || value->empty() || ((*value)[0] != '\'' && (*value)[0] != '"')) {
    return absl::InvalidArgumentError(
        "the header has no 'descr' text (structured arrays are not read)");
  }
  const size_t end = value->find((*value)[0], 1);
  if (end == absl::string_view::npos) return absl::InvalidArgumentError("'descr' does not end");
  return std::string(value->substr(1, end - 1));
}

absl::StatusOr<std::vector<uint64_t>> ParseShape(absl::string_view dict) {
  const std::optional<absl::string_view> value = After(dict, "shape");
  const size_t end = value ? value->find(')') : absl::string_view::npos;
  if (!value || value->empty() || (*value)[0] != '(' || end == absl::string_view::npos) {
    return absl::InvalidArgumentError("the header has no 'shape' tuple");
  }
  std::vector<uint64_t> shape;
  uint64_t elements = 1;
  for (absl::string_view piece : absl::StrSplit(value->substr(1, end - 1), ',')) {
    piece = absl::StripAsciiWhitespace(piece);
    if (piece.empty()) continue;  // after the last comma
    absl::ConsumeSuffix(&piece, "L");
    uint64_t length = 0;
    if (!absl::SimpleAtoi(piece, &length)) {
      return absl::InvalidArgumentError(absl::StrCat("shape has \"", piece, "\", not a length"));
    }
    if (length > kElementsMax || (length > 0 && elements > kElementsMax / length)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape has more elements than the bound ", kElementsMax));
    }
    elements *= length;
    shape.push_back(length);
  }
  return shape;
}

absl::StatusOr<Header> ParseHeader(absl::string_view dict) {
  Header header;
  absl::StatusOr<std::string> descr = ParseDescr(dict);
  if (!descr.ok()) return descr.status();
  header.descr = *descr;
  absl::StatusOr<std::vector<uint64_t>> shape = ParseShape(dict);
  if (!shape.ok()) return shape.status();
  header.shape = *shape;
  const std::optional<absl::string_view> order = After(dict, "fortran_order");
  if (!order || !(absl::StartsWith(*order, "True") || absl::StartsWith(*order, "False"))) {
    return absl::InvalidArgumentError("the header has no 'fortran_order' True or False");
  }
  header.fortran_order = absl::StartsWith(*order, "True");
  return header;
}

struct Element {
  Dtype dtype;
  uint64_t bytes;
};

absl::StatusOr<Element> ElementOf(const std::string& descr) {
  if (descr == "<f2") return Element{Dtype::kFp16, 2};
  if (descr == "<f4") return Element{Dtype::kFp32, 4};
  if (descr == "<f8") return Element{Dtype::kFp32, 8};
  for (const char* bf16 : {"<u2", "<i2", "<V2", "|V2", "bfloat16"}) {
    if (descr == bf16) return Element{Dtype::kBf16, 2};
  }
  if (!descr.empty() && descr[0] == '>') {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype '", descr, "' is big-endian; save it with .astype('<", descr.substr(1), "')"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype '", descr, "' is not read; want <f2, <f4, <f8, or <u2 for bfloat16 bits"));
}

std::vector<float> Convert(absl::string_view data, Element element, uint64_t count) {
  std::vector<float> values(count);
  if (count == 0) return values;
  if (element.bytes == 8) {
    for (uint64_t i = 0; i < count; ++i) {
      double value;
      std::memcpy(&value, data.data() + 8 * i, 8);
      values[i] = static_cast<float>(value);
    }
    return values;
  }
  // The data of a file need not be aligned in memory.
  std::vector<uint32_t> aligned((data.size() + 3) / 4);
  std::memcpy(aligned.data(), data.data(), data.size());
  WidenToFp32(element.dtype, aligned.data(), count, values.data());
  return values;
}

absl::StatusOr<NpyArray> Parse(absl::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("not a .npy file (it does not begin with \\x93NUMPY)");
  }
  if (bytes.size() < 10) return absl::InvalidArgumentError("truncated in the first 10 bytes");
  const int major = static_cast<unsigned char>(bytes[6]);
  if (major < 1 || major > 3) {
    return absl::InvalidArgumentError(absl::StrCat("format version ", major, "; known: 1, 2, 3"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes) return absl::InvalidArgumentError("truncated header length");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, length_bytes);
  const size_t data_at = 8 + length_bytes + header_bytes;
  if (header_bytes > kHeaderBytesMax || data_at > bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header claims ", header_bytes, " bytes, the file has ",
        bytes.size() - 8 - length_bytes, " after its length and the bound is ", kHeaderBytesMax));
  }
  absl::StatusOr<Header> header = ParseHeader(bytes.substr(8 + length_bytes, header_bytes));
  if (!header.ok()) return header.status();
  absl::StatusOr<Element> element = ElementOf(header->descr);
  if (!element.ok()) return element.status();
  if (header->fortran_order && header->shape.size() > 1) {
    return absl::InvalidArgumentError(
        "the array is in Fortran order; save numpy.ascontiguousarray(array)");
  }
  uint64_t count = 1;
  for (const uint64_t length : header->shape) count *= length;
  const uint64_t data_bytes = bytes.size() - data_at;
  if (data_bytes != count * element->bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shape and dtype need ", count * element->bytes,
                                                   " bytes of data, the file has ", data_bytes));
  }
  return NpyArray{element->dtype, header->shape, Convert(bytes.substr(data_at), *element, count)};
}

}  // namespace

absl::StatusOr<NpyArray> ParseNpy(absl::string_view bytes, absl::string_view name) {
  absl::StatusOr<NpyArray> array = Parse(bytes);
  if (array.ok()) return array;
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", array.status().message()));
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return bytes.status();
  return ParseNpy(*bytes, path);
}

}  // namespace qrd::tools
