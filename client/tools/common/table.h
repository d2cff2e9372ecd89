// SPDX-License-Identifier: Apache-2.0
// Text tables: columns as wide as their widest cell, two spaces between them, numbers to the right.
//
// Thread safety: none; one thread a table.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace qrd::tools {

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
  bool shorten = false;  // its cells may be cut
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty, cells past the last column are dropped.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Header and rows, each line ends with a newline and has no blanks at its end. Control characters
  // in cells become '?', so that a hostile name cannot move the cursor. With a width, the cells of
  // columns that may be shortened lose their middle ("abc...xyz") as far as it takes, to no fewer
  // than 12 characters.
  std::string ToString(size_t width_max = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "name:       value" lines with the values in one column.
std::string KeyValues(const std::vector<std::pair<std::string, std::string>>& lines);

// Characters on the screen of UTF-8 text (one a code point).
size_t DisplayWidth(absl::string_view text);

}  // namespace qrd::tools
