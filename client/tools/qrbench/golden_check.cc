// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden_check.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "kernels/reference.h"

namespace qrd::tools {
namespace {

using Bytes = std::vector<std::byte>;
constexpr int kDifferencesShown = 3;

void Fail(CaseResult& result, std::string text) {
  result.verdict = Verdict::kFailed;
  result.differences.push_back(std::move(text));
}

// Vectors of zero elements have no data(); kernels get a pointer all the same.
Bytes Room(uint64_t bytes) { return Bytes(std::max<uint64_t>(bytes, 1)); }

Bytes Copy(std::span<const std::byte> bytes) {
  Bytes copy = Room(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

std::span<const std::byte> First(const Bytes& bytes, uint64_t count) {
  return std::span(bytes).first(count);
}

// Little-endian value of one element as hexadecimal bits.
std::string Bits(std::span<const std::byte> element) {
  std::string text = "0x";
  for (size_t i = element.size(); i-- > 0;) {
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned>(element[i]));
  }
  return text;
}

void CheckEncode(const GoldenCase& c, const Bytes& input, std::span<const std::byte> want,
                 CaseResult& result) {
  for (const bool reference : {false, true}) {
    Bytes wire = Room(c.wire_bytes);
    if (c.input_dtype == c.dtype) {
      (reference ? ReferenceEncode : Encode)(c.codec, c.dtype, input.data(), c.count, wire.data());
    } else {
      (reference ? ReferenceEncodeFp32 : EncodeFp32)(
          c.codec, c.dtype, reinterpret_cast<const float*>(input.data()), c.count, wire.data());
    }
    CompareBytes(reference ? "wire bytes (scalar reference)" : "wire bytes",
                 First(wire, c.wire_bytes), want, 1, result);
  }
}

void CheckDecode(const GoldenCase& c, std::span<const std::byte> wire,
                 std::span<const std::byte> want, CaseResult& result) {
  const Bytes aligned = Copy(wire);
  for (const bool reference : {false, true}) {
    std::vector<float> values(std::max<uint64_t>(c.count, 1));
    (reference ? ReferenceDecode : Decode)(c.codec, c.dtype, aligned.data(), c.count,
                                           values.data());
    CompareBytes(reference ? "decoded (scalar reference)" : "decoded",
                 std::as_bytes(std::span(values).first(c.count)), want, sizeof(float), result);
  }
}

// The host backend's result on every rank, cut into three ranges of tiles as the engine would.
void CheckBackend(const GoldenCase& c, const std::vector<Bytes>& inputs, Backend& backend,
                  std::span<const std::byte> want, CaseResult& result) {
  LaunchParams params;
  params.codec = c.codec;
  params.algorithm = c.algorithm;
  params.dtype = c.dtype;
  params.op = c.op;
  params.world_size = c.ranks;
  params.count = c.count;
  std::vector<Bytes> outputs;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    outputs.push_back(Room(want.size()));
    params.inputs[rank] = inputs[rank].data();
    params.outputs[rank] = outputs[rank].data();
  }
  if (const absl::Status status = backend.Validate(params); !status.ok()) {
    return Fail(result, absl::StrCat("the backend refuses it: ", status.message()));
  }
  const uint64_t tiles = TileCount(c.count);
  for (uint64_t part = 0; part < 3; ++part) {
    backend.Run(params, {tiles * part / 3, tiles * (part + 1) / 3});
  }
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    CompareBytes(absl::StrCat("result on rank ", rank), First(outputs[rank], want.size()), want,
                 DtypeBytes(c.dtype), result);
  }
}

void CheckReference(const GoldenCase& c, const std::vector<Bytes>& inputs,
                    std::span<const std::byte> want, CaseResult& result) {
  const void* pointers[kWorldSizeMax] = {};
  for (uint32_t rank = 0; rank < c.ranks; ++rank) pointers[rank] = inputs[rank].data();
  Bytes output = Room(want.size());
  ReferenceAllReduce(c.codec, c.algorithm, c.dtype, c.op, c.ranks, c.count, pointers,
                     output.data());
  CompareBytes("result (scalar reference)", First(output, want.size()), want, DtypeBytes(c.dtype),
               result);
}

}  // namespace

