// SPDX-License-Identifier: Apache-2.0
// A small SVG writer for plots over a logarithmic axis or over names: panels below each other with
// common series, a legend, ticks, titles. No script, no external font or file.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

namespace qrd::tools {

struct Point {
  double x = 0, y = 0;
};

struct Series {
  std::string name;
  std::vector<Point>
      points;           // points that are not finite, or not positive on a log axis, are left out
  bool dashed = false;  // a limit or a baseline: grey, without markers
};

struct Panel {
  std::string title, y_label;
  bool y_log = false;
  std::vector<Series> series;  // the same names in all panels get the same colour
};

struct Plot {
  std::string title, subtitle, footer, x_label;
  bool x_is_bytes = true;  // ticks at powers of two: 4 KiB, 1 MiB
  // If there are any, x counts these from 0, and points are not joined but stand on the axis.
  std::vector<std::string> categories;
  std::vector<Panel> panels;
};

std::string ToSvg(const Plot& plot);

// "<" and the like as entities; characters that XML cannot hold as '?'.
std::string XmlText(const std::string& text);

}  // namespace qrd::tools
