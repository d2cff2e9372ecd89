// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/file.h"

namespace qrd::tools {
namespace {

using Json = nlohmann::json;
using Key = std::tuple<std::string, uint32_t, uint32_t, uint64_t>;  // dtype, ranks, groups, bytes

Key KeyOf(const Timing& t) { return {t.dtype, t.ranks, t.groups, t.bytes}; }

absl::Status Bad(const std::string& path, size_t line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": results[", line, "]", what));
}

absl::StatusOr<Timing> ReadTiming(const std::string& path, size_t line, const Json& row) {
  Timing t;
  try {
    t.bytes = row.at("bytes").get<uint64_t>();
    t.dtype = row.at("dtype").get<std::string>();
    t.codec = row.at("codec").get<std::string>();
    t.algorithm = row.at("algorithm").get<std::string>();
    t.ranks = row.at("ranks").get<uint32_t>();
    t.groups = row.at("groups").get<uint32_t>();
    t.p50_us = row.at("p50_us").get<double>();
  } catch (const Json::exception& error) {
    return Bad(path, line, absl::StrCat(": ", error.what()));
  }
  if (!std::isfinite(t.p50_us) || t.p50_us <= 0) {
    return Bad(path, line, absl::StrCat(".p50_us is ", t.p50_us, "; want a time above 0"));
  }
  return t;
}

}  // namespace

absl::StatusOr<TimingFile> ReadTimings(const std::string& path, const std::string& label) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("results") || !json["results"].is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not the output of 'qrbench all_reduce -o json'"));
  }
  TimingFile file;
  file.label = label;
  file.settings = json.value("settings", Json()).is_string() ? json["settings"] : Json("");
  const Json machine = json.value("machine", Json());
  if (machine.is_object() && machine.value("cpu", Json()).is_string())
    file.machine = machine["cpu"];
  for (size_t i = 0; i < json["results"].size(); ++i) {
    const Json& row = json["results"][i];
    if (row.is_object() && row.value("error", Json("")) != "") {
      ++file.failed;
      continue;
    }
    absl::StatusOr<Timing> timing = ReadTiming(path, i, row);
    if (!timing.ok()) return timing.status();
    file.timings.push_back(*std::move(timing));
  }
  return file;
}

absl::StatusOr<Comparison> Compare(const TimingFile& base, const std::vector<TimingFile>& others) {
  std::map<Key, ComparedCase> cases;
  for (const Timing& t : base.timings) {
    const auto [at, is_new] = cases.try_emplace(KeyOf(t));
    ComparedCase& c = at->second;
    if (is_new || t.p50_us < c.base.p50_us) c.base = t;
    std::tie(c.dtype, c.ranks, c.groups, c.bytes) = at->first;
  }
  const bool one_label = std::all_of(others.begin(), others.end(), [&](const TimingFile& file) {
    return file.label == others.front().label;
  });
  Comparison comparison;
  for (const TimingFile& file : others) {
    for (const Timing& t : file.timings) {
      const auto at = cases.find(KeyOf(t));
      if (at == cases.end()) continue;
      const std::string series = one_label ? t.codec : absl::StrCat(file.label, " ", t.codec);
      if (std::find(comparison.series.begin(), comparison.series.end(), series) ==
          comparison.series.end()) {
        comparison.series.push_back(series);
      }
      std::vector<ComparedCase::Entry>& entries = at->second.entries;
      auto entry = std::find_if(entries.begin(), entries.end(),
                                [&](const auto& e) { return e.series == series; });
      if (entry == entries.end()) entry = entries.insert(entries.end(), {series, t, 0});
      if (t.p50_us < entry->best.p50_us) entry->best = t;
      entry->speedup = at->second.base.p50_us / entry->best.p50_us;
    }
  }
  for (auto& [key, c] : cases) {
    if (!c.entries.empty()) comparison.cases.push_back(std::move(c));
  }
  if (!comparison.cases.empty()) return comparison;
  return absl::FailedPreconditionError(
      absl::StrCat("nothing to compare: ", base.label,
                   " and the others have no payload, type, ranks and groups in common"));
}

}  // namespace qrd::tools
