// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tune_decide.h"

#include <limits>
#include <optional>

namespace qrd::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Decision {
 public:
  Decision(const TuneTable& table, double margin) : table_(table), keep_(1 - margin) {}

  std::vector<TuneSegment> Run() {
    for (size_t point = 0; point < table_.points.size(); ++point) {
      const std::vector<double>& us = table_.points[point].us;
      if (segments_.empty()) {
        const size_t plan = *MostAccurateWinner(us, kInfinity);
        segments_.push_back({0, plan, point, FastestOther(us, plan), false});
        continue;
      }
      const size_t in_force = segments_.back().plan;
      const uint64_t from = table_.points[point].payload_bytes;
      if (const auto plan = MostAccurateWinner(us, us[in_force])) {
        segments_.push_back({from, *plan, point, in_force, false});
      } else if (const auto none = FastestNone(us);
                 none && IsLossy(in_force) && us[*none] <= us[in_force]) {
        segments_.push_back({from, *none, point, in_force, true});
      }
    }
    return segments_;
  }

 private:
  bool IsLossy(size_t plan) const { return table_.plans[plan].codec != Codec::kNone; }

  // Among plans that take at most (1 - margin) of `than` and are within the margin of the fastest.
  std::optional<size_t> MostAccurateWinner(const std::vector<double>& us, double than) const {
    double fastest = kInfinity;
    for (const double t : us) fastest = t < fastest ? t : fastest;
    std::optional<size_t> best;
    for (size_t i = 0; i < us.size(); ++i) {
      const bool beaten = us[i] != fastest && fastest <= keep_ * us[i];
      if (beaten || us[i] > keep_ * than) continue;
      if (!best || Rank(i) > Rank(*best) || (Rank(i) == Rank(*best) && us[i] < us[*best])) best = i;
    }
    return best;
  }

  // Codec none rounds once at most: never less accurate than a codec, and no choice among its own.
  double Rank(size_t plan) const { return IsLossy(plan) ? table_.plans[plan].sqnr_db : kInfinity; }

  std::optional<size_t> FastestNone(const std::vector<double>& us) const {
    std::optional<size_t> best;
    for (size_t i = 0; i < us.size(); ++i) {
      if (!IsLossy(i) && (!best || us[i] < us[*best])) best = i;
    }
    return best;
  }

  size_t FastestOther(const std::vector<double>& us, size_t plan) const {
    size_t best = plan;
    for (size_t i = 0; i < us.size(); ++i) {
      if (i != plan && (best == plan || us[i] < us[best])) best = i;
    }
    return best;
  }

  const TuneTable& table_;
  const double keep_;
  std::vector<TuneSegment> segments_;
};

}  // namespace

std::vector<TuneSegment> DecideSegments(const TuneTable& table, double margin) {
  return Decision(table, margin).Run();
}

}  // namespace qrd::tools
