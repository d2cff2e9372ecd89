// SPDX-License-Identifier: Apache-2.0
// Published and measured times that the model is held against, each with its source and whether the
// parameters were fitted to it.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/model.h"

namespace qrd::tools {

struct PublishedFigure {
  std::string_view machine, source;
  ModelCase c;
  double value = 0;           // microseconds, or
  bool over_library = false;  // the library's time over this one
  bool fitted = false;        // parameters were fitted to it; else it was held out
  bool listed = false;        // among those that must be met within kModelErrorMax
};

inline constexpr double kModelErrorMax = 0.15;

std::vector<PublishedFigure> PublishedFigures();

struct ComparedFigure {
  PublishedFigure figure;
  double predicted = 0;
  double error = 0;  // predicted / published - 1
};
// `machine` replaces the built-in one of its name (flags may have changed it).
absl::StatusOr<std::vector<ComparedFigure>> CompareFigures(const ModelMachine& machine);

// Over a set of compared figures; nullopt for none.
struct ErrorSummary {
  size_t count = 0, within = 0;  // within kModelErrorMax
  double median = 0, worst = 0;  // of the absolute error
  ComparedFigure worst_figure;
};
std::optional<ErrorSummary> Summarize(const std::vector<ComparedFigure>& figures);

}  // namespace qrd::tools
