// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/compare.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/svg_plot.h"

namespace qrd::tools {
namespace {

struct CompareFlags {
  std::string base, output = "table", plot;
  std::vector<std::string> files;
};

// "1.23 2s": the algorithm in short.
std::string Cell(const ComparedCase::Entry& entry) {
  const std::string& name = entry.best.algorithm;
  return absl::StrFormat("%.2f %s", entry.speedup,
                         name == "one_shot"   ? "1s"
                         : name == "two_shot" ? "2s"
                                              : "lib");
}

const ComparedCase::Entry* Find(const ComparedCase& c, const std::string& series) {
  for (const ComparedCase::Entry& entry : c.entries) {
    if (entry.series == series) return &entry;
  }
  return nullptr;
}

// The file's name without folders, up to its first dot: qrd.small.json and qrd.large.json are parts
// of one run.
std::string LabelOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.find('.'));
}

int Run(const CompareFlags& flags) {
  absl::StatusOr<TimingFile> base = ReadTimings(flags.base, LabelOf(flags.base));
  if (!base.ok()) return Fail("qrbench", base.status(), kExitFailed);
  std::vector<TimingFile> others;
  size_t failed = base->failed;
  for (const std::string& path : flags.files) {
    absl::StatusOr<TimingFile> file = ReadTimings(path, LabelOf(path));
    if (!file.ok()) return Fail("qrbench", file.status(), kExitFailed);
    failed += file->failed;
    others.push_back(*std::move(file));
  }
  const absl::StatusOr<Comparison> comparison = Compare(*base, others);
  if (!comparison.ok()) return Fail("qrbench", comparison.status(), kExitFailed);
  const std::string text = flags.output == "csv"
                               ? ComparisonCsv(*comparison)
                               : ComparisonTable(*comparison, flags.output == "markdown");
  Print(text);
  if (failed != 0) std::fprintf(stderr, "qrbench: left out %zu lines that had failed\n", failed);
  if (flags.plot.empty()) return kExitOk;
  const absl::Status written =
      WriteFile(flags.plot, ComparisonPlot(*comparison, *base, base->machine));
  if (!written.ok()) return Fail("qrbench", written, kExitFailed);
  std::fprintf(stderr, "qrbench: wrote %s\n", flags.plot.c_str());
  return kExitOk;
}

}  // namespace

std::string ComparisonTable(const Comparison& comparison, bool markdown) {
  std::vector<std::string> head = {"dtype", "ranks", "bytes", "base us"};
  head.insert(head.end(), comparison.series.begin(), comparison.series.end());
  std::vector<std::vector<std::string>> rows;
  for (const ComparedCase& c : comparison.cases) {
    std::vector<std::string> row = {
        c.dtype, c.groups == 1 ? absl::StrCat(c.ranks) : absl::StrCat(c.groups, " x ", c.ranks),
        ShortBytes(c.bytes), absl::StrFormat("%.1f", c.base.p50_us)};
    for (const std::string& series : comparison.series) {
      const ComparedCase::Entry* entry = Find(c, series);
      row.push_back(entry == nullptr ? "-" : Cell(*entry));
    }
    rows.push_back(std::move(row));
  }
  if (!markdown) {
    std::vector<Column> columns;
    for (size_t i = 0; i < head.size(); ++i) {
      columns.push_back({head[i], i == 0 ? Align::kLeft : Align::kRight});
    }
    Table table(columns);
    for (std::vector<std::string>& row : rows) table.AddRow(std::move(row));
    return absl::StrCat(table.ToString(),
                        "\nspeedup = base / best algorithm (1s one_shot, 2s two_shot, lib library) "
                        "of p50; base: the fastest of its lines\n");
  }
  std::string text = absl::StrCat("| ", absl::StrJoin(head, " | "), " |\n|");
  for (size_t i = 0; i < head.size(); ++i) absl::StrAppend(&text, i == 0 ? "---|" : "---:|");
  for (const auto& row : rows) absl::StrAppend(&text, "\n| ", absl::StrJoin(row, " | "), " |");
  return text + "\n";
}

std::string ComparisonCsv(const Comparison& comparison) {
  std::string text =
      "dtype,ranks,groups,bytes,base_codec,base_algorithm,base_p50_us,series,codec,"
      "algorithm,p50_us,speedup\n";
  for (const ComparedCase& c : comparison.cases) {
    for (const ComparedCase::Entry& e : c.entries) {
      absl::StrAppend(&text, c.dtype, ",", c.ranks, ",", c.groups, ",", c.bytes, ",", c.base.codec,
                      ",", c.base.algorithm, ",", absl::StrFormat("%.3f", c.base.p50_us), ",",
                      e.series, ",", e.best.codec, ",", e.best.algorithm, ",",
                      absl::StrFormat("%.3f,%.4f", e.best.p50_us, e.speedup), "\n");
    }
  }
  return text;
}

std::string ComparisonPlot(const Comparison& comparison, const TimingFile& base,
                           const std::string& machine) {
  Plot plot;
  std::vector<std::string> titles;
  for (const ComparedCase& c : comparison.cases) {
    const std::string title =
        absl::StrCat(c.dtype, ", ", c.ranks, " ranks",
                     c.groups == 1 ? "" : absl::StrCat(" in each of ", c.groups, " groups"));
    if (std::find(titles.begin(), titles.end(), title) == titles.end()) {
      titles.push_back(title);
      plot.panels.push_back({title, "speedup", false, {}});
      plot.panels.back().series.push_back({"base", {}, /*dashed=*/true});
      for (const std::string& series : comparison.series) {
        plot.panels.back().series.push_back({series, {}, false});
      }
    }
    std::vector<Series>& all = plot.panels.back().series;
    all[0].points.push_back({static_cast<double>(c.bytes), 1});
    for (size_t i = 0; i < comparison.series.size(); ++i) {
      const ComparedCase::Entry* entry = Find(c, comparison.series[i]);
      if (entry == nullptr) continue;
      all[i + 1].points.push_back({static_cast<double>(c.bytes), entry->speedup});
    }
  }
  plot.title = absl::StrCat("qrd all-reduce: speedup over ", base.label);
  plot.subtitle = "p50 of the base over that of the best algorithm; above 1 is faster";
  plot.footer = machine;
  plot.x_label = "payload of one rank";
  return ToSvg(plot);
}

void AddCompareCommand(CommandLine& line) {
  static CompareFlags flags;
  CLI::App* app =
      line.Leaf(&line.root(), "compare", "Speedups between results of 'all_reduce -o json'",
                [] { return Run(flags); });
  app->add_option("BASE", flags.base, "The results that the others are compared with")
      ->required()
      ->type_name("");
  app->add_option("FILES", flags.files,
                  "Results; names that differ before the first dot name columns of their own")
      ->required()
      ->type_name("");
  app->add_option("-o,--output", flags.output, "table (default), markdown or csv")
      ->check(CLI::IsMember({"table", "markdown", "csv"}));
  app->add_option("--plot", flags.plot, "Write a plot of the speedups over the payload (SVG)")
      ->type_name("FILE");
  app->footer(
      "Example:\n"
      "  qrbench all_reduce --backend gpu --algorithms library -o json >nccl.json\n"
      "  qrbench all_reduce --backend gpu --codecs none,int4 --algorithms all -o json >qrd.json\n"
      "  qrbench compare nccl.json qrd.json --plot speedup.svg");
}

}  // namespace qrd::tools
