// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tune_command.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/machine.h"
#include "client/tools/qrbench/plan_quality.h"
#include "client/tools/qrbench/progress.h"
#include "client/tools/qrbench/tune_policy.h"
#include "qrd/qrd.h"

namespace qrd::tools {
namespace {

constexpr double kMarginPercentMin = 0.1, kMarginPercentMax = 50, kBudgetSMax = 86'400;
constexpr uint64_t kSyntheticElements = uint64_t{1} << 18;

absl::Status CheckRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": ", value, " is not within ", low, " to ", high));
}

absl::StatusOr<std::vector<uint32_t>> ParseRanks(const std::string& list) {
  absl::StatusOr<std::vector<std::string>> names = ParseNames(list, "--ranks");
  if (!names.ok()) return names.status();
  std::vector<uint32_t> ranks;
  uint32_t processes = 0;
  for (const std::string& name : *names) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(name, &number) || number < 2 || number > kWorldSizeMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ranks: ", name, " is not within 2 to ", kWorldSizeMax));
    }
    if (std::find(ranks.begin(), ranks.end(), number) != ranks.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--ranks: ", number, " is named twice"));
    }
    ranks.push_back(number);
    processes += number;
  }
  if (processes > kProcessesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks: ", processes, " processes in all; want at most ", kProcessesMax));
  }
  return ranks;
}

absl::StatusOr<std::vector<Codec>> ParseTuneCodecs(const std::vector<std::string>& names) {
  std::vector<Codec> codecs = {Codec::kNone};
  for (const std::string& name : names) {
    if (name == "auto") {
      return absl::InvalidArgumentError("--codecs: auto is what tune replaces; name codecs or all");
    }
    if (name != "none") codecs.push_back(*ParseCodec(name));
  }
  return codecs;
}

