// SPDX-License-Identifier: Apache-2.0
// A folder of golden files of all-reduce with RMSNorm ("format": "qrd-epilogue-golden" in its
// index.json): data sets, cases, one raw file a tensor. Any folder, made by anyone: nothing in it
// is trusted.
//
// Thread safety: immutable once loaded; the checks are pure functions of it and their backend.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/golden_check.h"
#include "kernels/backend.h"

namespace qrd::tools {

struct EpilogueCase {
  std::string name;
  std::string problem;  // why it cannot be used, "" if it can
  // Codec, dtype, world size, count and options; no tensor is set. Algorithms are the checker's.
  LaunchParams params;
  bool has_residual = false, has_mirror = false;
  // Names of files. By rank; the others are the same on every rank.
  std::vector<std::string> inputs;
  std::string residual, weight;
  std::map<std::string, std::string>
      outputs;  // by "residual_out", "out", "out8", "scales", "mirror"
};

class EpilogueFolder {
 public:
  // Whether the folder's index says that it is one.
  static bool Is(const std::string& directory);
  static absl::StatusOr<EpilogueFolder> Load(const std::string& directory);

  const std::vector<EpilogueCase>& cases() const { return cases_; }
  // A file's bytes, which must be so many.
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& name, uint64_t bytes) const;

 private:
  std::string directory_;
  std::vector<EpilogueCase> cases_;
};

// What runs a case: fills the results of every rank, or says why it cannot.
struct EpilogueTensors {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> residual, weight;
};
using EpilogueResults = std::map<std::string, std::vector<std::byte>>;  // by name, of one rank
using EpilogueRunner = std::function<absl::StatusOr<std::vector<EpilogueResults>>(
    const EpilogueCase& c, const LaunchParams& params, const EpilogueTensors& tensors)>;

// Bytes of each result of a case, by name.
std::map<std::string, uint64_t> ResultBytes(const EpilogueCase& c);
// Points `params` at a rank's tensors; `result` gives the address of each result by its name.
void SetRank(const EpilogueCase& c, uint32_t rank, const void* input, const void* residual,
             const void* weight, const std::function<void*(const std::string&)>& result,
             LaunchParams* params);

// The host backend of this process, and the scalar reference.
EpilogueRunner HostRunner(Backend* backend);
EpilogueRunner ReferenceRunner();

// Both algorithms; what every rank gets is compared.
CaseResult CheckEpilogueCase(const EpilogueFolder& folder, const EpilogueCase& c,
                             const std::vector<std::pair<std::string, EpilogueRunner>>& runners);

}  // namespace qrd::tools
