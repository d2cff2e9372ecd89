// SPDX-License-Identifier: Apache-2.0
// An axis of a plot: from values to pixels, and where its ticks are.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <vector>

namespace qrd::tools {

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // pixels of low and high

  // Holds no value yet.
  static Axis Empty(bool log);
  void Widen(double value);
  // Some room around the data, and a sane axis where there is one value or none.
  void Settle();
  double At(double value) const;
};

struct Tick {
  double value;
  std::string label;  // "": a grid line only
};

// 1, 2, 5 of each decade.
std::vector<Tick> LogTicks(const Axis& axis);
std::vector<Tick> LinearTicks(const Axis& axis);
// Powers of two: "4 KiB".
std::vector<Tick> ByteTicks(const Axis& axis);

}  // namespace qrd::tools
