// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/rows.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/qrbench/relay.h"

namespace qrd::tools {

Row BaseRow(const AllReduceSettings& settings, const BenchCase& c) {
  Row row;
  row.bytes = c.count * DtypeBytes(c.dtype);
  row.count = c.count;
  row.dtype = c.dtype;
  row.op = settings.op;
  row.codec_requested = c.codec;
  row.algorithm_requested = c.algorithm;
  row.ranks = settings.ranks;
  row.groups = settings.groups;
  row.in_place = settings.in_place;
  return row;
}

std::string CheckReplies(const AllReduceSettings& settings, const BenchCase& c,
                         const std::vector<CaseReply>& replies, std::string* check) {
  const CaseReply& first = replies.front();
  *check = settings.join ? "self" : "ranks";
  for (size_t i = 1; i < replies.size(); ++i) {
    if (replies[i].result_hash != first.result_hash) {
      return absl::StrFormat("process %d has another result than rank 0 (hash %016x, %016x)", i,
                             replies[i].result_hash, first.result_hash);
    }
    if (replies[i].codec != first.codec || replies[i].algorithm != first.algorithm) {
      return absl::StrCat("process ", i, " was told another plan than rank 0");
    }
  }
  if (c.codec != "auto" && Name(first.codec) != std::string_view(c.codec)) {
    return absl::StrCat("asked for codec ", c.codec, ", the daemon used ",
                        std::string(Name(first.codec)));
  }
  if (c.algorithm != "auto" && Name(first.algorithm) != std::string_view(c.algorithm)) {
    return absl::StrCat("asked for algorithm ", c.algorithm, ", the daemon used ",
                        std::string(Name(first.algorithm)));
  }
  if (first.reference == ReferenceCheck::kDiffers) {
    return absl::StrCat("element ", first.first_difference, " differs from the scalar reference");
  }
  if (first.reference == ReferenceCheck::kEqual) *check = "bits";
  return "";
}

void FillRow(const AllReduceSettings& settings, const BenchCase& c,
             const std::vector<CaseReply>& replies, std::vector<uint64_t> times,
             std::optional<double> limit_gbps, Row& row) {
  const CaseReply& first = replies.front();
  row.codec = first.codec;
  row.algorithm = first.algorithm;
  row.staged = first.staged;
  row.iterations = static_cast<uint32_t>(times.size() / (settings.join ? 1 : settings.groups));
  row.p50_us = static_cast<double>(Percentile(times, 50)) / 1e3;
  row.p99_us = static_cast<double>(Percentile(times, 99)) / 1e3;
  row.execute_us = static_cast<double>(first.execute_ns_p50) / 1e3;
  if (row.p50_us > 0) {
    row.algbw_gbps = settings.groups * static_cast<double>(row.bytes) / row.p50_us / 1e3;
  }
  row.busbw_gbps = row.algbw_gbps * BusFactor(settings.ranks);
  row.limit_gbps = limit_gbps;
  row.wire_bytes = first.wire_bytes;
  if (row.bytes > 0) {
    row.ratio = static_cast<double>(EncodedBytes(row.codec, row.dtype, row.count)) /
                static_cast<double>(row.bytes);
  }
  if (first.quality.compared > 0) {
    row.sqnr_db = first.quality.sqnr_db;
    row.max_error = first.quality.max_error;
  }
  row.nonfinite = first.nonfinite_count;
  row.hash = first.result_hash;
  row.error = CheckReplies(settings, c, replies, &row.check);
  if (!row.error.empty()) row.check = "FAILED";
}

}  // namespace qrd::tools
