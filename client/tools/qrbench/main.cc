// SPDX-License-Identifier: Apache-2.0
// qrbench: times all-reduces through a running qrd, checks their numerics.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/tools/common/args.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/qrbench/compare.h"
#include "client/tools/qrbench/flags.h"
#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/live.h"
#include "client/tools/qrbench/model_command.h"
#include "client/tools/qrbench/relay.h"
#include "client/tools/qrbench/tune_command.h"
#include "qrd/qrd.h"

namespace qrd::tools {
namespace {

// Files that cannot be used are no usage errors.
int CodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

void AddAllReduce(CommandLine& line, const std::string& command) {
  static AllReduceFlags flags;
  static CLI::App* app = nullptr;
  app = line.Leaf(
      &line.root(), "all_reduce", "Time and check all-reduces through a running daemon", [command] {
        const absl::StatusOr<bool> sizes_given = SizesGiven(*app);
        if (!sizes_given.ok()) return Fail("qrbench", sizes_given.status(), kExitUsage);
        absl::StatusOr<AllReduceSettings> settings = MakeAllReduceSettings(flags, *sizes_given);
        if (!settings.ok()) {
          return Fail("qrbench", settings.status(), CodeOf(settings.status()));
        }
        settings->command = command;
        return RunAllReduce(*std::move(settings));
      });
  AddAllReduceFlags(app, &flags);
  app->footer(
      "Examples:\n"
      "  qrbench all_reduce --start-daemon --codecs none,int8,int4 --plot out.svg\n"
      "  qrbench all_reduce --input a.npy,b.npy --codecs all -o json\n"
      "  qrbench all_reduce --join --rank 1 --ranks 2 --sizes 1M");
}

void AddGolden(CommandLine& line) {
  static GoldenSettings settings;
  CLI::App* app = line.Leaf(&line.root(), "golden", "Check a folder of golden vectors",
                            [] { return RunGolden(settings); });
  AddGoldenFlags(app, &settings);
}

void AddAccuracy(CommandLine& line) {
  static AccuracyFlags flags;
  CLI::App* app = line.Leaf(
      &line.root(), "accuracy", "SQNR of each codec on given tensors, computed in process", [] {
        absl::StatusOr<AccuracySettings> settings = MakeAccuracySettings(flags);
        if (!settings.ok()) {
          return Fail("qrbench", settings.status(), CodeOf(settings.status()));
        }
        return RunAccuracy(*settings);
      });
  AddAccuracyFlags(app, &flags);
}

void AddRelay(CommandLine& line) {
  static uint32_t iterations = 5000;
  CLI::App* app = line.Leaf(
      &line.root(), "relay",
      "Three processes waking each other by futexes: the least a served operation costs", [] {
        InstallInterruptHandlers();
        const absl::StatusOr<RelayTimes> times = MeasureRelay(iterations, iterations / 10);
        if (!times.ok()) {
          return Fail("qrbench", times.status(), Interrupted() ? kExitInterrupted : kExitFailed);
        }
        std::printf("futex relay, 3 processes, %u iterations: p50 %.1f us, p99 %.1f us\n",
                    times->iterations, times->p50_us, times->p99_us);
        return static_cast<int>(kExitOk);
      });
  app->add_option("--iters", iterations, "1 to 1000000; default 5000")
      ->type_name("N")
      ->check(WholeNumber(1, 1'000'000));
}

}  // namespace
}  // namespace qrd::tools

int main(int argc, char** argv) {
  using namespace qrd::tools;
  CommandLine line("qrbench", "Times all-reduces through a running qrd and checks their numerics.",
                   absl::StrCat("qrbench ", qrd_version()));
  std::string command;
  for (int i = 0; i < argc; ++i) absl::StrAppend(&command, i == 0 ? "" : " ", argv[i]);
  AddAllReduce(line, command);
  AddGolden(line);
  AddAccuracy(line);
  AddLiveCommand(line);
  AddCompareCommand(line);
  AddModelCommand(line);
  AddTuneCommand(line);
  AddRelay(line);
  return line.Main(argc, argv);
}
