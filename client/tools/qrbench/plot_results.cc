// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/plot_results.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/svg_plot.h"

namespace qrd::tools {
namespace {

// What differs between the rows names a series; what is common to all is in the subtitle.
struct Naming {
  bool dtype, algorithm;
  std::string Of(const Row& row) const {
    std::vector<std::string> parts = {std::string(Name(row.codec))};
    if (dtype) parts.push_back(std::string(Name(row.dtype)));
    if (algorithm) parts.push_back(std::string(Name(row.algorithm)));
    if (row.codec_requested == "auto") parts.push_back("(auto)");
    return absl::StrJoin(parts, " ");
  }
};

Series& Find(std::vector<Series>& series, const std::string& name, bool dashed) {
  for (Series& one : series) {
    if (one.name == name) return one;
  }
  series.push_back({name, {}, dashed});
  return series.back();
}

void SortPoints(Panel& panel) {
  for (Series& series : panel.series) {
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const Point& a, const Point& b) { return a.x < b.x; });
  }
}

}  // namespace

std::string PlotResults(const RunInfo& info, const std::vector<Row>& rows) {
  std::set<Dtype> dtypes;
  std::set<Algorithm> algorithms;
  for (const Row& row : rows) {
    if (!row.error.empty()) continue;
    dtypes.insert(row.dtype);
    algorithms.insert(row.algorithm);
  }
  const Naming naming = {dtypes.size() > 1, algorithms.size() > 1};
  Panel time = {"Time of one all-reduce (p50)", "microseconds", true, {}};
  Panel quality = {"Signal to quantization noise of the result", "SQNR in dB", false, {}};
  std::set<uint64_t> limits;
  for (const Row& row : rows) {
    if (!row.error.empty()) continue;
    const auto x = static_cast<double>(row.bytes);
    Find(time.series, naming.Of(row), false).points.push_back({x, row.p50_us});
    if (row.sqnr_db && std::isfinite(*row.sqnr_db)) {
      Find(quality.series, naming.Of(row), false).points.push_back({x, *row.sqnr_db});
    }
  }
  for (const Row& row : rows) {
    if (!row.error.empty() || !row.limit_gbps || !limits.insert(row.bytes).second) continue;
    const auto x = static_cast<double>(row.bytes);
    Find(time.series, "machine limit", true).points.push_back({x, x / *row.limit_gbps / 1e3});
  }
  SortPoints(time);
  SortPoints(quality);
  const Row* first = rows.empty() ? nullptr : &rows.front();
  std::vector<std::string> common;
  if (first != nullptr) {
    common = {absl::StrCat(first->ranks, " ranks"), std::string(Name(first->op))};
    if (first->groups > 1) common.push_back(absl::StrCat(first->groups, " groups"));
    if (!naming.dtype) common.push_back(std::string(Name(first->dtype)));
    if (!naming.algorithm) common.push_back(std::string(Name(first->algorithm)));
    common.push_back(first->in_place ? "in place" : "out of place");
    common.push_back(first->staged ? "staged" : "zero copy");
  }
  const Machine& m = info.machine;
  return ToSvg({"qrd all-reduce",
                absl::StrJoin(common, ", "),
                absl::StrCat("qrbench ", info.version, "; ", m.cpu, ", ", m.cores, " cores, SIMD ",
                             m.simd_target, "; ", m.kernel),
                "payload of one rank",
                true,
                {time, quality}});
}

}  // namespace qrd::tools
