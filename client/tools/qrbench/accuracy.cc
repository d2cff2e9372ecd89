// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/accuracy.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/args.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/plan_quality.h"

namespace qrd::tools {
namespace {

struct AccuracyRow {
  Dtype dtype;
  Codec codec;
  Algorithm algorithm;
  uint64_t tile_bytes;
  double ratio;
  Quality quality;
};

std::string Text(std::string_view text) { return std::string(text); }

absl::StatusOr<std::vector<AccuracyRow>> Compute(const AccuracySettings& settings) {
  std::vector<AccuracyRow> rows;
  for (const Dtype dtype : settings.dtypes) {
    const PlanQuality plans(settings.source, dtype, settings.op, settings.ranks, settings.count);
    for (const Codec codec : settings.codecs) {
      for (const Algorithm algorithm : settings.algorithms) {
        absl::StatusOr<Quality> quality = plans.Of(codec, algorithm);
        if (!quality.ok()) return quality.status();
        const uint64_t tile = EncodedBytes(codec, dtype, kTileElements);
        rows.push_back(
            {dtype, codec, algorithm, tile,
             static_cast<double>(tile) / static_cast<double>(kTileElements * DtypeBytes(dtype)),
             *quality});
      }
    }
  }
  return rows;
}

std::string Decibel(const Quality& quality) {
  if (std::isnan(quality.sqnr_db)) return "-";
  return std::isinf(quality.sqnr_db) ? "exact" : absl::StrFormat("%.2f", quality.sqnr_db);
}

std::vector<std::string> Cells(const AccuracyRow& row) {
  return {Text(Name(row.dtype)),
          Text(Name(row.codec)),
          Text(Name(row.algorithm)),
          absl::StrCat(row.tile_bytes),
          absl::StrFormat("%.3f", row.ratio),
          Decibel(row.quality),
          Significant(row.quality.max_error, 3),
          absl::StrCat(row.quality.nonfinite)};
}

std::string Markdown(const std::vector<AccuracyRow>& rows) {
  std::string text =
      "| dtype | codec | algorithm | bytes per tile | ratio | SQNR (dB) | max error | NaN or Inf "
      "|\n"
      "|---|---|---|---:|---:|---:|---:|---:|\n";
  for (const AccuracyRow& row : rows) {
    for (const std::string& cell : Cells(row)) absl::StrAppend(&text, "| ", cell, " ");
    text += "|\n";
  }
  return text;
}

std::string Csv(const std::vector<AccuracyRow>& rows, const AccuracySettings& settings) {
  std::string text =
      "dtype,codec,algorithm,ranks,op,count,tile_bytes,ratio,sqnr_db,max_error,nonfinite\n";
  for (const AccuracyRow& row : rows) {
    absl::StrAppendFormat(
        &text, "%s,%s,%s,%d,%s,%d,%d,%.6f,%s,%.6g,%d\n", Text(Name(row.dtype)),
        Text(Name(row.codec)), Text(Name(row.algorithm)), settings.ranks, Text(Name(settings.op)),
        settings.count, row.tile_bytes, row.ratio,
        std::isfinite(row.quality.sqnr_db) ? absl::StrFormat("%.4f", row.quality.sqnr_db) : "",
        row.quality.max_error, row.quality.nonfinite);
  }
  return text;
}

std::string JsonText(const std::vector<AccuracyRow>& rows, const AccuracySettings& settings) {
  using Json = nlohmann::ordered_json;
  Json json = {{"ranks", settings.ranks},
               {"op", Text(Name(settings.op))},
               {"count", settings.count},
               {"results", Json::array()}};
  for (const AccuracyRow& row : rows) {
    const double db = row.quality.sqnr_db;
    json["results"].push_back({{"dtype", Text(Name(row.dtype))},
                               {"codec", Text(Name(row.codec))},
                               {"algorithm", Text(Name(row.algorithm))},
                               {"tile_bytes", row.tile_bytes},
                               {"ratio", row.ratio},
                               {"sqnr_db", std::isfinite(db) ? Json(db) : Json(nullptr)},
                               {"exact", std::isinf(db)},
                               {"max_error", row.quality.max_error},
                               {"nonfinite", row.quality.nonfinite}});
  }
  return json.dump(2) + "\n";
}

std::string TableText(const std::vector<AccuracyRow>& rows) {
  Table table({{"DTYPE"},
               {"CODEC"},
               {"ALGORITHM"},
               {"BYTES/TILE", Align::kRight},
               {"RATIO", Align::kRight},
               {"SQNR dB", Align::kRight},
               {"MAX ERROR", Align::kRight},
               {"NAN/INF", Align::kRight}});
  for (const AccuracyRow& row : rows) table.AddRow(Cells(row));
  return table.ToString();
}

}  // namespace

int RunAccuracy(const AccuracySettings& settings) {
  const absl::StatusOr<std::vector<AccuracyRow>> rows = Compute(settings);
  if (!rows.ok()) return Fail("qrbench", rows.status(), kExitFailed);
  std::string text;
  if (settings.output == "markdown") text = Markdown(*rows);
  if (settings.output == "csv") text = Csv(*rows, settings);
  if (settings.output == "json") text = JsonText(*rows, settings);
  if (settings.output == "table") {
    text = absl::StrCat(settings.ranks, " ranks, ", Text(Name(settings.op)), ", ", settings.count,
                        " elements; SQNR of the whole all-reduce against the exact ",
                        Text(Name(settings.op)), "\n\n", TableText(*rows));
  }
  Print(text);
  return kExitOk;
}

}  // namespace qrd::tools
