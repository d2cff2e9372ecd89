// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/svg_axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_format.h"
#include "client/tools/common/units.h"

namespace qrd::tools {
namespace {

std::string TickNumber(double value) {
  if (value >= 1e9 || value < 1e-3) return absl::StrFormat("%.0e", value);
  return value >= 1e4 ? GroupDigits(static_cast<uint64_t>(value)) : absl::StrFormat("%g", value);
}

}  // namespace

void Axis::Widen(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

Axis Axis::Empty(bool log) {
  return {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), log, 0,
          1};
}

void Axis::Settle() {
  if (low > high) *this = {1, 10, log, from, to};
  if (log) {
    const double room = std::max(std::pow(high / low, 0.04), 1.2);
    low /= room;
    high *= room;
    return;
  }
  const double room = std::max((high - low) * 0.08, 1.0);
  low = low >= 0 ? std::max(0.0, low - room) : low - room;
  high += room;
}

double Axis::At(double value) const {
  const double f =
      log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return from + f * (to - from);
}

std::vector<Tick> LogTicks(const Axis& axis) {
  std::vector<Tick> ticks;
  const bool few_decades = axis.high / axis.low < 300;
  for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high;
       decade *= 10) {
    for (const int digit : {1, 2, 5}) {
      const double value = decade * digit;
      if (value < axis.low || value > axis.high) continue;
      ticks.push_back({value, digit == 1 || few_decades ? TickNumber(value) : ""});
    }
  }
  return ticks;
}

std::vector<Tick> LinearTicks(const Axis& axis) {
  const double rough = (axis.high - axis.low) / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough < 2 * power ? 2 : rough < 5 * power ? 5 : 10);
  std::vector<Tick> ticks;
  for (double value = std::ceil(axis.low / step) * step; value <= axis.high; value += step) {
    ticks.push_back({value, absl::StrFormat("%g", std::fabs(value) < step / 2 ? 0 : value)});
  }
  return ticks;
}

std::vector<Tick> ByteTicks(const Axis& axis) {
  const double octaves = std::log2(axis.high / axis.low);
  const int step = octaves <= 9 ? 1 : octaves <= 18 ? 2 : 4;
  std::vector<Tick> ticks;
  for (int power = 0; power < 63; power += step) {
    const double value = std::ldexp(1, power);
    if (value < axis.low || value > axis.high) continue;
    ticks.push_back({value, HumanBytes(uint64_t{1} << power)});
  }
  return ticks;
}

}  // namespace qrd::tools