void CompareBytes(absl::string_view what, std::span<const std::byte> got,
                  std::span<const std::byte> want, uint64_t element_bytes, CaseResult& result) {
  if (got.size() != want.size()) {
    return Fail(result, absl::StrCat(what, ": got ", got.size(), " bytes, want ", want.size()));
  }
  uint64_t different = 0;
  for (uint64_t at = 0; at < got.size(); at += element_bytes) {
    const auto g = got.subspan(at, element_bytes), w = want.subspan(at, element_bytes);
    if (std::memcmp(g.data(), w.data(), element_bytes) == 0) continue;
    if (++different > kDifferencesShown) continue;
    Fail(result,
         absl::StrCat(what, ": ",
                      element_bytes > 1 ? absl::StrCat("element ", at / element_bytes, ", ") : "",
                      "byte ", at, ": got ", Bits(g), ", want ", Bits(w)));
  }
  if (different > kDifferencesShown) {
    Fail(result, absl::StrCat(what, ": ", different, " of ", got.size() / element_bytes,
                              element_bytes > 1 ? " elements" : " bytes", " differ"));
  }
}

CaseResult CheckCodecCase(const GoldenFolder& folder, const GoldenCase& c) {
  CaseResult result;
  if (!folder.wire().present && !folder.decoded().present) return {Verdict::kSkipped, {}};
  const auto input = folder.inputs().Slice(c.input, c.count * DtypeBytes(c.input_dtype));
  if (!input.ok()) return {Verdict::kFailed, {std::string(input.status().message())}};
  const Bytes aligned = Copy(*input);
  Bytes encoded = Room(c.wire_bytes);  // what is decoded where there is no wire.bin
  std::span<const std::byte> wire = First(encoded, c.wire_bytes);
  if (folder.wire().present) {
    const auto want = folder.wire().Slice(c.wire, c.wire_bytes);
    if (!want.ok()) return {Verdict::kFailed, {std::string(want.status().message())}};
    CheckEncode(c, aligned, *want, result);
    wire = *want;
  } else if (c.input_dtype == c.dtype) {
    Encode(c.codec, c.dtype, aligned.data(), c.count, encoded.data());
  } else {
    EncodeFp32(c.codec, c.dtype, reinterpret_cast<const float*>(aligned.data()), c.count,
               encoded.data());
  }
  if (folder.decoded().present) {
    const auto want = folder.decoded().Slice(c.decoded, c.count * sizeof(float));
    if (!want.ok()) return {Verdict::kFailed, {std::string(want.status().message())}};
    CheckDecode(c, wire, *want, result);
  }
  return result;
}

absl::StatusOr<std::vector<Bytes>> ReduceInputs(const GoldenFolder& folder, const GoldenCase& c) {
  std::vector<Bytes> inputs;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    const auto input =
        folder.inputs().Slice(c.input + rank * c.stride, c.count * DtypeBytes(c.dtype));
    if (!input.ok()) return input.status();
    inputs.push_back(Copy(*input));
  }
  return inputs;
}

CaseResult CheckReduceCase(const GoldenFolder& folder, const GoldenCase& c, Backend& backend) {
  if (!folder.results().present) return {Verdict::kSkipped, {}};
  const auto want = folder.results().Slice(c.result, c.count * DtypeBytes(c.dtype));
  if (!want.ok()) return {Verdict::kFailed, {std::string(want.status().message())}};
  const absl::StatusOr<std::vector<Bytes>> inputs = ReduceInputs(folder, c);
  if (!inputs.ok()) return {Verdict::kFailed, {std::string(inputs.status().message())}};
  CaseResult result;
  CheckBackend(c, *inputs, backend, *want, result);
  CheckReference(c, *inputs, *want, result);
  return result;
}

}  // namespace qrd::tools
