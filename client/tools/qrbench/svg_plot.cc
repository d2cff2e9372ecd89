// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/qrbench/svg_axis.h"

namespace qrd::tools {
namespace {

constexpr double kWidth = 960, kLeft = 84, kPlotWidth = 640, kPanelHeight = 300;
constexpr double kTop = 98, kGap = 74, kBottom = 86;
constexpr double kLegendX = kLeft + kPlotWidth + 28, kLegendStep = 22;
constexpr char kGrey[] = "#6b7280";

// Told apart also with colour-blind eyes; the marker's shape changes with every turn of the list.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#4b3f72", "#7a5c00"};

bool Usable(const Point& point, bool x_log, bool y_log) {
  return std::isfinite(point.x) && std::isfinite(point.y) && (!x_log || point.x > 0) &&
         (!y_log || point.y > 0);
}

std::string TextAt(double x, double y, const std::string& anchor, const std::string& style,
                   const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>%s</text>\n", x, y,
                         anchor, style, XmlText(text));
}

std::string Marker(double x, double y, int shape, const char* colour) {
  constexpr double r = 4;
  switch (shape % 4) {
    case 1:
      return absl::StrFormat(
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x - r + 0.5,
          y - r + 0.5, 2 * r - 1, 2 * r - 1, colour);
    case 2:
      return absl::StrFormat("<path d=\"M%.1f %.1fl%.1f %.1fh%.1fz\" fill=\"%s\"/>\n", x, y - r - 1,
                             r + 0.5, 2 * r, -2 * r - 1, colour);
    case 3:
      return absl::StrFormat(
          "<path d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\" fill=\"%s\"/>\n", x, y - r - 1,
          r + 1, r + 1, -r - 1, r + 1, -r - 1, -r - 1, colour);
    default:
      return absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\"/>\n", x, y, r,
                             colour);
  }
}

// Names in the order of their first use, over all panels: one colour and marker each.
std::vector<const Series*> Legend(const Plot& plot) {
  std::vector<const Series*> legend;
  for (const Panel& panel : plot.panels) {
    for (const Series& series : panel.series) {
      const bool known = std::any_of(legend.begin(), legend.end(), [&](const Series* other) {
        return other->name == series.name;
      });
      if (!known) legend.push_back(&series);
    }
  }
  return legend;
}

struct Style {
  const char* colour;
  int shape;
};
Style StyleOf(const std::vector<const Series*>& legend, const std::string& name) {
  int index = 0;
  for (const Series* series : legend) {
    if (series->name == name) {
      const int colours = static_cast<int>(kColours.size());
      return {series->dashed ? kGrey : kColours[index % colours], index % 4 + index / colours};
    }
    index += series->dashed ? 0 : 1;
  }
  return {kGrey, 0};
}

// Joined points or, over names, points that stand on the axis.
std::string DrawSeries(const Series& series, const Style& style, const Axis& x, const Axis& y) {
  std::string path, markers;
  for (const Point& point : series.points) {
    if (!Usable(point, x.log, y.log)) continue;
    const double px = x.At(point.x), py = y.At(point.y);
    if (x.log || series.dashed) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", px, py);
    } else {
      absl::StrAppendFormat(&path, "M%.1f %.1fV%.1f", px, y.from, py);
    }
    if (!series.dashed) absl::StrAppend(&markers, Marker(px, py, style.shape, style.colour));
  }
  if (path.empty()) return "";
  return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"%s/>\n%s",
                         path, style.colour, series.dashed ? "1.5" : "2",
                         series.dashed ? " stroke-dasharray=\"6 4\"" : "", markers);
}

std::vector<Tick> TicksOfX(const Plot& plot, const Axis& x) {
  if (plot.categories.empty()) return plot.x_is_bytes ? ByteTicks(x) : LogTicks(x);
  std::vector<Tick> ticks;
  for (const std::string& name : plot.categories) {
    ticks.push_back({static_cast<double>(ticks.size()), name});
  }
  return ticks;
}

std::string DrawFrame(const Panel& panel, const Axis& x, const Axis& y, const Plot& plot) {
  std::string svg;
  for (const Tick& tick : y.log ? LogTicks(y) : LinearTicks(y)) {
    const double at = y.At(tick.value);
    absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fH%.1f\" class=\"grid\"/>\n", x.from, at, x.to);
    if (!tick.label.empty()) {
      absl::StrAppend(&svg, TextAt(x.from - 8, at + 4, "end", "class=\"tick\"", tick.label));
    }
  }
  for (const Tick& tick : TicksOfX(plot, x)) {
    const double at = x.At(tick.value);
    absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fV%.1f\" class=\"grid\"/>\n", at, y.from, y.to);
    absl::StrAppend(&svg, TextAt(at, y.from + 18, "middle", "class=\"tick\"", tick.label));
  }
  absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fV%.1fH%.1f\" class=\"axis\"/>\n", x.from, y.to,
                        y.from, x.to);
  absl::StrAppend(&svg, TextAt(x.from, y.to - 12, "start", "class=\"panel\"", panel.title));
  absl::StrAppendFormat(&svg,
                        "<text transform=\"translate(%.1f %.1f) rotate(-90)\" "
                        "text-anchor=\"middle\" class=\"label\">%s</text>\n",
                        22.0, (y.from + y.to) / 2, XmlText(panel.y_label));
  return svg;
}