absl::Status ReadSource(const TuneFlags& flags, TuneSettings& settings) {
  settings.source.seed = flags.run.tensors.seed;
  if (flags.run.tensors.input.empty()) return absl::OkStatus();
  AllReduceFlags files;
  files.tensors.input = flags.run.tensors.input;
  absl::StatusOr<AllReduceSettings> read = MakeAllReduceSettings(files, /*sizes_given=*/false);
  if (!read.ok()) return read.status();
  settings.source = std::move(read->source);
  for (const uint32_t ranks : settings.daemon.ranks) {
    if (ranks <= settings.source.files.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--input: ", settings.source.files.size(),
                                                   " files for --ranks ", ranks,
                                                   "; want at least one file a rank"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TuneSearch> PlanSearch(const TuneSettings& settings) {
  TuneSearch search;
  search.sizes = settings.daemon.sizes;
  search.budget_s = settings.budget_s;
  for (const uint32_t ranks : settings.daemon.ranks) {
    for (const Dtype dtype : settings.dtypes) {
      Progress(absl::StrCat("accuracy of each codec, ", ranks, " ranks"));
      absl::StatusOr<TuneTable> table = PlansOf(settings, ranks, dtype);
      if (!table.ok()) return table.status();
      search.tables.push_back(*std::move(table));
      if (Interrupted()) return absl::CancelledError("interrupted");
    }
  }
  return search;
}

TuneReport ReportOf(const TuneSettings& settings, const TuneDaemon& daemon) {
  TuneReport report;
  report.version = qrd_version();
  const Machine machine = DescribeMachine();
  report.machine = absl::StrCat(machine.cpu, ", ", machine.cores, " cores, ", machine.kernel);
  report.daemon = daemon.daemon();
  report.backend = daemon.backend();
  report.input = settings.source.files.empty()
                     ? absl::StrCat("of synthetic Gaussian tensors, seed ", settings.source.seed)
                     : absl::StrCat("of the tensors of --input, ", settings.source.files[0].size(),
                                    " elements a rank");
  report.margin = settings.margin;
  report.floor_db = settings.floor_db;
  report.budget_s = settings.budget_s;
  return report;
}

// Measured and found good by the daemon.
absl::StatusOr<TuneReport> Measure(const TuneSettings& settings, TuneDaemon& daemon) {
  absl::StatusOr<TuneSearch> search = PlanSearch(settings);
  if (!search.ok()) return search.status();
  const double start_s = daemon.Seconds();
  absl::StatusOr<std::vector<TuneTable>> tables = MeasureTables(*search, daemon);
  if (!tables.ok()) return tables.status();
  TuneReport report = ReportOf(settings, daemon);
  report.used_s = daemon.Seconds() - start_s;
  report.tables = *std::move(tables);
  if (absl::Status valid = daemon.Validate(TunePolicy(report)); !valid.ok()) return valid;
  return report;
}

int RunTune(const TuneSettings& settings) {
  InstallInterruptHandlers();
  // Finds out before the accuracy is computed whether there is a daemon.
  absl::StatusOr<std::unique_ptr<TuneDaemon>> daemon = TuneDaemon::Start(settings.daemon);
  if (!daemon.ok()) return Fail("qrbench", daemon.status(), ExitCodeOf(daemon.status()));
  const absl::StatusOr<TuneReport> report = Measure(settings, **daemon);
  const absl::Status restored = (*daemon)->Finish();
  if (!restored.ok()) {
    Fail("qrbench", absl::InternalError(absl::StrCat("policy not put back: ", restored.message())),
         kExitFailed);
  }
  if (Interrupted()) return Fail("qrbench", absl::CancelledError("interrupted"), kExitInterrupted);
  if (!report.ok()) return Fail("qrbench", report.status(), kExitFailed);
  const std::string text = TunePolicyText(*report);
  if (settings.output.empty()) {
    Print(text);
  } else if (const absl::Status written = WriteFile(settings.output, text); !written.ok()) {
    return Fail("qrbench", written, kExitFailed);
  } else {
    std::fprintf(stderr, "qrbench: wrote %s\n", settings.output.c_str());
  }
  return restored.ok() ? kExitOk : kExitFailed;
}

void AddTuneFlags(CLI::App* app, TuneFlags* flags) {
  AllReduceFlags& run = flags->run;
  app->add_option("--ranks", flags->ranks,
                  "World sizes, a list of 2 to 16, 64 processes in all; default 2")
      ->type_name("LIST");
  app->add_option("--dtypes", run.tensors.dtypes, "fp16, bf16, fp32 or all; default bf16")
      ->type_name("LIST");
  app->add_option("--codecs", run.tensors.codecs,
                  "Codecs that may be chosen besides none; default int8,int6,int4,lp4,lp3; or all")
      ->type_name("LIST");
  AddSizeFlags(app, &run);
  app->add_option("--min-sqnr-db", flags->floor_db,
                  "A codec whose whole all-reduce is less accurate than that on the input is never "
                  "chosen; default 20")
      ->type_name("DB")
      ->check(Within(-1000, 1000));
  app->add_option("--input", run.tensors.input,
                  "Tensors to compute the accuracy on, .npy files, one a rank; default synthetic")
      ->type_name("FILES");
  app->add_option("--seed", run.tensors.seed, "Of synthetic (Gaussian) input; default 1")
      ->type_name("N")
      ->check(WholeNumber(0, UINT64_MAX));
  app->add_option("--margin", flags->margin_percent,
                  "Percent by which a plan must win to replace another; default 5")
      ->type_name("PERCENT")
      ->check(Within(0, 1000));
  app->add_option("--budget-s", flags->budget_s,
                  "Seconds for measuring; payloads that do not fit are left out; default 120")
      ->type_name("S")
      ->check(Within(0.1, 86400));
  app->add_option("--output", flags->output, "Write the policy there; default: standard output")
      ->type_name("FILE");
  app->add_option("--communicator", run.settings.communicator,
                  "Measure on this one (a world size only); default: own ones, deleted afterwards")
      ->type_name("NAME");
  AddGpuFlags(app, &run);
  AddDaemonFlags(app, &run.settings.start_daemon, &run.settings.daemon_program,
                 &run.settings.connection);
  app->footer(
      "Needs admin rights: rules for the ranks' own communicators stand in front of the policy in\n"
      "force while it runs.\n"
      "Examples:\n"
      "  qrbench tune --ranks 2,4 --output tuned.textproto && qrctl policy set tuned.textproto\n"
      "  qrbench tune --start-daemon --sizes 64K,1M,16M --budget-s 30");
}

}  // namespace

absl::StatusOr<TuneSettings> MakeTuneSettings(const TuneFlags& flags, bool sizes_given) {
  TuneSettings settings;
  absl::StatusOr<std::vector<uint32_t>> ranks = ParseRanks(flags.ranks);
  if (!ranks.ok()) return ranks.status();
  AllReduceFlags run = flags.run;
  run.tensors.input.clear();
  if (run.tensors.codecs.empty()) run.tensors.codecs = "int8,int6,int4,lp4,lp3";
  absl::StatusOr<AllReduceSettings> parsed = MakeAllReduceSettings(run, sizes_given);
  if (!parsed.ok()) return parsed.status();
  absl::StatusOr<std::vector<Codec>> codecs = ParseTuneCodecs(parsed->codecs);
  if (!codecs.ok()) return codecs.status();
  settings.codecs = *std::move(codecs);
  settings.dtypes = parsed->dtypes;
  settings.daemon.ranks = *std::move(ranks);
  settings.daemon.sizes = parsed->sizes;
  std::sort(settings.daemon.sizes.begin(), settings.daemon.sizes.end());
  settings.daemon.communicator = parsed->communicator;
  settings.daemon.backend = parsed->backend;
  settings.daemon.order = parsed->order;
  settings.daemon.devices = parsed->devices;
  settings.daemon.start_daemon = parsed->start_daemon;
  settings.daemon.daemon_program = parsed->daemon_program;
  settings.daemon.connection = parsed->connection;
  if (!settings.daemon.communicator.empty() && settings.daemon.ranks.size() > 1) {
    return absl::InvalidArgumentError("--communicator: goes with one world size of --ranks only");
  }
  // NaN fails these too.
  for (const absl::Status& status :
       {CheckRange("--min-sqnr-db", flags.floor_db, -1000, 1000),
        CheckRange("--margin", flags.margin_percent, kMarginPercentMin, kMarginPercentMax),
        CheckRange("--budget-s", flags.budget_s, 1, kBudgetSMax)}) {
    if (!status.ok()) return status;
  }
  settings.floor_db = flags.floor_db;
  settings.margin = flags.margin_percent / 100;
  settings.budget_s = flags.budget_s;
  settings.output = flags.output;
  if (absl::Status status = ReadSource(flags, settings); !status.ok()) return status;
  return settings;
}

absl::StatusOr<TuneTable> PlansOf(const TuneSettings& settings, uint32_t ranks, Dtype dtype) {
  TuneTable table;
  table.ranks = ranks;
  table.dtype = dtype;
  const uint64_t count =
      settings.source.files.empty() ? kSyntheticElements : settings.source.files[0].size();
  const PlanQuality plans(settings.source, dtype, ReduceOp::kSum, ranks, count);
  for (const Codec codec : settings.codecs) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      const absl::StatusOr<Quality> quality = plans.Of(codec, algorithm);
      if (!quality.ok()) return quality.status();
      const TunePlan plan = {codec, algorithm, quality->sqnr_db};
      // NaN (nothing finite to compare) is under any floor.
      const bool accurate = codec == Codec::kNone || quality->sqnr_db >= settings.floor_db;
      (accurate ? table.plans : table.excluded).push_back(plan);
    }
  }
  return table;
}

void AddTuneCommand(CommandLine& line) {
  static TuneFlags flags;
  static CLI::App* app = nullptr;
  app = line.Leaf(&line.root(), "tune",
                  "Measure which codec and algorithm pay from which payload; prints a policy", [] {
                    const absl::StatusOr<bool> sizes_given = SizesGiven(*app);
                    if (!sizes_given.ok()) return Fail("qrbench", sizes_given.status(), kExitUsage);
                    absl::StatusOr<TuneSettings> settings = MakeTuneSettings(flags, *sizes_given);
                    if (settings.ok()) return RunTune(*settings);
                    return Fail(
                        "qrbench", settings.status(),
                        absl::IsInvalidArgument(settings.status()) ? kExitUsage : kExitFailed);
                  });
  AddTuneFlags(app, &flags);
}

}  // namespace qrd::tools
