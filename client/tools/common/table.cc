// SPDX-License-Identifier: Apache-2.0
#include "client/tools/common/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace qrd::tools {
namespace {

std::string Printable(absl::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

void AppendCell(std::string& line, absl::string_view cell, size_t width, Align align) {
  const std::string blanks(width - DisplayWidth(cell), ' ');
  if (align == Align::kRight) absl::StrAppend(&line, blanks, cell);
  if (align == Align::kLeft) absl::StrAppend(&line, cell, blanks);
}

// Names differ at their ends as often as at their beginnings.
std::string WithoutMiddle(const std::string& cell, size_t width) {
  if (cell.size() <= width) return cell;
  constexpr size_t kDots = 3;
  const size_t tail = (width - kDots) / 2;
  return absl::StrCat(cell.substr(0, width - kDots - tail), "...", cell.substr(cell.size() - tail));
}

// Takes from the widest column that may be shortened until all fit, or none has more to give.
void Shrink(const std::vector<Column>& columns, size_t width_max, std::vector<size_t>& widths) {
  constexpr size_t kWidthMin = 12;
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  for (; total > width_max; --total) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (!columns[i].shorten || widths[i] <= std::max(kWidthMin, columns[i].header.size()))
        continue;
      if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
    }
    if (widest == nullptr) return;
    --*widest;
  }
}

void TrimRight(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

size_t DisplayWidth(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::ToString(size_t width_max) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(DisplayWidth(column.header));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  if (width_max != 0) Shrink(columns_, width_max, widths);
  std::string out;
  for (size_t r = 0; r <= rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string& cell = r == 0 ? columns_[i].header : rows_[r - 1][i];
      AppendCell(line, columns_[i].shorten ? WithoutMiddle(cell, widths[i]) : cell, widths[i],
                 columns_[i].align);
    }
    TrimRight(line);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string KeyValues(const std::vector<std::pair<std::string, std::string>>& lines) {
  size_t width = 0;
  for (const auto& [key, value] : lines) width = std::max(width, DisplayWidth(key));
  std::string out;
  for (const auto& [key, value] : lines) {
    std::string line =
        absl::StrCat(key, ":", std::string(width - DisplayWidth(key) + 2, ' '), Printable(value));
    TrimRight(line);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace qrd::tools
