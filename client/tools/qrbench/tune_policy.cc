// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tune_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

// Enum values of the policy have the numbers of the wire format plus one, and those of the layout.
v1::Codec ToProto(Codec codec) { return *ParseCodecFlag(std::string(Name(codec)), "codec"); }
v1::Algorithm ToProto(Algorithm algorithm) {
  return *ParseAlgorithmFlag(std::string(Name(algorithm)), "algorithm");
}
v1::Dtype ToProto(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp16:
      return v1::DTYPE_FP16;
    case Dtype::kBf16:
      return v1::DTYPE_BF16;
    case Dtype::kFp32:
      return v1::DTYPE_FP32;
  }
  return v1::DTYPE_UNSPECIFIED;
}

std::string PlanText(const TunePlan& plan) {
  return absl::StrCat(std::string(Name(plan.codec)), "/", std::string(Name(plan.algorithm)));
}

// Comments end at the line's end: nothing of what a daemon or a machine says may start a new one.
std::string OneLine(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

v1::Rule RuleOf(const TuneTable& table, const std::vector<TuneSegment>& segments, size_t i) {
  const TuneSegment& segment = segments[i];
  v1::Rule rule;
  rule.set_name(absl::StrCat("tune-w", table.ranks, "-", std::string(Name(table.dtype)), "-", i));
  v1::Match& match = *rule.mutable_match();
  match.add_dtypes(ToProto(table.dtype));
  match.set_payload_bytes_min(segment.payload_bytes);
  if (i + 1 < segments.size()) match.set_payload_bytes_max(segments[i + 1].payload_bytes);
  match.set_world_size_min(table.ranks);
  match.set_world_size_max(table.ranks);
  rule.mutable_action()->set_codec(ToProto(table.plans[segment.plan].codec));
  rule.mutable_action()->set_algorithm(ToProto(table.plans[segment.plan].algorithm));
  return rule;
}

std::string FiguresText(const TuneTable& table) {
  std::string text = absl::StrFormat("# %9s", "payload");
  for (const TunePlan& plan : table.plans) absl::StrAppendFormat(&text, " %14s", PlanText(plan));
  text += "\n";
  for (const TunePoint& point : table.points) {
    absl::StrAppendFormat(&text, "# %9s", HumanBytes(point.payload_bytes));
    for (const double us : point.us) absl::StrAppendFormat(&text, " %14s", Significant(us));
    text += "\n";
  }
  absl::StrAppendFormat(&text, "# %9s", "SQNR dB");
  for (const TunePlan& plan : table.plans) {
    absl::StrAppendFormat(&text, " %14s",
                          std::isfinite(plan.sqnr_db) ? absl::StrFormat("%.1f", plan.sqnr_db)
                          : plan.sqnr_db > 0          ? "exact"
                                                      : "-");
  }
  return text + "\n";
}

std::string LeftOutText(const TuneTable& table, const TuneReport& report) {
  std::string text;
  if (!table.excluded.empty()) {
    std::vector<std::string> names;
    for (const TunePlan& plan : table.excluded) {
      names.push_back(absl::StrFormat("%s %.1f", PlanText(plan), plan.sqnr_db));
    }
    absl::StrAppend(&text, "# under the floor of ", report.floor_db,
                    " dB, not measured: ", absl::StrJoin(names, ", "), "\n");
  }
  if (!table.skipped.empty()) {
    std::vector<std::string> names;
    for (const uint64_t bytes : table.skipped) names.push_back(HumanBytes(bytes));
    absl::StrAppend(&text, "# not measured, the budget of ", report.budget_s,
                    " s was used up: ", absl::StrJoin(names, ", "), "\n");
  }
  return text;
}

std::string SegmentText(const TuneTable& table, const TuneSegment& segment, bool first) {
  const TunePoint& point = table.points[segment.point];
  const double us = point.us[segment.plan], other = point.us[segment.loser];
  std::string text = absl::StrFormat("# %s: %s %s us", HumanBytes(point.payload_bytes),
                                     PlanText(table.plans[segment.plan]), Significant(us));
  if (segment.loser != segment.plan) {
    absl::StrAppendFormat(&text, ", %s %s us (%+.1f %%)", PlanText(table.plans[segment.loser]),
                          Significant(other), 100 * (us / other - 1));
  }
  if (!first && segment.no_gain) text += ": the codec gains nothing here";
  return text + "\n";
}

std::string HeadText(const TuneReport& r, const std::vector<std::vector<TuneSegment>>& decided) {
  std::string text = absl::StrCat(
      "# Made by qrbench ", r.version,
      " tune. Load it: qrctl policy set FILE; it replaces the "
      "whole policy.\n# Other world sizes and dtypes have no rule here: auto.\n# machine  ",
      OneLine(r.machine), "\n# daemon   ", OneLine(r.daemon), ", backend ", OneLine(r.backend),
      "\n# accuracy ", OneLine(r.input), "; no codec under ", r.floor_db, " dB\n",
      absl::StrFormat(
          "# times    medians of interleaved rounds, microseconds; a change must win by "
          "%g %%; %.0f s used of %g s\n",
          100 * r.margin, r.used_s, r.budget_s));
  bool any_codec = false, any_point = false;
  for (size_t t = 0; t < r.tables.size(); ++t) {
    for (const TuneSegment& segment : decided[t]) {
      any_point = true;
      any_codec |= r.tables[t].plans[segment.plan].codec != Codec::kNone;
    }
  }
  if (any_point && !any_codec) {
    absl::StrAppendFormat(&text, "# No codec wins by %g %% at any payload measured.%s\n",
                          100 * r.margin,
                          r.backend == "host" ? " On the host backend ranks share memory: there is "
                                                "no wire to save."
                                              : "");
  }
  return text;
}

std::vector<std::vector<TuneSegment>> DecideAll(const TuneReport& report) {
  std::vector<std::vector<TuneSegment>> decided;
  for (const TuneTable& table : report.tables) {
    decided.push_back(DecideSegments(table, report.margin));
  }
  return decided;
}

}  // namespace

v1::Policy TunePolicy(const TuneReport& report) {
  v1::Policy policy;
  for (const TuneTable& table : report.tables) {
    const std::vector<TuneSegment> segments = DecideSegments(table, report.margin);
    for (size_t i = 0; i < segments.size(); ++i) {
      *policy.add_rules() = RuleOf(table, segments, i);
    }
  }
  return policy;
}

std::string TunePolicyText(const TuneReport& report) {
  const std::vector<std::vector<TuneSegment>> decided = DecideAll(report);
  std::string text = HeadText(report, decided);
  for (size_t t = 0; t < report.tables.size(); ++t) {
    const TuneTable& table = report.tables[t];
    absl::StrAppend(&text, "\n# ", table.ranks, " ranks, ", std::string(Name(table.dtype)), "\n",
                    table.points.empty() ? "# nothing measured: no rule\n" : FiguresText(table),
                    LeftOutText(table, report));
    for (size_t i = 0; i < decided[t].size(); ++i) {
      v1::Policy one;
      *one.add_rules() = RuleOf(table, decided[t], i);
      absl::StrAppend(&text, SegmentText(table, decided[t][i], i == 0), PolicyToText(one));
    }
  }
  return text;
}

}  // namespace qrd::tools
