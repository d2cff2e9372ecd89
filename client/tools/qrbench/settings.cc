// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/flags.h"
#include "client/tools/qrbench/npy.h"

namespace qrd::tools {
namespace {

constexpr uint64_t kPayloadBytesMin = 4;
constexpr uint64_t kPayloadBytesMax = uint64_t{1} << 40;
constexpr size_t kSizesMax = 1000;

template <typename Values>
std::vector<std::string> Names(const Values& values, bool with_auto) {
  std::vector<std::string> names;
  if (with_auto) names.push_back("auto");
  for (const auto value : values) names.push_back(std::string(Name(value)));
  return names;
}
std::vector<std::string> CodecNames(bool with_auto) { return Names(kAllCodecs, with_auto); }
std::vector<std::string> AlgorithmNames(bool with_auto) {
  std::vector<std::string> names =
      Names(std::vector{Algorithm::kOneShot, Algorithm::kTwoShot}, with_auto);
  // A plan that the daemon makes, where it can.
  if (with_auto) names.push_back(std::string(Name(Algorithm::kLibrary)));
  return names;
}
std::vector<std::string> DtypeNames() {
  return Names(std::vector{Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}, false);
}

// A list of known words; "all" stands for every one of them but "auto".
absl::StatusOr<std::vector<std::string>> KnownList(const std::string& list,
                                                   const std::vector<std::string>& known,
                                                   absl::string_view what) {
  if (list == "all") {
    std::vector<std::string> all = known;
    std::erase(all, "auto");
    std::erase(all, "library");  // by name only: not every daemon has it
    return all;
  }
  absl::StatusOr<std::vector<std::string>> names = ParseNames(list, what);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (absl::Status status = CheckKnown(name, known, what); !status.ok()) return status;
  }
  return names;
}

absl::Status OutOfBounds(absl::string_view flag, uint64_t value, uint64_t low, uint64_t high) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not within ", low, " to ", high));
}

// Files of --input and what follows from them: number of ranks, default dtype.
struct Inputs {
  TensorSource source;
  Dtype dtype = Dtype::kBf16;
  uint32_t ranks = 2;
};

absl::StatusOr<Inputs> LoadInputs(const TensorFlags& flags) {
  Inputs inputs;
  inputs.source.seed = flags.seed;
  if (flags.ranks > kWorldSizeMax) return OutOfBounds("--ranks", flags.ranks, 1, kWorldSizeMax);
  if (flags.ranks != 0) inputs.ranks = flags.ranks;
  if (flags.input.empty()) return inputs;
  absl::StatusOr<std::vector<std::string>> files = ParseNames(flags.input, "--input");
  if (!files.ok()) return files.status();
  if (flags.ranks != 0 && flags.ranks != files->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--input: ", files->size(), " files for --ranks ", flags.ranks, "; want one file a rank"));
  }
  if (files->size() > kWorldSizeMax)
    return OutOfBounds("--input files", files->size(), 1, kWorldSizeMax);
  for (const std::string& file : *files) {
    absl::StatusOr<NpyArray> array = ReadNpy(file);
    if (!array.ok()) return absl::FailedPreconditionError(array.status().message());
    if (inputs.source.files.empty()) {
      inputs.dtype = array->dtype;
    } else if (array->values.size() != inputs.source.files[0].size()) {
      return absl::FailedPreconditionError(absl::StrCat(file, ": ", array->values.size(),
                                                        " elements, the first file has ",
                                                        inputs.source.files[0].size()));
    } else if (array->dtype != inputs.dtype) {
      return absl::FailedPreconditionError(
          absl::StrCat(file, ": dtype ", std::string(Name(array->dtype)), ", the first file has ",
                       std::string(Name(inputs.dtype))));
    }
    inputs.source.files.push_back(std::move(array->values));
  }
  inputs.ranks = static_cast<uint32_t>(files->size());
  return inputs;
}

absl::StatusOr<std::vector<Dtype>> ParseDtypes(const TensorFlags& flags, Dtype fallback) {
  if (flags.dtypes.empty()) return std::vector{fallback};
  absl::StatusOr<std::vector<std::string>> names =
      KnownList(flags.dtypes, DtypeNames(), "--dtypes");
  if (!names.ok()) return names.status();
  std::vector<Dtype> dtypes;
  for (const std::string& name : *names) dtypes.push_back(*ParseDtype(name));
  return dtypes;
}

