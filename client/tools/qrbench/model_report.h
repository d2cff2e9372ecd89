// SPDX-License-Identifier: Apache-2.0
// What `qrbench model` prints: comparison with published figures, predictions, a plot.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/tools/qrbench/model_command.h"

namespace qrd::tools {

// Published, predicted, error; then how many are met, of the fitted and of the held-out ones.
absl::StatusOr<std::string> ComparisonText(const ModelSettings& settings);
// The parts of each predicted time.
absl::StatusOr<std::string> PredictionText(const ModelSettings& settings);
// SVG: time over the payload by codec, and the gain over codec none.
std::string ModelPlot(const ModelSettings& settings);

}  // namespace qrd::tools
