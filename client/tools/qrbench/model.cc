// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tools/common/args.h"

namespace qrd::tools {
namespace {

constexpr double kBytesPerUs = 1e3;  // of 1 GB/s
constexpr double kMiB = 1 << 20;
constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 40;

// 1e9 elements a second on one H200, bf16 (kernels/gpu/README.md, "Measured on one H200": share of
// a copy times its rate). 0: bound by memory there, so the rate of its arithmetic is not known.
struct ArithmeticRate {
  double encode, decode;
};
ArithmeticRate ArithmeticOf(Codec codec) {
  switch (codec) {
    case Codec::kFp4:
      return {1285, 0};
    case Codec::kLp4:
      return {774, 1350};
    case Codec::kLp3:
      return {796, 1229};
    case Codec::kLp3c:
      return {789, 1245};
    case Codec::kLp2:
      return {876, 1296};
    default:
      return {0, 0};
  }
}

// What one rank does.
struct Work {
  double sent_bytes = 0, memory_bytes = 0;
  double encoded = 0, decoded = 0;  // elements
};

Work WorkOf(const ModelCase& c, uint64_t count) {
  const double ranks = c.ranks, payload = static_cast<double>(c.payload_bytes);
  const auto elements = static_cast<double>(count);
  const auto wire = static_cast<double>(EncodedBytes(c.codec, c.dtype, count));
  Work work;
  if (c.algorithm == ModelAlgorithm::kOneShot) {
    work.sent_bytes = (ranks - 1) * wire;
    work.memory_bytes = 2 * payload + 2 * (ranks - 1) * wire;
    work.encoded = elements;
    work.decoded = (ranks - 1) * elements;
    return work;
  }
  const double others = (ranks - 1) / ranks;  // the own part does not travel
  work.sent_bytes = 2 * others * wire;
  // Uncompressed, the ranks read and write each other's tensors: nothing is staged.
  work.memory_bytes = 2 * payload + (c.codec == Codec::kNone ? 0 : 4 * others * wire);
  work.encoded = elements;  // of the others, then the own result
  work.decoded = elements * (2 * others + 1 / ranks);
  return work;
}

double LinkUs(const ModelMachine& m, const KernelCost& kernel, double ranks, double sent_bytes) {
  if (m.topology == Topology::kOneDevice) return 0;
  const double rate = m.link_gbps.value * m.link_efficiency.value * kBytesPerUs;
  const double at_once = m.topology == Topology::kMesh ? ranks - 1 : 1;
  const double serial = kernel.serial.value;
  return sent_bytes / rate * (serial + (1 - serial) / at_once);
}

absl::Status Check(const ModelMachine& m, const ModelCase& c) {
  if (c.ranks < 2 || c.ranks > m.ranks_max) {
    return absl::InvalidArgumentError(absl::StrCat("ranks = ", c.ranks, ": ", std::string(m.name),
                                                   " has a model for 2 to ", m.ranks_max));
  }
  if (c.payload_bytes < DtypeBytes(c.dtype) || c.payload_bytes > kPayloadBytesMax ||
      c.payload_bytes % DtypeBytes(c.dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bytes = ", c.payload_bytes, ": want 1 to ", kPayloadBytesMax / DtypeBytes(c.dtype),
        " whole elements of ", std::string(Name(c.dtype))));
  }
  const bool needs_link = m.topology != Topology::kOneDevice;
  if ((needs_link && !(m.link_gbps.value > 0)) || m.none.fixed_us.value == kNotKnown) {
    return absl::InvalidArgumentError(
        absl::StrCat("machine = ", std::string(m.name),
                     ": link bandwidth and latency are not known, they must be given"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Prediction> PredictLibrary(const ModelMachine& m, const ModelCase& c) {
  if (!m.has_library) {
    return absl::UnimplementedError(
        absl::StrCat("algorithm = library: there are no figures of it for ", std::string(m.name)));
  }
  Prediction p;
  p.fixed = m.library.fixed_us.value + m.library.per_rank_us.value * c.ranks;
  const double factor = 2.0 * (c.ranks - 1) / c.ranks;
  const double sent_bytes = factor * static_cast<double>(c.payload_bytes);
  p.link = LinkUs(m, m.library, c.ranks, sent_bytes);
  if (m.library_bytes != 0) {
    std::vector<std::string> known;
    double us_per_byte = 0;
    for (const LibraryFigure& figure : m.library_figures) {
      known.push_back(absl::StrCat(figure.ranks));
      if (figure.ranks != c.ranks) continue;
      const double measured = factor * static_cast<double>(m.library_bytes);
      us_per_byte = (measured / (figure.bus_gbps * kBytesPerUs) - p.fixed) / measured;
    }
    if (us_per_byte == 0) {
      return absl::UnimplementedError(absl::StrCat("algorithm = library, ranks = ", c.ranks, ": ",
                                                   std::string(m.name), " has figures for ",
                                                   absl::StrJoin(known, ", "), " ranks"));
    }
    p.link = sent_bytes * us_per_byte;
  }
  p.total = p.fixed + p.link;
  p.bound_by = p.link > p.fixed ? "link" : "fixed";
  return p;
}

}  // namespace

std::string_view AlgorithmName(ModelAlgorithm algorithm) {
  switch (algorithm) {
    case ModelAlgorithm::kOneShot:
      return "one_shot";
    case ModelAlgorithm::kTwoShot:
      return "two_shot";
    case ModelAlgorithm::kLibrary:
      return "library";
  }
  return "unknown";
}

absl::StatusOr<ModelMachine> FindModelMachine(std::string_view name) {
  std::vector<std::string> known;
  for (const ModelMachine& machine : ModelMachines()) {
    if (machine.name == name) return machine;
    known.emplace_back(machine.name);
  }
  return CheckKnown(std::string(name), known, "machine");
}

absl::StatusOr<Prediction> Predict(const ModelMachine& m, const ModelCase& c) {
  if (absl::Status status = Check(m, c); !status.ok()) return status;
  if (c.algorithm == ModelAlgorithm::kLibrary) return PredictLibrary(m, c);
  const uint64_t count = c.payload_bytes / DtypeBytes(c.dtype);
  const Work work = WorkOf(c, count);
  const KernelCost& kernel = c.codec == Codec::kNone ? m.none : m.codec;
  const double ranks = c.ranks, on_device = m.topology == Topology::kOneDevice ? ranks : 1;
  Prediction p;
  p.fixed = kernel.fixed_us.value + kernel.per_rank_us.value * ranks;
  if (c.algorithm == ModelAlgorithm::kOneShot) p.fixed *= m.one_shot_fixed.value;
  p.link = LinkUs(m, kernel, ranks, work.sent_bytes);
  p.memory = on_device * work.memory_bytes / (m.memory_gbps.value * kBytesPerUs);
  const ArithmeticRate rate = ArithmeticOf(c.codec);
  const double scale = m.arithmetic_scale.value * kBytesPerUs / on_device;
  if (rate.encode > 0) p.arithmetic += work.encoded / (rate.encode * scale);
  if (rate.decode > 0) p.arithmetic += work.decoded / (rate.decode * scale);
  if (c.codec != Codec::kNone) {
    p.codec = m.codec_us_per_mib.value * static_cast<double>(c.payload_bytes) / kMiB;
  }
  const double slowest = std::max({p.link, p.memory, p.arithmetic});
  p.total = p.fixed + slowest + p.codec;
  p.bound_by = p.fixed + p.codec > slowest ? "fixed"
               : slowest == p.link         ? "link"
               : slowest == p.memory       ? "memory"
                                           : "arithmetic";
  return p;
}

}  // namespace qrd::tools
