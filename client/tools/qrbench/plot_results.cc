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

// What is in a plot and how it is arranged: over sizes, or over codecs if there is one size only
// (the tensors of --input).
class Layout {
 public:
  explicit Layout(const std::vector<Row>& rows) {
    std::set<uint64_t> counts;
    for (const Row& row : rows) {
      if (!row.error.empty()) continue;
      good_.push_back(&row);
      counts.insert(row.count);
      dtypes_.insert(row.dtype);
      algorithms_.insert(row.algorithm);
      const std::string codec = CodecOf(row);
      if (std::find(codecs_.begin(), codecs_.end(), codec) == codecs_.end()) {
        codecs_.push_back(codec);
      }
    }
    over_codecs_ = counts.size() == 1 && codecs_.size() > 1;
  }

  const std::vector<const Row*>& rows() const { return good_; }
  std::vector<std::string> categories() const {
    return over_codecs_ ? codecs_ : std::vector<std::string>();
  }

  // What differs between the rows names a series; what is common to all is in the subtitle.
  std::string SeriesOf(const Row& row) const {
    std::vector<std::string> parts;
    if (!over_codecs_) parts.push_back(CodecOf(row));
    if (dtypes_.size() > 1) parts.push_back(std::string(Name(row.dtype)));
    if (algorithms_.size() > 1) parts.push_back(std::string(Name(row.algorithm)));
    return parts.empty() ? "all-reduce" : absl::StrJoin(parts, " ");
  }

  double XOf(const Row& row) const {
    if (!over_codecs_) return static_cast<double>(row.bytes);
    const auto at = std::find(codecs_.begin(), codecs_.end(), CodecOf(row));
    // Series stand side by side.
    const size_t all = dtypes_.size() * algorithms_.size();
    const auto series =
        static_cast<size_t>(std::distance(dtypes_.begin(), dtypes_.find(row.dtype)) *
                                static_cast<int64_t>(algorithms_.size()) +
                            std::distance(algorithms_.begin(), algorithms_.find(row.algorithm)));
    return static_cast<double>(at - codecs_.begin()) +
           0.2 * (static_cast<double>(series) - static_cast<double>(all - 1) / 2);
  }

  std::string Subtitle() const {
    if (good_.empty()) return "no results";
    const Row& first = *good_.front();
    std::vector<std::string> parts = {absl::StrCat(first.ranks, " ranks"),
                                      std::string(Name(first.op))};
    if (first.groups > 1) parts.push_back(absl::StrCat(first.groups, " groups"));
    if (dtypes_.size() == 1) parts.push_back(std::string(Name(first.dtype)));
    if (algorithms_.size() == 1) parts.push_back(std::string(Name(first.algorithm)));
    if (over_codecs_) parts.push_back(absl::StrCat(GroupDigits(first.count), " elements"));
    parts.push_back(first.in_place ? "in place" : "out of place");
    parts.push_back(first.staged ? "staged" : "zero copy");
    return absl::StrJoin(parts, ", ");
  }

  // Where the machine's limit for a row's payload is drawn: at its size, or all along the codecs.
  std::vector<Point> LimitPoints(const Row& row) const {
    const double us = static_cast<double>(row.bytes) / *row.limit_gbps / 1e3;
    if (!over_codecs_) return {{static_cast<double>(row.bytes), us}};
    return {{-0.5, us}, {static_cast<double>(codecs_.size()) - 0.5, us}};
  }

 private:
  static std::string CodecOf(const Row& row) {
    return absl::StrCat(std::string(Name(row.codec)),
                        row.codec_requested == "auto" ? " (auto)" : "");
  }

  std::vector<const Row*> good_;
  std::vector<std::string> codecs_;  // in the order of the rows
  std::set<Dtype> dtypes_;
  std::set<Algorithm> algorithms_;
  bool over_codecs_ = false;
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
  const Layout layout(rows);
  Panel time = {"Time of one all-reduce (p50)", "microseconds", true, {}};
  Panel quality = {"Signal to quantization noise of the result", "SQNR in dB", false, {}};
  for (const Row* row : layout.rows()) {
    const double x = layout.XOf(*row);
    Find(time.series, layout.SeriesOf(*row), false).points.push_back({x, row->p50_us});
    if (row->sqnr_db && std::isfinite(*row->sqnr_db)) {
      Find(quality.series, layout.SeriesOf(*row), false).points.push_back({x, *row->sqnr_db});
    }
  }
  std::set<uint64_t> limits;
  for (const Row* row : layout.rows()) {
    if (!row->limit_gbps || !limits.insert(row->bytes).second) continue;
    std::vector<Point>& points = Find(time.series, "machine limit", true).points;
    for (const Point& point : layout.LimitPoints(*row)) points.push_back(point);
  }
  SortPoints(time);
  SortPoints(quality);
  const Machine& m = info.machine;
  Plot plot;
  plot.title = "qrd all-reduce";
  plot.subtitle = layout.Subtitle();
  plot.footer = absl::StrCat("qrbench ", info.version, "; ", m.cpu, ", ", m.cores, " cores, SIMD ",
                             m.simd_target, "; ", m.kernel);
  plot.categories = layout.categories();
  plot.x_label = plot.categories.empty() ? "payload of one rank" : "codec";
  plot.panels = {time, quality};
  return ToSvg(plot);
}

}  // namespace qrd::tools
