// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/model_published.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace qrd::tools {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10, kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

// A table: columns of codecs, rows of sizes. A value of 0: not published.
template <size_t kColumns>
struct Row {
  uint64_t bytes;
  std::array<double, kColumns> us;
};

struct Column {
  Codec codec;
  ModelAlgorithm algorithm = ModelAlgorithm::kTwoShot;
};

template <size_t kColumns, size_t kRows>
void Append(std::string_view machine, std::string_view source, uint32_t ranks, Dtype dtype,
            const std::array<Column, kColumns>& columns,
            const std::array<Row<kColumns>, kRows>& rows, std::vector<PublishedFigure>& figures) {
  for (const Row<kColumns>& row : rows) {
    for (size_t i = 0; i < kColumns; ++i) {
      if (row.us[i] == 0) continue;
      PublishedFigure figure;
      figure.machine = machine;
      figure.source = source;
      figure.c = {ranks, row.bytes, dtype, columns[i].codec, columns[i].algorithm};
      figure.value = row.us[i];
      figures.push_back(figure);
    }
  }
}

constexpr Column kLibrary = {Codec::kNone, ModelAlgorithm::kLibrary};
constexpr Column kNone = {Codec::kNone}, kFp8 = {Codec::kFp8}, kInt8 = {Codec::kInt8},
                 kInt6 = {Codec::kInt6}, kInt4 = {Codec::kInt4};
constexpr Column kNoneOneShot = {Codec::kNone, ModelAlgorithm::kOneShot};
constexpr Column kInt4OneShot = {Codec::kInt4, ModelAlgorithm::kOneShot};

constexpr std::string_view kQuickReduce = "mk1-project/quickreduce README (ROCm 6.2)";

// Fit: 64 MiB, and at 2 and 8 ranks 32 KiB and 1 MiB; Q6 and the rest are held out.
void AddQuickReduce(std::vector<PublishedFigure>& figures) {
  constexpr std::array<Column, 5> kColumns = {kLibrary, kNone, kInt8, kInt6, kInt4};
  constexpr std::array<Row<5>, 5> kTp2 = {{{32 * kKiB, {17.2, 8.5, 20.5, 23.1, 20.2}},
                                           {kMiB, {37.2, 28.8, 28.5, 27.7, 24.0}},
                                           {4 * kMiB, {105, 95, 63, 54, 42}},
                                           {16 * kMiB, {376, 378, 217, 174, 131}},
                                           {64 * kMiB, {1464, 1464, 829, 651, 468}}}};
  constexpr std::array<Row<5>, 5> kTp4 = {{{32 * kKiB, {18.2, 10.6, 23.3, 23.8, 23.2}},
                                           {kMiB, {39.4, 21.9, 28.8, 29.2, 29.1}},
                                           {4 * kMiB, {71, 66, 54, 44, 40}},
                                           {16 * kMiB, {205, 239, 223, 163, 114}},
                                           {64 * kMiB, {761, 831, 640, 489, 374}}}};
  constexpr std::array<Row<5>, 5> kTp8 = {{{32 * kKiB, {16.2, 14.8, 27.5, 28.8, 25.8}},
                                           {kMiB, {26.4, 20.0, 32.7, 33.6, 31.9}},
                                           {4 * kMiB, {52, 47, 45, 47, 44}},
                                           {16 * kMiB, {148, 147, 158, 106, 83}},
                                           {64 * kMiB, {426, 464, 482, 372, 273}}}};
  std::vector<PublishedFigure> added;
  Append("mi300x", kQuickReduce, 2, Dtype::kFp16, kColumns, kTp2, added);
  Append("mi300x", kQuickReduce, 4, Dtype::kFp16, kColumns, kTp4, added);
  Append("mi300x", kQuickReduce, 8, Dtype::kFp16, kColumns, kTp8, added);
  for (PublishedFigure& figure : added) {
    const ModelCase& c = figure.c;
    const bool large = c.payload_bytes == 64 * kMiB;
    figure.listed = large || (c.ranks == 2 && c.payload_bytes == kMiB);
    figure.fitted = c.codec != Codec::kInt6 && (large || (c.ranks != 4 && c.payload_bytes <= kMiB));
    figures.push_back(figure);
  }
}

void AddOthersOnMi300x(std::vector<PublishedFigure>& figures) {
  Append("mi300x", "ROCm/aiter#801, custom all-reduce and QuickReduce", 2, Dtype::kFp16,
         std::array<Column, 5>{kNoneOneShot, kNone, kFp8, kInt6, kInt4},
         std::array<Row<5>, 4>{{{64 * kKiB, {7.7, 9.2, 20.9, 22.4, 19.1}},
                                {kMiB, {28.2, 30.6, 30.9, 28.3, 23.1}},
                                {16 * kMiB, {356, 378, 220, 187, 132}},
                                {256 * kMiB, {5568, 5822, 3248, 2518, 1759}}}},
         figures);
  Append("mi300x", "vllm-project/vllm#19744, QuickReduce", 4, Dtype::kFp16,
         std::array<Column, 4>{kNone, kInt8, kInt6, kInt4},
         std::array<Row<4>, 4>{{{16 * kKiB, {12.8, 23.7, 25.8, 21.3}},
                                {kMiB, {22.5, 29.4, 29.9, 24.7}},
                                {2 * kMiB, {36.1, 41.0, 39.3, 28.5}},
                                {8 * kMiB, {127, 126, 99, 64}}}},
         figures);
}