absl::StatusOr<ReduceOp> ParseOp(const TensorFlags& flags) {
  const std::vector<std::string> known = {"sum", "avg"};
  if (absl::Status status = CheckKnown(flags.op, known, "--op"); !status.ok()) return status;
  return *ParseReduceOp(flags.op);
}

absl::Status CheckRankFlags(const AllReduceSettings& s) {
  if (s.ranks < 1 || s.ranks > kWorldSizeMax)
    return OutOfBounds("--ranks", s.ranks, 1, kWorldSizeMax);
  if (s.groups < 1 || s.groups > kProcessesMax || s.groups * s.ranks > kProcessesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--groups: ", s.groups, " groups of ", s.ranks,
                                                   " ranks; want 1 to ", kProcessesMax,
                                                   " processes in all"));
  }
  if (!s.join && s.rank != 0) return absl::InvalidArgumentError("--rank goes with --join only");
  if (s.join && s.rank >= s.ranks) return OutOfBounds("--rank", s.rank, 0, s.ranks - 1);
  if (s.join && s.groups != 1)
    return absl::InvalidArgumentError("--groups does not go with --join");
  if (s.join && s.start_daemon) {
    return absl::InvalidArgumentError(
        "--start-daemon does not go with --join: the other ranks need "
        "the same daemon");
  }
  if (!s.daemon_program.empty() && !s.start_daemon) {
    return absl::InvalidArgumentError("--daemon goes with --start-daemon only");
  }
  if (s.iterations > kIterationsMax) return OutOfBounds("--iters", s.iterations, 1, kIterationsMax);
  if (s.warmup > kIterationsMax) return OutOfBounds("--warmup", s.warmup, 1, kIterationsMax);
  if (s.buffers > 64) return OutOfBounds("--buffers", s.buffers, 1, 64);
  return absl::OkStatus();
}

