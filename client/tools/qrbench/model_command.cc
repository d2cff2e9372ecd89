// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/model_command.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/model_report.h"

namespace qrd::tools {
namespace {

constexpr double kGbpsMax = 1e6, kLatencyUsMax = 1e6;

absl::Status CheckPositive(const char* flag, double value, double high) {
  if (value > 0 && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not above 0 and up to ", high));
}

absl::Status Override(const ModelFlags& flags, ModelMachine& machine) {
  if (flags.link_gbps) {
    if (machine.topology == Topology::kOneDevice) {
      return absl::InvalidArgumentError(absl::StrCat("--link-gbps: machine ",
                                                     std::string(machine.name),
                                                     " has all ranks on one device and no link"));
    }
    if (auto s = CheckPositive("--link-gbps", *flags.link_gbps, kGbpsMax); !s.ok()) return s;
    machine.link_gbps = {*flags.link_gbps, "--link-gbps"};
  }
  if (flags.memory_gbps) {
    if (auto s = CheckPositive("--memory-gbps", *flags.memory_gbps, kGbpsMax); !s.ok()) return s;
    machine.memory_gbps = {*flags.memory_gbps, "--memory-gbps"};
  }
  if (flags.latency_us) {
    if (auto s = CheckPositive("--latency-us", *flags.latency_us, kLatencyUsMax); !s.ok()) return s;
    for (KernelCost* cost : {&machine.none, &machine.codec}) {
      cost->fixed_us = {*flags.latency_us, "--latency-us"};
      cost->per_rank_us = {0, "--latency-us"};
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Codec>> ParseCodecs(const std::string& list) {
  std::vector<std::string> known;
  for (const Codec codec : kAllCodecs) known.emplace_back(Name(codec));
  if (list == "all") return std::vector<Codec>(kAllCodecs.begin(), kAllCodecs.end());
  absl::StatusOr<std::vector<std::string>> names =
      ParseNames(list.empty() ? "none" : list, "--codec");
  if (!names.ok()) return names.status();
  std::vector<Codec> codecs;
  for (const std::string& name : *names) {
    if (absl::Status s = CheckKnown(name, known, "--codec"); !s.ok()) return s;
    codecs.push_back(*ParseCodec(name));
  }
  return codecs;
}

absl::StatusOr<ModelAlgorithm> ParseModelAlgorithm(const std::string& name) {
  std::vector<std::string> known;
  for (const ModelAlgorithm algorithm :
       {ModelAlgorithm::kOneShot, ModelAlgorithm::kTwoShot, ModelAlgorithm::kLibrary}) {
    if (AlgorithmName(algorithm) == name) return algorithm;
    known.emplace_back(AlgorithmName(algorithm));
  }
  return CheckKnown(name, known, "--algorithm");
}

absl::StatusOr<Dtype> ParseModelDtype(const std::string& name) {
  if (const std::optional<Dtype> dtype = ParseDtype(name)) return *dtype;
  return CheckKnown(name, {"fp16", "bf16", "fp32"}, "--dtype");
}

absl::Status AddCases(const ModelFlags& flags, ModelSettings& settings) {
  absl::StatusOr<Dtype> dtype = ParseModelDtype(flags.dtype.empty() ? "fp16" : flags.dtype);
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<ModelAlgorithm> algorithm =
      ParseModelAlgorithm(flags.algorithm.empty() ? "two_shot" : flags.algorithm);
  if (!algorithm.ok()) return algorithm.status();
  absl::StatusOr<std::vector<Codec>> codecs = ParseCodecs(flags.codecs);
  if (!codecs.ok()) return codecs.status();
  if (*algorithm == ModelAlgorithm::kLibrary && *codecs != std::vector{Codec::kNone}) {
    return absl::InvalidArgumentError("--codec: the library has none");
  }
  settings.plot_dtype = *dtype;
  settings.plot_ranks = flags.ranks == 0 ? 2 : flags.ranks;
  if (flags.bytes.empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<uint64_t>> sizes = ParseByteList(flags.bytes, "--bytes");
  if (!sizes.ok()) return sizes.status();
  for (const Codec codec : *codecs) {
    for (const uint64_t bytes : *sizes) {
      settings.cases.push_back({settings.plot_ranks, bytes, *dtype, codec, *algorithm});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSettings> MakeModelSettings(const ModelFlags& flags) {
  ModelSettings settings;
  settings.output = flags.output;
  settings.plot = flags.plot;
  settings.all_figures = flags.all_figures;
  settings.one_machine = !flags.machine.empty();
  const bool about_cases = flags.ranks != 0 || !flags.bytes.empty() || !flags.codecs.empty() ||
                           !flags.algorithm.empty() || !flags.dtype.empty() || !flags.plot.empty();
  if (!settings.one_machine) {
    if (about_cases || flags.link_gbps || flags.latency_us || flags.memory_gbps) {
      return absl::InvalidArgumentError("--machine: want one machine for a prediction");
    }
    settings.machines.assign(ModelMachines().begin(), ModelMachines().end());
    return settings;
  }
  absl::StatusOr<ModelMachine> machine = FindModelMachine(flags.machine);
  if (!machine.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", machine.status().message()));
  }
  if (absl::Status s = Override(flags, *machine); !s.ok()) return s;
  settings.machines = {*machine};
  if (!about_cases) return settings;
  if (flags.bytes.empty() && flags.plot.empty()) {
    return absl::InvalidArgumentError("--bytes: want at least one size for a prediction");
  }
  if (flags.all_figures) {
    return absl::InvalidArgumentError("--all: goes with the published figures only");
  }
  if (absl::Status s = AddCases(flags, settings); !s.ok()) return s;
  // What the model cannot say is an error of the arguments, and found before anything is printed.
  ModelCase probe;
  probe.ranks = settings.plot_ranks;
  probe.payload_bytes = uint64_t{1} << 20;
  std::vector<ModelCase> all = settings.cases;
  all.push_back(probe);
  for (const ModelCase& c : all) {
    const absl::StatusOr<Prediction> p = Predict(*machine, c);
    if (!p.ok()) return absl::InvalidArgumentError(absl::StrCat("--", p.status().message()));
  }
  return settings;
}

int RunModel(const ModelSettings& settings) {
  absl::StatusOr<std::string> text = settings.cases.empty() && settings.plot.empty()
                                         ? ComparisonText(settings)
                                     : settings.cases.empty() ? absl::StatusOr<std::string>("")
                                                              : PredictionText(settings);
  if (!text.ok()) return Fail("qrbench", text.status(), kExitFailed);
  Print(*text);
  if (settings.plot.empty()) return kExitOk;
  const absl::Status written = WriteFile(settings.plot, ModelPlot(settings));
  if (!written.ok()) return Fail("qrbench", written, kExitFailed);
  std::fprintf(stderr, "qrbench: wrote %s\n", settings.plot.c_str());
  return kExitOk;
}

void AddModelCommand(CommandLine& line) {
  static ModelFlags flags;
  CLI::App* app = line.Leaf(
      &line.root(), "model",
      "Predict all-reduce times of machines; without --bytes: against published figures", [] {
        absl::StatusOr<ModelSettings> settings = MakeModelSettings(flags);
        if (!settings.ok()) return Fail("qrbench", settings.status(), kExitUsage);
        return RunModel(*settings);
      });
  app->add_option(
         "--machine", flags.machine,
         "mi300x, mi355x, h200 (all ranks on one device), h200-nvlink (a placeholder: needs "
         "--link-gbps and --latency-us); default: all of them")
      ->type_name("NAME");
  app->add_option("--ranks", flags.ranks, "1 to 16; default 2")
      ->type_name("N")
      ->check(WholeNumber(1, kWorldSizeMax));
  app->add_option("--bytes", flags.bytes, "Payloads of a rank, a list such as 1M,64M")
      ->type_name("LIST");
  app->add_option("--codec", flags.codecs, "none (default), int8, ... or all")->type_name("LIST");
  app->add_option("--algorithm", flags.algorithm, "two_shot (default), one_shot or library")
      ->type_name("NAME");
  app->add_option("--dtype", flags.dtype, "fp16 (default), bf16 or fp32")->type_name("DTYPE");
  app->add_option("--link-gbps", flags.link_gbps,
                  "Usable bandwidth of a link and direction (with a switch: of a GPU), GB/s")
      ->type_name("X")
      ->check(Within(1e-3, 1e6));
  app->add_option("--latency-us", flags.latency_us,
                  "Fixed time of an operation, in place of the machine's")
      ->type_name("X")
      ->check(Within(0, 1e6));
  app->add_option("--memory-gbps", flags.memory_gbps, "Read and written bytes of a copy, GB/s")
      ->type_name("X")
      ->check(Within(1e-3, 1e6));
  app->add_flag("--all", flags.all_figures, "All published figures, not only those to be met");
  app->add_option("-o,--output", flags.output, "table (default), csv or json")
      ->check(CLI::IsMember({"table", "csv", "json"}));
  app->add_option("--plot", flags.plot, "Write a plot of time over the payload by codec (SVG)")
      ->type_name("FILE");
  app->footer(
      "Examples:\n"
      "  qrbench model\n"
      "  qrbench model --machine mi300x --ranks 4 --bytes 64M --codec int4\n"
      "  qrbench model --machine mi355x --ranks 8 --plot mi355x.svg");
}

}  // namespace qrd::tools
