// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/model_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/table.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/model_published.h"
#include "client/tools/qrbench/svg_plot.h"

namespace qrd::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(std::string_view text) { return std::string(text); }

std::string CodecText(const ModelCase& c) {
  return c.algorithm == ModelAlgorithm::kLibrary ? "-" : Text(Name(c.codec));
}

std::string PlanText(const ModelCase& c) {
  const std::string algorithm = Text(AlgorithmName(c.algorithm));
  return c.algorithm == ModelAlgorithm::kLibrary ? algorithm
                                                 : absl::StrCat(CodecText(c), " ", algorithm);
}

struct NamedParameter {
  const char* name;
  Parameter parameter;
};
std::vector<NamedParameter> ParametersOf(const ModelMachine& m) {
  std::vector<NamedParameter> all = {{"link_gbps", m.link_gbps},
                                     {"link_efficiency", m.link_efficiency},
                                     {"memory_gbps", m.memory_gbps},
                                     {"codec_us_per_mib", m.codec_us_per_mib},
                                     {"one_shot_fixed", m.one_shot_fixed},
                                     {"arithmetic_scale", m.arithmetic_scale},
                                     {"none.fixed_us", m.none.fixed_us},
                                     {"none.per_rank_us", m.none.per_rank_us},
                                     {"none.serial", m.none.serial},
                                     {"codec.fixed_us", m.codec.fixed_us},
                                     {"codec.per_rank_us", m.codec.per_rank_us},
                                     {"codec.serial", m.codec.serial}};
  if (!m.has_library) return all;
  all.push_back({"library.fixed_us", m.library.fixed_us});
  if (m.library_bytes == 0) all.push_back({"library.serial", m.library.serial});
  return all;
}

std::vector<ComparedFigure> Where(const std::vector<ComparedFigure>& figures, bool listed,
                                  bool fitted) {
  std::vector<ComparedFigure> some;
  for (const ComparedFigure& f : figures) {
    if (listed ? f.figure.listed : f.figure.fitted == fitted) some.push_back(f);
  }
  return some;
}

std::string SummaryLine(const char* what, const std::vector<ComparedFigure>& figures) {
  const std::optional<ErrorSummary> s = Summarize(figures);
  if (!s) return absl::StrFormat("%-9s none\n", what);
  const ModelCase& worst = s->worst_figure.figure.c;
  return absl::StrFormat(
      "%-9s %d figures, %d within %.0f %%, median %.1f %%, worst %+.1f %% (%d ranks, %s, %s)\n",
      what, static_cast<int>(s->count), static_cast<int>(s->within), 100 * kModelErrorMax,
      100 * s->median, 100 * s->worst_figure.error, static_cast<int>(worst.ranks),
      HumanBytes(worst.payload_bytes), PlanText(worst));
}

std::string ParameterText(const ModelMachine& m) {
  std::string text = "parameters\n";
  for (const NamedParameter& p : ParametersOf(m)) {
    absl::StrAppendFormat(&text, "  %-18s %8s  %s\n", p.name,
                          p.parameter.value == kNotKnown ? "?" : Significant(p.parameter.value),
                          Text(p.parameter.origin));
  }
  if (m.library_bytes != 0) {
    for (const LibraryFigure& f : m.library_figures) {
      absl::StrAppendFormat(&text, "  library at %d ranks %8s  GB/s of bus bandwidth\n",
                            static_cast<int>(f.ranks), Significant(f.bus_gbps));
    }
    absl::StrAppend(&text, "  library            ", Text(m.library_origin), "\n");
  }
  return text;
}

std::string ComparisonTable(const ModelMachine& m, const std::vector<ComparedFigure>& figures,
                            const ModelSettings& settings) {
  std::string text = absl::StrCat(Text(m.name), ": ", Text(m.description), "\n");
  if (figures.empty()) {
    return absl::StrCat(text, "no published figures\n",
                        settings.one_machine ? ParameterText(m) : "");
  }
  Table table({{"RANKS", Align::kRight},
               {"BYTES", Align::kRight},
               {"CODEC"},
               {"ALGORITHM"},
               {"PUBLISHED", Align::kRight},
               {"PREDICTED", Align::kRight},
               {"ERROR", Align::kRight},
               {"USE"},
               {"SOURCE"}});
  size_t left_out = 0;
  for (const ComparedFigure& f : figures) {
    if (!settings.all_figures && !f.figure.listed) {
      ++left_out;
      continue;
    }
    const ModelCase& c = f.figure.c;
    const char* unit = f.figure.over_library ? " x RCCL" : " us";
    table.AddRow({absl::StrCat(c.ranks), HumanBytes(c.payload_bytes), CodecText(c),
                  Text(AlgorithmName(c.algorithm)), absl::StrCat(Significant(f.figure.value), unit),
                  absl::StrCat(Significant(f.predicted), unit),
                  absl::StrFormat("%+.1f %%", 100 * f.error), f.figure.fitted ? "fit" : "held out",
                  Text(f.figure.source)});
  }
  if (left_out < figures.size()) absl::StrAppend(&text, table.ToString(), "\n");
  if (left_out > 0) absl::StrAppend(&text, left_out, " more figures are shown with --all\n");
  absl::StrAppend(&text, SummaryLine("to be met", Where(figures, true, false)),
                  SummaryLine("fit", Where(figures, false, true)),
                  SummaryLine("held out", Where(figures, false, false)));
  if (settings.one_machine) absl::StrAppend(&text, ParameterText(m));
  return text;
}

