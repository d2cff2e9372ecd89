// SPDX-License-Identifier: Apache-2.0
// One golden case against this build, in process: the SIMD codecs and the host backend, and the
// scalar reference beside them.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "client/tools/qrbench/golden_folder.h"
#include "kernels/backend.h"

namespace qrd::tools {

enum class Verdict { kPassed, kFailed, kSkipped };

struct CaseResult {
  Verdict verdict = Verdict::kPassed;
  std::vector<std::string> differences;  // texts for people; what kFailed is about
};

// kSkipped if the files that the case compares with are not there.
CaseResult CheckCodecCase(const GoldenFolder& folder, const GoldenCase& c);
CaseResult CheckReduceCase(const GoldenFolder& folder, const GoldenCase& c, Backend& backend);

// The inputs of all ranks of a reduce case, copied to aligned memory.
absl::StatusOr<std::vector<std::vector<std::byte>>> ReduceInputs(const GoldenFolder& folder,
                                                                 const GoldenCase& c);
// Adds the first differing bytes, with their offset and the element, to `result`; `what` says
// whose.
void CompareBytes(absl::string_view what, std::span<const std::byte> got,
                  std::span<const std::byte> want, uint64_t element_bytes, CaseResult& result);

}  // namespace qrd::tools
