// SPDX-License-Identifier: Apache-2.0
// The plot of an all_reduce run: time and SQNR over the payload.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "client/tools/qrbench/report.h"

namespace qrd::tools {

// SVG text. Rows with errors are left out.
std::string PlotResults(const RunInfo& info, const std::vector<Row>& rows);

}  // namespace qrd::tools