Json CaseJson(const ModelCase& c) {
  return {{"ranks", c.ranks},
          {"bytes", c.payload_bytes},
          {"dtype", Text(Name(c.dtype))},
          {"codec", CodecText(c)},
          {"algorithm", Text(AlgorithmName(c.algorithm))}};
}

Json MachineJson(const ModelMachine& m) {
  Json json = {{"name", Text(m.name)}, {"description", Text(m.description)}};
  for (const NamedParameter& p : ParametersOf(m)) {
    json["parameters"][p.name] = {
        {"value", p.parameter.value == kNotKnown ? Json(nullptr) : Json(p.parameter.value)},
        {"origin", Text(p.parameter.origin)}};
  }
  if (m.library_bytes != 0) {
    for (const LibraryFigure& f : m.library_figures) {
      json["library_bus_gbps"][std::to_string(f.ranks)] = f.bus_gbps;
    }
    json["library_origin"] = Text(m.library_origin);
  }
  return json;
}

Json SummaryJson(const std::vector<ComparedFigure>& figures) {
  const std::optional<ErrorSummary> s = Summarize(figures);
  if (!s) return nullptr;
  return {{"count", s->count}, {"within", s->within}, {"median", s->median}, {"worst", s->worst}};
}

Json ComparisonJson(const ModelMachine& m, const std::vector<ComparedFigure>& figures) {
  Json json = MachineJson(m);
  json["error_max"] = kModelErrorMax;
  json["to_be_met"] = SummaryJson(Where(figures, true, false));
  json["fit"] = SummaryJson(Where(figures, false, true));
  json["held_out"] = SummaryJson(Where(figures, false, false));
  json["figures"] = Json::array();
  for (const ComparedFigure& f : figures) {
    Json figure = CaseJson(f.figure.c);
    figure["unit"] = f.figure.over_library ? "times faster than the library" : "us";
    figure["published"] = f.figure.value;
    figure["predicted"] = f.predicted;
    figure["error"] = f.error;
    figure["fit"] = f.figure.fitted;
    figure["to_be_met"] = f.figure.listed;
    figure["source"] = Text(f.figure.source);
    json["figures"].push_back(figure);
  }
  return json;
}

