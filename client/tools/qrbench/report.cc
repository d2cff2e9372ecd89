// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

std::string Text(std::string_view text) { return std::string(text); }
void Write(std::FILE* out, const std::string& text) { PrintNow(out, text); }

std::string Gbps(double value) {
  return absl::StrFormat("%.*f", value >= 100 ? 1 : value >= 10 ? 2 : 3, value);
}

std::string Decibel(std::optional<double> db) {
  if (!db || std::isnan(*db)) return "-";
  return std::isinf(*db) ? "exact" : absl::StrFormat("%.2f", *db);
}

std::optional<double> LimitPercent(const Row& row) {
  if (!row.limit_gbps) return std::nullopt;
  return 100 * row.algbw_gbps / *row.limit_gbps;
}

std::string MachineLine(const Machine& m) {
  return absl::StrCat(m.cpu, ", ", m.cores, " cores, ", HumanBytes(m.memory_bytes), ", ", m.kernel,
                      ", SIMD ", m.simd_target, ", ", CompilerVersion());
}

class TableWriter : public ReportWriter {
 public:
  explicit TableWriter(std::FILE* out) : out_(out) {}

  void Begin(const RunInfo& info) override {
    Write(out_, absl::StrCat("qrbench ", info.version, "\nmachine   ", MachineLine(info.machine),
                             "\ndaemon    ", info.daemon, "\nrun       ", info.settings, "\n"));
    if (info.relay) {
      Write(out_,
            absl::StrFormat("relay     three processes on futexes: p50 %.1f us, p99 %.1f us\n",
                            info.relay->p50_us, info.relay->p99_us));
    }
    Write(out_, absl::StrFormat("\n%7s %9s %-5s %-5s %-8s %8s %8s %7s %7s %6s %7s %5s %6s %8s %s\n",
                                "bytes", "count", "dtype", "codec", "algo", "p50", "p99", "algbw",
                                "busbw", "limit", "wire", "ratio", "SQNR", "max err", "check"));
    Write(out_, absl::StrFormat("%7s %9s %-5s %-5s %-8s %8s %8s %7s %7s %6s %7s %5s %6s %8s\n", "",
                                "", "", "", "", "us", "us", "GB/s", "GB/s", "%", "", "", "dB", ""));
  }

  void Add(const Row& row) override {
    if (!row.error.empty()) {
      Write(out_, absl::StrFormat("%7s %9d %-5s %-5s %-8s FAILED: %s\n", ShortBytes(row.bytes),
                                  row.count, Text(Name(row.dtype)), row.codec_requested,
                                  row.algorithm_requested, row.error));
      return;
    }
    const std::optional<double> percent = LimitPercent(row);
    Write(out_,
          absl::StrFormat(
              "%7s %9d %-5s %-5s %-8s %8s %8s %7s %7s %6s %7s %5.3f %6s %8s %s\n",
              ShortBytes(row.bytes), row.count, Text(Name(row.dtype)), Text(Name(row.codec)),
              Text(Name(row.algorithm)), Significant(row.p50_us), Significant(row.p99_us),
              Gbps(row.algbw_gbps), Gbps(row.busbw_gbps),
              percent ? absl::StrFormat("%.0f", *percent) : "-",
              absl::StrReplaceAll(HumanBytes(row.wire_bytes), {{" ", ""}, {"iB", ""}, {"B", ""}}),
              row.ratio, Decibel(row.sqnr_db), row.max_error ? Significant(*row.max_error, 3) : "-",
              row.check));
    nonfinite_ |= row.nonfinite > 0;
  }

  void End(const RunInfo& info, const std::vector<Row>& rows) override {
    Write(
        out_,
        "\nalgbw = bytes / p50, busbw = algbw * 2(n-1)/n, of all groups together, GB = 1e9 bytes\n"
        "limit = algbw / that of plain streaming reads and writes of the same bytes on all cores; "
        "on one GPU\n        against 2 + 4 wire/payload (none: 2) times the payload of every rank "
        "at "
        "a copy's rate\n"
        "wire  = what one rank sends under the plan; on the host it would: ranks share memory\n"
        "ratio = encoded / payload bytes; SQNR against the exact sum\n"
        "check = bits: every rank has the bits of the scalar reference; ranks: all ranks have the "
        "same bits\n");
    if (nonfinite_)
      Write(out_, "some results hold NaN or Inf: see nonfinite in the CSV or JSON output\n");
    if (const std::optional<double> ratio = RelayRatio(info, rows)) {
      Write(out_, absl::StrFormat("relay ratio %.2f (p50 of %s served, over the futex relay)\n",
                                  *ratio, HumanBytes(SmallestRow(rows).bytes)));
    }
  }

  static const Row& SmallestRow(const std::vector<Row>& rows) {
    const Row* smallest = &rows.front();
    for (const Row& row : rows) {
      // Of equal sizes the fastest: what the codec costs is not the relay's matter.
      if (row.error.empty() && (!smallest->error.empty() || row.bytes < smallest->bytes ||
                                (row.bytes == smallest->bytes && row.p50_us < smallest->p50_us))) {
        smallest = &row;
      }
    }
    return *smallest;
  }

 private:
  std::FILE* const out_;
  bool nonfinite_ = false;
};

class CsvWriter : public ReportWriter {
 public:
  explicit CsvWriter(std::FILE* out) : out_(out) {}