std::string DrawPanel(const Panel& panel, double top, Axis x, const Plot& plot,
                      const std::vector<const Series*>& legend) {
  Axis y = Axis::Empty(panel.y_log);
  for (const Series& series : panel.series) {
    for (const Point& point : series.points) {
      if (Usable(point, x.log, panel.y_log)) y.Widen(point.y);
    }
  }
  const bool empty = y.low > y.high;
  if (!empty && !plot.categories.empty() && !panel.y_log) y.Widen(0);  // points stand on the axis
  y.Settle();
  y.from = top + kPanelHeight;
  y.to = top;
  std::string svg = DrawFrame(panel, x, y, plot);
  if (empty) {
    absl::StrAppend(&svg, TextAt((x.from + x.to) / 2, (y.from + y.to) / 2, "middle",
                                 "class=\"label\"", "no data"));
  }
  for (const Series& series : panel.series) {
    absl::StrAppend(&svg, DrawSeries(series, StyleOf(legend, series.name), x, y));
  }
  return svg;
}

std::string DrawLegend(const std::vector<const Series*>& legend) {
  std::string svg;
  double y = kTop + 6;
  for (const Series* series : legend) {
    const Style style = StyleOf(legend, series->name);
    absl::StrAppendFormat(&svg,
                          "<path d=\"M%.1f %.1fh24\" fill=\"none\" stroke=\"%s\" "
                          "stroke-width=\"2\"%s/>\n",
                          kLegendX, y, style.colour,
                          series->dashed ? " stroke-dasharray=\"6 4\"" : "");
    if (!series->dashed) absl::StrAppend(&svg, Marker(kLegendX + 12, y, style.shape, style.colour));
    absl::StrAppend(&svg, TextAt(kLegendX + 32, y + 4, "start", "class=\"legend\"", series->name));
    y += kLegendStep;
  }
  return svg;
}

Axis AxisOfX(const Plot& plot) {
  Axis x = Axis::Empty(/*log=*/true);
  for (const Panel& panel : plot.panels) {
    for (const Series& series : panel.series) {
      for (const Point& point : series.points) {
        if (Usable(point, /*x_log=*/true, panel.y_log)) x.Widen(point.x);
      }
    }
  }
  x.Settle();
  if (!plot.categories.empty()) {
    x = {-0.5, static_cast<double>(plot.categories.size()) - 0.5, false};
  }
  x.from = kLeft;
  x.to = kLeft + kPlotWidth;
  return x;
}

}  // namespace

std::string XmlText(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(byte < 0x20 || byte >= 0x7f ? '?' : c);
    }
  }
  return out;
}

std::string ToSvg(const Plot& plot) {
  const std::vector<const Series*> legend = Legend(plot);
  const Axis x = AxisOfX(plot);
  const double panels = static_cast<double>(plot.panels.size());
  const double height =
      std::max(kTop + panels * kPanelHeight + std::max(0.0, panels - 1) * kGap + kBottom,
               kTop + static_cast<double>(legend.size()) * kLegendStep + kBottom);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
      "<title>%s</title>\n"
      "<style>.grid{stroke:#e5e7eb;fill:none}.axis{stroke:#374151;fill:none}"
      ".tick{font-size:12px;fill:#374151}.label{font-size:13px;fill:#374151}"
      ".legend{font-size:13px;fill:#111827}.panel{font-size:14px;font-weight:bold;fill:#111827}"
      ".title{font-size:18px;font-weight:bold;fill:#111827}.note{font-size:12px;fill:#6b7280}</"
      "style>\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      kWidth, height, kWidth, height, XmlText(plot.title));
  absl::StrAppend(&svg, TextAt(kLeft, 30, "start", "class=\"title\"", plot.title),
                  TextAt(kLeft, 50, "start", "class=\"note\"", plot.subtitle));
  double top = kTop;
  for (const Panel& panel : plot.panels) {
    absl::StrAppend(&svg, DrawPanel(panel, top, x, plot, legend));
    top += kPanelHeight + kGap;
  }
  absl::StrAppend(
      &svg, TextAt(kLeft + kPlotWidth / 2, height - 44, "middle", "class=\"label\"", plot.x_label),
      TextAt(kLeft, height - 16, "start", "class=\"note\"", plot.footer), DrawLegend(legend),
      "</svg>\n");
  return svg;
}

}  // namespace qrd::tools