void AddMi355x(std::vector<PublishedFigure>& figures) {
  const auto ratio = [&figures](std::string_view source, uint32_t ranks, Codec codec,
                                double value) {
    PublishedFigure figure;
    figure.machine = "mi355x";
    figure.source = source;
    figure.c = {ranks, kGiB, Dtype::kFp16, codec, ModelAlgorithm::kTwoShot};
    figure.value = value;
    figure.over_library = figure.listed = true;
    figures.push_back(figure);
  };
  ratio("AMD ROCm blog quick-reduce-2", 2, Codec::kFp4, 4.14);
  ratio("AMD ROCm blog quick-reduce-2", 4, Codec::kFp4, 3.43);
  ratio("AMD ROCm blog quick-reduce-2", 8, Codec::kFp4, 1.52);
  ratio("AMD ROCm blog on INT3 (\"about 5\")", 2, Codec::kInt3, 5);
  constexpr uint64_t kRow = 5120 * 2;
  Append("mi355x", "ROCm/aiter#4970, #5554: HIP kernels, bf16", 8, Dtype::kBf16,
         std::array<Column, 2>{kInt6, kInt4},
         std::array<Row<2>, 2>{{{512 * kRow, {34.7, 28.8}}, {32768 * kRow, {1139, 1061}}}},
         figures);
  // Published as bus bandwidth: 57.7, 165.9, 360.9 GB/s.
  constexpr std::string_view kDda = "ROCm/rocm-systems#9040: uncompressed, reads over links, fp32";
  const auto dda = [&](uint32_t ranks, double us) {
    Append("mi355x", kDda, ranks, Dtype::kFp32, std::array<Column, 1>{kNone},
           std::array<Row<1>, 1>{{{64 * kMiB, {us}}}}, figures);
  };
  dda(2, 1163);
  dda(4, 607);
  dda(8, 325);
}

// Ours, with all ranks on one H200. Fit: 4 KiB, for the fixed times.
void AddH200(std::vector<PublishedFigure>& figures) {
  constexpr std::string_view kSource = "kernels/gpu/README.md, measured";
  std::vector<PublishedFigure> added;
  constexpr std::array<Column, 4> kSmall = {kNoneOneShot, kNone, kInt4OneShot, kInt4};
  const auto small = [&](uint32_t ranks, const std::array<Row<4>, 4>& rows) {
    Append("h200", kSource, ranks, Dtype::kBf16, kSmall, rows, added);
  };
  small(2, {{{4 * kKiB, {5.6, 7.4, 8.1, 12.6}},
             {64 * kKiB, {6.1, 8.7, 8.9, 13.9}},
             {kMiB, {7.0, 9.2, 9.3, 14.5}},
             {8 * kMiB, {22.0, 13.1, 23.0, 18.2}}}});
  small(8, {{{4 * kKiB, {8.1, 9.8, 12.5, 17.8}},
             {64 * kKiB, {10.9, 11.0, 15.0, 31.7}},
             {kMiB, {35.6, 16.1, 22.4, 40.2}},
             {8 * kMiB, {251, 43.2, 151, 64.2}}}});
  constexpr std::array<Column, 7> kLarge = {
      kNone, kInt8, kInt4, {Codec::kInt3}, {Codec::kLp4}, {Codec::kLp3}, {Codec::kLp2}};
  const auto large = [&](uint32_t ranks, const std::array<Row<7>, 2>& rows) {
    Append("h200", kSource, ranks, Dtype::kBf16, kLarge, rows, added);
  };
  large(2, {{{64 * kMiB, {77, 122, 116, 130, 208, 217, 204}},
             {256 * kMiB, {281, 411, 395, 438, 714, 742, 698}}}});
  large(4, {{{64 * kMiB, {146, 273, 239, 261, 436, 453, 415}},
             {256 * kMiB, {558, 979, 847, 914, 1502, 1573, 1432}}}});
  large(8, {{{64 * kMiB, {286, 613, 513, 533, 884, 926, 835}},
             {256 * kMiB, {1118, 2281, 1876, 1916, 3192, 3399, 3128}}}});
  for (PublishedFigure& figure : added) {
    figure.fitted = figure.c.payload_bytes == 4 * kKiB;
    figures.push_back(figure);
  }
}

}  // namespace

std::vector<PublishedFigure> PublishedFigures() {
  std::vector<PublishedFigure> figures;
  AddQuickReduce(figures);
  AddOthersOnMi300x(figures);
  AddMi355x(figures);
  AddH200(figures);
  return figures;
}

absl::StatusOr<std::vector<ComparedFigure>> CompareFigures(const ModelMachine& machine) {
  std::vector<ComparedFigure> compared;
  for (const PublishedFigure& figure : PublishedFigures()) {
    if (figure.machine != machine.name) continue;
    const absl::StatusOr<Prediction> own = Predict(machine, figure.c);
    if (!own.ok()) return own.status();
    double predicted = own->total;
    if (figure.over_library) {
      ModelCase library = figure.c;
      library.algorithm = ModelAlgorithm::kLibrary;
      const absl::StatusOr<Prediction> other = Predict(machine, library);
      if (!other.ok()) return other.status();
      predicted = other->total / own->total;
    }
    compared.push_back({figure, predicted, predicted / figure.value - 1});
  }
  return compared;
}

std::optional<ErrorSummary> Summarize(const std::vector<ComparedFigure>& figures) {
  if (figures.empty()) return std::nullopt;
  ErrorSummary summary;
  std::vector<double> errors;
  for (const ComparedFigure& figure : figures) {
    const double error = std::fabs(figure.error);
    errors.push_back(error);
    summary.within += error <= kModelErrorMax ? 1 : 0;
    if (error >= summary.worst) {
      summary.worst = error;
      summary.worst_figure = figure;
    }
  }
  summary.count = errors.size();
  std::sort(errors.begin(), errors.end());
  summary.median = (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
  return summary;
}

}  // namespace qrd::tools
