// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/operation.h"

#include <bit>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace qrd {
namespace {

// Floats must have the same bits; the bits tell apart what prints alike.
std::string BitsText(float value) {
  return absl::StrFormat("%g (0x%08x)", value, std::bit_cast<uint32_t>(value));
}

using Describe = std::string (*)(const ValidatedDescriptor&);

// What all ranks must agree on, and how it is shown.
constexpr struct {
  const char* name;
  Describe value;
} kFields[] = {
    {"kind",
     [](const ValidatedDescriptor& d) { return absl::StrCat(static_cast<uint32_t>(d.kind)); }},
    {"dtype", [](const ValidatedDescriptor& d) { return std::string(Name(d.dtype)); }},
    {"op", [](const ValidatedDescriptor& d) { return std::string(Name(d.op)); }},
    {"count", [](const ValidatedDescriptor& d) { return absl::StrCat(d.count); }},
    {"epilogue",
     [](const ValidatedDescriptor& d) {
       return std::string(Name(static_cast<Epilogue>(d.epilogue)));
     }},
};

// The same of operations with RMSNorm.
// "": the rank has no say.
using DescribeNorm = std::string (*)(const RmsNormOperands&);
constexpr struct {
  const char* name;
  DescribeNorm value;
} kNormFields[] = {
    {"tokens", [](const RmsNormOperands& n) { return absl::StrCat(n.params.tokens); }},
    {"hidden", [](const RmsNormOperands& n) { return absl::StrCat(n.params.hidden); }},
    {"weight_dtype",
     [](const RmsNormOperands& n) { return std::string(Name(n.params.weight_dtype)); }},
    {"eps", [](const RmsNormOperands& n) { return BitsText(n.params.eps); }},
    {"divisor", [](const RmsNormOperands& n) { return BitsText(n.params.divisor); }},
    {"gemma", [](const RmsNormOperands& n) { return absl::StrCat(n.params.gemma ? 1 : 0); }},
    {"quant", [](const RmsNormOperands& n) { return std::string(Name(n.params.quant)); }},
    {"scale_group", [](const RmsNormOperands& n) { return absl::StrCat(n.params.scale_group); }},
    {"residual_layout",
     [](const RmsNormOperands& n) { return std::string(Name(n.params.residual_layout)); }},
    {"residual",
     [](const RmsNormOperands& n) {
       if (!n.has_rows) return std::string();
       return std::string(n.params.residual[0] != nullptr ? "given" : "none");
     }},
    {"mirror",
     [](const RmsNormOperands& n) {
       return std::string(n.params.mirror[0] != nullptr ? "given" : "none");
     }},
};

bool SameNorm(const RmsNormOperands& first, const RmsNormOperands& second) {
  const RmsNormParams &a = first.params, &b = second.params;
  const bool both_have_rows = first.has_rows && second.has_rows;
  return a.tokens == b.tokens && a.hidden == b.hidden && a.weight_dtype == b.weight_dtype &&
         std::bit_cast<uint32_t>(a.eps) == std::bit_cast<uint32_t>(b.eps) &&
         std::bit_cast<uint32_t>(a.divisor) == std::bit_cast<uint32_t>(b.divisor) &&
         a.gemma == b.gemma && a.quant == b.quant && a.scale_group == b.scale_group &&
         a.residual_layout == b.residual_layout &&
         (!both_have_rows || (a.residual[0] == nullptr) == (b.residual[0] == nullptr)) &&
         (a.mirror[0] == nullptr) == (b.mirror[0] == nullptr);
}

bool Same(const ValidatedDescriptor& a, const ValidatedDescriptor& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.count == b.count &&
         a.epilogue == b.epilogue && (a.rms_norm == nullptr || SameNorm(*a.rms_norm, *b.rms_norm));
}

// Ranks by value; those outside the largest class differ, and all do if there is no largest one.
Failure DescribeDifference(const Operation& operation, const char* field,
                           const std::map<std::string, uint32_t>& ranks_of_value) {
  Failure failure;
  failure.status = shm::Status::kMismatch;
  failure.message = absl::StrFormat("operation %d: %s is ", operation.sequence, field);
  uint32_t largest_mask = 0;
  int largest = 0;
  const char* separator = "";
  for (const auto& [value, mask] : ranks_of_value) {
    absl::StrAppend(&failure.message, separator, value, " on ", RanksText(mask));
    separator = ", but ";
    failure.rank_mask |= mask;
    const int ranks = std::popcount(mask);
    if (ranks == largest) largest_mask = 0;
    if (ranks > largest) {
      largest = ranks;
      largest_mask = mask;
    }
  }
  failure.rank_mask &= ~largest_mask;
  return failure;
}

}  // namespace

std::string RanksText(uint32_t rank_mask) {
  if (rank_mask == 0) return "";
  std::string text = std::has_single_bit(rank_mask) ? "rank " : "ranks ";
  const int count = std::popcount(rank_mask);
  int written = 0;
  for (uint32_t rank = 0; rank < 32; ++rank) {
    if ((rank_mask >> rank & 1) == 0) continue;
    if (written > 0) text += written + 1 == count ? " and " : ", ";
    absl::StrAppend(&text, rank);
    ++written;
  }
  return text;
}

Failure CompareRanks(const Operation& operation, uint32_t rank_mask) {
  const ValidatedDescriptor* first = nullptr;
  bool same = true;
  for (uint32_t rank = 0; rank < operation.posts.size(); ++rank) {
    if ((rank_mask >> rank & 1) == 0) continue;
    const ValidatedDescriptor& descriptor = operation.posts[rank].descriptor;
    if (first == nullptr) first = &descriptor;
    same = same && Same(*first, descriptor);
  }
  if (same) return Failure{};
  // The first field that differs, of those that `value` gives a text of.
  const auto difference = [&](const char* name, auto value) {
    std::map<std::string, uint32_t> ranks_of_value;
    for (uint32_t rank = 0; rank < operation.posts.size(); ++rank) {
      if ((rank_mask >> rank & 1) == 0) continue;
      const std::string text = value(operation.posts[rank].descriptor);
      if (!text.empty()) ranks_of_value[text] |= uint32_t{1} << rank;
    }
    return ranks_of_value.size() > 1 ? DescribeDifference(operation, name, ranks_of_value)
                                     : Failure{};
  };
  for (const auto& field : kFields) {
    Failure failure = difference(field.name, field.value);
    if (failure.status != shm::Status::kOk) return failure;
  }
  for (const auto& field : kNormFields) {
    Failure failure = difference(
        field.name, [&field](const ValidatedDescriptor& d) { return field.value(*d.rms_norm); });
    if (failure.status != shm::Status::kOk) return failure;
  }
  return Failure{};
}

}  // namespace qrd