  void Begin(const RunInfo& info) override {
    Write(
        out_,
        "bytes,count,dtype,op,codec_requested,algorithm_requested,codec,algorithm,ranks,groups,"
        "in_place,staged,iterations,p50_us,p99_us,execute_p50_us,algbw_gbps,busbw_gbps,limit_gbps,"
        "limit_percent,wire_bytes,ratio,sqnr_db,max_error,nonfinite,hash,check,error,"
        "relay_p50_us,relay_p99_us\n");
    if (info.relay) {
      relay_ = absl::StrFormat("%.3f,%.3f", info.relay->p50_us, info.relay->p99_us);
    }
  }
  void Add(const Row& row) override {
    const auto number = [](std::optional<double> value) {
      return value && std::isfinite(*value) ? absl::StrFormat("%.6g", *value) : std::string();
    };
    const std::optional<double> percent = LimitPercent(row);
    Write(out_, absl::StrCat(
                    absl::StrFormat("%d,%d,%s,%s,%s,%s,%s,%s,%d,%d,%d,%d,%d,", row.bytes, row.count,
                                    Text(Name(row.dtype)), Text(Name(row.op)), row.codec_requested,
                                    row.algorithm_requested, Text(Name(row.codec)),
                                    Text(Name(row.algorithm)), row.ranks, row.groups, row.in_place,
                                    row.staged, row.iterations),
                    absl::StrFormat("%.3f,%.3f,%.3f,%.6g,%.6g,", row.p50_us, row.p99_us,
                                    row.execute_us, row.algbw_gbps, row.busbw_gbps),
                    number(row.limit_gbps), ",", number(percent), ",", row.wire_bytes, ",",
                    absl::StrFormat("%.6g", row.ratio), ",", number(row.sqnr_db), ",",
                    number(row.max_error), ",", row.nonfinite, absl::StrFormat(",%016x,", row.hash),
                    row.check, ",", Quoted(row.error), ",", relay_, "\n"));
  }
  void End(const RunInfo&, const std::vector<Row>&) override {}

 private:
  static std::string Quoted(const std::string& text) {
    if (text.empty()) return "";
    return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
  }
  std::FILE* const out_;
  std::string relay_ = ",";
};

class JsonWriter : public ReportWriter {
 public:
  explicit JsonWriter(std::FILE* out) : out_(out) {}

  void Begin(const RunInfo&) override {}
  void Add(const Row&) override {}
  void End(const RunInfo& info, const std::vector<Row>& rows) override {
    using Json = nlohmann::ordered_json;
    Json json = {{"program", "qrbench"},
                 {"version", info.version},
                 {"command", info.command},
                 {"daemon", info.daemon},
                 {"settings", info.settings},
                 {"machine",
                  {{"cpu", info.machine.cpu},
                   {"cores", info.machine.cores},
                   {"memory_bytes", info.machine.memory_bytes},
                   {"kernel", info.machine.kernel},
                   {"simd_target", info.machine.simd_target},
                   {"compiler", CompilerVersion()}}}};
    if (info.relay) {
      json["relay"] = {{"p50_us", info.relay->p50_us},
                       {"p99_us", info.relay->p99_us},
                       {"iterations", info.relay->iterations}};
      if (const std::optional<double> ratio = RelayRatio(info, rows))
        json["relay"]["ratio"] = *ratio;
    }
    json["results"] = Json::array();
    for (const Row& row : rows) json["results"].push_back(Object(row));
    // Texts that are no UTF-8 (a path may be) are replaced instead of refused.
    Write(out_, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

 private:
  static nlohmann::ordered_json Object(const Row& row) {
    const auto number = [](std::optional<double> value) -> nlohmann::ordered_json {
      if (!value || !std::isfinite(*value)) return nullptr;
      return *value;
    };
    return {{"bytes", row.bytes},
            {"count", row.count},
            {"dtype", Text(Name(row.dtype))},
            {"op", Text(Name(row.op))},
            {"codec_requested", row.codec_requested},
            {"algorithm_requested", row.algorithm_requested},
            {"codec", Text(Name(row.codec))},
            {"algorithm", Text(Name(row.algorithm))},
            {"ranks", row.ranks},
            {"groups", row.groups},
            {"in_place", row.in_place},
            {"staged", row.staged},
            {"iterations", row.iterations},
            {"p50_us", row.p50_us},
            {"p99_us", row.p99_us},
            {"execute_p50_us", row.execute_us},
            {"algbw_gbps", row.algbw_gbps},
            {"busbw_gbps", row.busbw_gbps},
            {"limit_gbps", number(row.limit_gbps)},
            {"limit_percent", number(LimitPercent(row))},
            {"wire_bytes", row.wire_bytes},
            {"ratio", row.ratio},
            {"sqnr_db", number(row.sqnr_db)},
            {"exact", row.sqnr_db && std::isinf(*row.sqnr_db)},
            {"max_error", number(row.max_error)},
            {"nonfinite", row.nonfinite},
            {"hash", absl::StrFormat("%016x", row.hash)},
            {"check", row.check},
            {"error", row.error}};
  }
  std::FILE* const out_;
};

}  // namespace

double BusFactor(uint32_t ranks) { return ranks == 0 ? 0 : 2.0 * (ranks - 1) / ranks; }

std::optional<double> RelayRatio(const RunInfo& info, const std::vector<Row>& rows) {
  if (!info.relay || info.relay->p50_us <= 0 || rows.empty()) return std::nullopt;
  const Row& row = TableWriter::SmallestRow(rows);
  // Above that, moving the data takes longer than waking the processes.
  constexpr uint64_t kBytesMax = uint64_t{16} << 10;
  if (!row.error.empty() || row.ranks != 2 || row.groups != 1 || row.bytes > kBytesMax) {
    return std::nullopt;
  }
  return row.p50_us / info.relay->p50_us;
}

std::unique_ptr<ReportWriter> MakeReportWriter(const std::string& format, std::FILE* out) {
  if (format == "csv") return std::make_unique<CsvWriter>(out);
  if (format == "json") return std::make_unique<JsonWriter>(out);
  return std::make_unique<TableWriter>(out);
}

}  // namespace qrd::tools
