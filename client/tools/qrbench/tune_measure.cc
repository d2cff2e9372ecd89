// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tune_measure.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

double Median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(middle), values.end());
  return values[middle];
}

// One table: a world size and dtype.
class TableRun {
 public:
  TableRun(const TuneSearch& search, TuneTable& table, double end_s, TuneSource& source)
      : search_(search), table_(table), end_s_(end_s), source_(source) {}

  absl::Status Run() {
    for (size_t i = 0; i < search_.sizes.size(); ++i) {
      const uint64_t bytes = search_.sizes[i];
      const double now = source_.Seconds();
      const double share_s = (end_s_ - now) / static_cast<double>(search_.sizes.size() - i);
      bool done = now < end_s_ && now + ExpectedLeastS(bytes) <= end_s_;
      if (done) {
        absl::StatusOr<bool> measured = Point(bytes, now + share_s);
        if (!measured.ok()) return measured.status();
        done = *measured;
      }
      if (done) continue;
      table_.skipped.assign(search_.sizes.begin() + static_cast<int64_t>(i), search_.sizes.end());
      break;
    }
    return absl::OkStatus();
  }

 private:
  // What the fewest rounds of a payload would take, from those of the one before.
  double ExpectedLeastS(uint64_t bytes) const {
    if (last_bytes_ == 0) return 0;
    const double growth = static_cast<double>(bytes) / static_cast<double>(last_bytes_);
    return last_round_s_ * growth * (kTuneRoundsMin + 1);
  }

  // False if the budget ended before there were enough rounds.
  absl::StatusOr<bool> Point(uint64_t bytes, double aim_s) {
    const size_t plans = table_.plans.size();
    std::vector<std::vector<double>> samples(plans);
    const double start_s = source_.Seconds();
    int rounds = -1;  // the first one warms up, and is not counted
    while (rounds < kTuneRoundsMax) {
      const double round_start_s = source_.Seconds();
      if (rounds >= kTuneRoundsMin && round_start_s + last_round_s_ > aim_s) break;
      source_.Report(absl::StrFormat("[%d ranks %s] %s, round %d, %.0f s of this part left",
                                     static_cast<int>(table_.ranks),
                                     std::string(Name(table_.dtype)), HumanBytes(bytes), rounds + 1,
                                     std::max(0.0, end_s_ - round_start_s)));
      for (size_t i = 0; i < plans; ++i) {
        if (source_.Seconds() >= end_s_) return Finish(bytes, samples, rounds);
        const size_t plan = rounds % 2 == 0 ? i : plans - 1 - i;
        absl::StatusOr<std::vector<double>> batch = source_.Batch(table_.plans[plan], bytes);
        if (!batch.ok()) return batch.status();
        if (batch->empty()) return absl::InternalError("a batch without times");
        if (rounds < 0) continue;
        samples[plan].insert(samples[plan].end(), batch->begin(), batch->end());
      }
      ++rounds;
      last_round_s_ = source_.Seconds() - round_start_s;
    }
    last_bytes_ = bytes;
    last_round_s_ = (source_.Seconds() - start_s) / (rounds + 1);
    return Finish(bytes, samples, rounds);
  }

  bool Finish(uint64_t bytes, const std::vector<std::vector<double>>& samples, int rounds) {
    if (rounds < kTuneRoundsMin) return false;
    TunePoint point;
    point.payload_bytes = bytes;
    for (const std::vector<double>& of_plan : samples) point.us.push_back(Median(of_plan));
    table_.points.push_back(point);
    return true;
  }

  const TuneSearch& search_;
  TuneTable& table_;
  const double end_s_;
  TuneSource& source_;
  uint64_t last_bytes_ = 0;
  double last_round_s_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TuneTable>> MeasureTables(const TuneSearch& search, TuneSource& source) {
  std::vector<TuneTable> tables = search.tables;
  const double end_s = source.Seconds() + search.budget_s;
  for (size_t i = 0; i < tables.size(); ++i) {
    const double now = source.Seconds();
    if (now >= end_s) {
      tables[i].skipped = search.sizes;
      continue;
    }
    const double table_end_s = now + (end_s - now) / static_cast<double>(tables.size() - i);
    absl::Status status = source.Open(tables[i].ranks, tables[i].dtype, search.sizes.back());
    if (status.ok()) status = TableRun(search, tables[i], table_end_s, source).Run();
    if (!status.ok()) return status;
  }
  return tables;
}

}  // namespace qrd::tools