absl::Status CheckGpuFlags(const AllReduceFlags& flags, AllReduceSettings* s) {
  if (s->backend == "host") {
    if (!s->order.empty()) {
      return absl::InvalidArgumentError("--order goes with --backend gpu only");
    }
    if (!flags.devices.empty()) {
      return absl::InvalidArgumentError("--devices goes with --backend gpu only");
    }
    s->order = "host";
    return absl::OkStatus();
  }
  if (s->order.empty()) s->order = "stream";
  if (s->in_place && s->order != "host") {
    return absl::InvalidArgumentError(
        absl::StrCat("--in-place does not go with --order ", s->order,
                     ": the input would have to be restored between operations; use --order host"));
  }
  if (flags.devices.empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<std::string>> devices = ParseNames(flags.devices, "--devices");
  if (!devices.ok()) return devices.status();
  if (devices->size() != 1 && devices->size() != s->ranks) {
    return absl::InvalidArgumentError(absl::StrCat("--devices: ", devices->size(), " for --ranks ",
                                                   s->ranks, "; want one, or one a rank"));
  }
  s->devices = *std::move(devices);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> ParseSizes(const AllReduceFlags& flags) {
  std::vector<uint64_t> sizes;
  if (!flags.sizes.empty()) {
    absl::StatusOr<std::vector<uint64_t>> list = ParseByteList(flags.sizes, flags.sizes_flag);
    if (!list.ok()) return list.status();
    sizes = *list;
  } else {
    absl::StatusOr<uint64_t> low = ParseBytes(flags.min_bytes, "-b");
    if (!low.ok()) return low.status();
    absl::StatusOr<uint64_t> high = ParseBytes(flags.max_bytes, "-e");
    if (!high.ok()) return high.status();
    absl::StatusOr<std::vector<uint64_t>> range = SizeRange(*low, *high, flags.factor);
    if (!range.ok()) return range.status();
    sizes = *range;
  }
  for (const uint64_t bytes : sizes) {
    if (bytes >= kPayloadBytesMin && bytes <= kPayloadBytesMax) continue;
    const std::string range_flag = bytes < kPayloadBytesMin ? "-b" : "-e";
    return OutOfBounds(flags.sizes.empty() ? range_flag : flags.sizes_flag, bytes, kPayloadBytesMin,
                       kPayloadBytesMax);
  }
  return sizes;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> SizeRange(uint64_t min_bytes, uint64_t max_bytes,
                                                double factor) {
  if (min_bytes == 0 || min_bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("-b: ", min_bytes, " is not within 1 to ", max_bytes, " (-e)"));
  }
  if (!(factor > 1) || factor > 1e6) {
    return absl::InvalidArgumentError(absl::StrCat("-f: ", factor, " is not above 1 (to 1000000)"));
  }
  std::vector<uint64_t> sizes;
  for (double at = static_cast<double>(min_bytes); at <= static_cast<double>(max_bytes);
       at *= factor) {
    const auto bytes = static_cast<uint64_t>(at);
    if (sizes.empty() || bytes != sizes.back()) sizes.push_back(bytes);
    if (sizes.size() > kSizesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("-f: ", factor, " gives more than ", kSizesMax, " sizes"));
    }
  }
  return sizes;
}

absl::StatusOr<AllReduceSettings> MakeAllReduceSettings(const AllReduceFlags& flags,
                                                        bool sizes_given) {
  AllReduceSettings settings = flags.settings;
  const TensorFlags& tensors = flags.tensors;
  const auto codecs =
      KnownList(tensors.codecs.empty() ? "auto" : tensors.codecs, CodecNames(true), "--codecs");
  if (!codecs.ok()) return codecs.status();
  settings.codecs = *codecs;
  const auto algorithms = KnownList(tensors.algorithms.empty() ? "auto" : tensors.algorithms,
                                    AlgorithmNames(true), "--algorithms");
  if (!algorithms.ok()) return algorithms.status();
  settings.algorithms = *algorithms;
  absl::StatusOr<ReduceOp> op = ParseOp(tensors);
  if (!op.ok()) return op.status();
  settings.op = *op;
  absl::StatusOr<uint64_t> check_bytes = ParseBytes(flags.check_bytes, "--check-bytes");
  if (!check_bytes.ok()) return check_bytes.status();
  settings.check_bytes_max = *check_bytes;
  if (tensors.input.empty()) {
    absl::StatusOr<std::vector<uint64_t>> sizes = ParseSizes(flags);
    if (!sizes.ok()) return sizes.status();
    settings.sizes = *sizes;
  } else if (sizes_given) {
    return absl::InvalidArgumentError("sizes do not go with --input: the files have theirs");
  }
  settings.ranks = tensors.ranks == 0 ? 2 : tensors.ranks;
  absl::StatusOr<std::vector<Dtype>> dtypes = ParseDtypes(tensors, Dtype::kBf16);
  if (!dtypes.ok()) return dtypes.status();
  absl::StatusOr<Inputs> inputs = LoadInputs(tensors);
  if (!inputs.ok()) return inputs.status();
  settings.source = std::move(inputs->source);
  settings.ranks = inputs->ranks;
  settings.dtypes = tensors.dtypes.empty() ? std::vector{inputs->dtype} : *dtypes;
  if (absl::Status status = CheckRankFlags(settings); !status.ok()) return status;
  for (const auto& [flag, name] :
       {std::pair{"--communicator", settings.communicator}, std::pair{"--group", settings.group}}) {
    if (name.empty()) continue;  // the default's
    if (absl::Status status = CheckName(name, flag); !status.ok()) return status;
  }
  if (absl::Status status = CheckGpuFlags(flags, &settings); !status.ok()) return status;
  return settings;
}

absl::StatusOr<AccuracySettings> MakeAccuracySettings(const AccuracyFlags& flags) {
  const TensorFlags& tensors = flags.tensors;
  AccuracySettings settings;
  settings.output = flags.output;
  const auto codecs =
      KnownList(tensors.codecs.empty() ? "all" : tensors.codecs, CodecNames(false), "--codecs");
  if (!codecs.ok()) return codecs.status();
  for (const std::string& name : *codecs) settings.codecs.push_back(*ParseCodec(name));
  const auto algorithms = KnownList(tensors.algorithms.empty() ? "all" : tensors.algorithms,
                                    AlgorithmNames(false), "--algorithms");
  if (!algorithms.ok()) return algorithms.status();
  for (const std::string& name : *algorithms) settings.algorithms.push_back(*ParseAlgorithm(name));
  absl::StatusOr<ReduceOp> op = ParseOp(tensors);
  if (!op.ok()) return op.status();
  settings.op = *op;
  if (flags.count < 1 || flags.count > kAccuracyCountMax) {
    return OutOfBounds("--count", flags.count, 1, kAccuracyCountMax);
  }
  absl::StatusOr<Inputs> inputs = LoadInputs(tensors);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<std::vector<Dtype>> dtypes = ParseDtypes(tensors, inputs->dtype);
  if (!dtypes.ok()) return dtypes.status();
  settings.dtypes = *dtypes;
  settings.source = std::move(inputs->source);
  settings.ranks = inputs->ranks;
  settings.count = settings.source.files.empty() ? flags.count : settings.source.files[0].size();
  return settings;
}

}  // namespace qrd::tools
