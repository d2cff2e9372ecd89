// SPDX-License-Identifier: Apache-2.0
// A folder of golden vectors (wire format, section 10): index.json and the raw files beside it. Any
// folder, made by anyone: nothing in it is trusted.
//
// Thread safety: immutable once loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/types.h"

namespace qrd::tools {

struct GoldenCase {
  uint32_t number = 0;  // 1 is the first record
  std::string name;     // for people: "codec fp16 int4 n=2500 gauss"
  std::string problem;  // why the record cannot be used, "" if it can
  bool is_reduce = false;
  Dtype dtype = Dtype::kFp32;
  Codec codec = Codec::kNone;
  uint64_t count = 0;
  uint64_t input = 0;  // byte offsets into the files
  // "codec"
  Dtype input_dtype = Dtype::kFp32;  // in_type
  uint64_t wire = 0, wire_bytes = 0, decoded = 0;
  // "reduce"
  Algorithm algorithm = Algorithm::kTwoShot;
  ReduceOp op = ReduceOp::kSum;
  uint32_t ranks = 0;
  uint64_t stride = 0, result = 0;
};

class GoldenFolder {
 public:
  // NOT_FOUND / INVALID_ARGUMENT if index.json or inputs.bin cannot be used at all; records that
  // cannot be used are cases with a problem.
  static absl::StatusOr<GoldenFolder> Load(const std::string& directory);

  const std::vector<GoldenCase>& cases() const { return cases_; }
  // Names of optional files that are not there; what is in them is not compared.
  const std::vector<std::string>& missing() const { return missing_; }

  struct Blob {
    std::string name;
    std::string bytes;
    bool present = false;
    // [offset, offset + length), OUT_OF_RANGE with all numbers if that is not inside the file.
    absl::StatusOr<std::span<const std::byte>> Slice(uint64_t offset, uint64_t length) const;
  };
  const Blob& inputs() const { return inputs_; }
  const Blob& wire() const { return wire_; }
  const Blob& decoded() const { return decoded_; }
  const Blob& results() const { return results_; }

 private:
  Blob inputs_{"inputs.bin", {}, false}, wire_{"wire.bin", {}, false};
  Blob decoded_{"decoded.bin", {}, false}, results_{"results.bin", {}, false};
  std::vector<GoldenCase> cases_;
  std::vector<std::string> missing_;
};

// The records of an index: a JSON array, or one record a line of which some may be broken.
std::vector<GoldenCase> ParseGoldenIndex(const std::string& text);

}  // namespace qrd::tools