std::string ComparisonCsv(const std::vector<ComparedFigure>& figures) {
  std::string text;
  for (const ComparedFigure& f : figures) {
    const ModelCase& c = f.figure.c;
    absl::StrAppendFormat(&text, "%s,%d,%d,%s,%s,%s,%s,%.6g,%.6g,%.6g,%d,%d,\"%s\"\n",
                          Text(f.figure.machine), c.ranks, c.payload_bytes, Text(Name(c.dtype)),
                          CodecText(c), Text(AlgorithmName(c.algorithm)),
                          f.figure.over_library ? "x_library" : "us", f.figure.value, f.predicted,
                          f.error, f.figure.fitted, f.figure.listed, Text(f.figure.source));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ComparisonText(const ModelSettings& settings) {
  std::string text;
  Json json = Json::array();
  if (settings.output == "csv") {
    text =
        "machine,ranks,bytes,dtype,codec,algorithm,unit,published,predicted,error,fit,to_be_met,"
        "source\n";
  }
  for (const ModelMachine& machine : settings.machines) {
    absl::StatusOr<std::vector<ComparedFigure>> figures = CompareFigures(machine);
    if (!figures.ok()) return figures.status();
    if (settings.output == "csv") text += ComparisonCsv(*figures);
    if (settings.output == "json") json.push_back(ComparisonJson(machine, *figures));
    if (settings.output == "table") {
      absl::StrAppend(&text, text.empty() ? "" : "\n",
                      ComparisonTable(machine, *figures, settings));
    }
  }
  return settings.output == "json" ? json.dump(2) + "\n" : text;
}

absl::StatusOr<std::string> PredictionText(const ModelSettings& settings) {
  const ModelMachine& machine = settings.machines.front();
  Table table({{"RANKS", Align::kRight},
               {"BYTES", Align::kRight},
               {"DTYPE"},
               {"CODEC"},
               {"ALGORITHM"},
               {"TIME us", Align::kRight},
               {"FIXED", Align::kRight},
               {"LINK", Align::kRight},
               {"MEMORY", Align::kRight},
               {"ARITHMETIC", Align::kRight},
               {"CODEC us", Align::kRight},
               {"BUS GB/s", Align::kRight},
               {"BOUND BY"}});
  std::string csv =
      "machine,ranks,bytes,dtype,codec,algorithm,time_us,fixed_us,link_us,memory_us,arithmetic_us,"
      "codec_us,busbw_gbps,bound_by\n";
  Json json = MachineJson(machine);
  json["predictions"] = Json::array();
  for (const ModelCase& c : settings.cases) {
    const absl::StatusOr<Prediction> p = Predict(machine, c);
    if (!p.ok()) return p.status();
    const double bus =
        2.0 * (c.ranks - 1) / c.ranks * static_cast<double>(c.payload_bytes) / p->total / 1e3;
    table.AddRow({absl::StrCat(c.ranks), HumanBytes(c.payload_bytes), Text(Name(c.dtype)),
                  CodecText(c), Text(AlgorithmName(c.algorithm)), Significant(p->total),
                  Significant(p->fixed), Significant(p->link), Significant(p->memory),
                  Significant(p->arithmetic), Significant(p->codec), Significant(bus),
                  Text(p->bound_by)});
    absl::StrAppendFormat(&csv, "%s,%d,%d,%s,%s,%s,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%s\n",
                          Text(machine.name), c.ranks, c.payload_bytes, Text(Name(c.dtype)),
                          CodecText(c), Text(AlgorithmName(c.algorithm)), p->total, p->fixed,
                          p->link, p->memory, p->arithmetic, p->codec, bus, Text(p->bound_by));
    Json row = CaseJson(c);
    row.update({{"time_us", p->total},
                {"fixed_us", p->fixed},
                {"link_us", p->link},
                {"memory_us", p->memory},
                {"arithmetic_us", p->arithmetic},
                {"codec_us", p->codec},
                {"busbw_gbps", bus},
                {"bound_by", Text(p->bound_by)}});
    json["predictions"].push_back(row);
  }
  if (settings.output == "csv") return csv;
  if (settings.output == "json") return json.dump(2) + "\n";
  return absl::StrCat(Text(machine.name), ": ", Text(machine.description), "; predicted, not run\n",
                      table.ToString(), "time = fixed + max(link, memory, arithmetic) + codec\n");
}

std::string ModelPlot(const ModelSettings& settings) {
  const ModelMachine& machine = settings.machines.front();
  const auto time = [&](uint64_t bytes, Codec codec) {
    double best = std::nan("");
    for (const ModelAlgorithm algorithm : {ModelAlgorithm::kOneShot, ModelAlgorithm::kTwoShot}) {
      const auto p =
          Predict(machine, {settings.plot_ranks, bytes, settings.plot_dtype, codec, algorithm});
      if (p.ok()) best = std::fmin(best, p->total);
    }
    return best;
  };
  Plot plot;
  plot.title = absl::StrCat("Predicted all-reduce, ", Text(machine.name));
  plot.subtitle = absl::StrCat(settings.plot_ranks, " ranks, ", Text(Name(settings.plot_dtype)),
                               ", the faster of one_shot and two_shot; a model, not a measurement");
  plot.footer = Text(machine.description);
  plot.x_label = "payload of one rank";
  Panel times{"time", "us", true, {}}, gains{"gain over codec none", "times", false, {}};
  constexpr uint64_t kFrom = 4096, kTo = uint64_t{1} << 30;
  for (const Codec codec :
       {Codec::kNone, Codec::kInt8, Codec::kInt6, Codec::kInt4, Codec::kLp4, Codec::kLp3}) {
    Series series{Text(Name(codec)), {}}, gain = series;
    for (uint64_t bytes = kFrom; bytes <= kTo; bytes *= 2) {
      const double us = time(bytes, codec);
      series.points.push_back({static_cast<double>(bytes), us});
      gain.points.push_back({static_cast<double>(bytes), time(bytes, Codec::kNone) / us});
    }
    times.series.push_back(series);
    if (codec != Codec::kNone) gains.series.push_back(gain);
  }
  Series library{"library", {}, true};
  for (uint64_t bytes = kFrom; bytes <= kTo; bytes *= 2) {
    const auto p = Predict(machine, {settings.plot_ranks, bytes, settings.plot_dtype, Codec::kNone,
                                     ModelAlgorithm::kLibrary});
    if (p.ok()) library.points.push_back({static_cast<double>(bytes), p->total});
  }
  if (!library.points.empty()) times.series.push_back(library);
  plot.panels = {times, gains};
  return ToSvg(plot);
}

}  // namespace qrd::tools
