// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/flags.h"

namespace qrd::tools {
namespace {

void AddTensorFlags(CLI::App* app, TensorFlags* flags, const std::string& codecs_help,
                    const std::string& algorithms_help) {
  app->add_option("--dtypes", flags->dtypes,
                  "fp16, bf16, fp32 or all; default bf16, with --input that of the files")
      ->type_name("LIST");
  app->add_option("--codecs", flags->codecs, codecs_help)->type_name("LIST");
  app->add_option("--algorithms", flags->algorithms, algorithms_help)->type_name("LIST");
  app->add_option("--op", flags->op, "sum (default) or avg")->type_name("OP");
  app->add_option("--ranks", flags->ranks, "1 to 16; default 2, with --input one a file")
      ->type_name("N")
      ->check(WholeNumber(1, kWorldSizeMax));
  app->add_option(
         "--input", flags->input,
         "Real tensors: .npy files a.npy,b.npy, one a rank, of equal size (<f2, <f4, <f8, or "
         "<u2 for bfloat16 bits)")
      ->type_name("FILES");
  app->add_option("--seed", flags->seed, "Of synthetic (Gaussian) input; default 1")
      ->type_name("N")
      ->check(WholeNumber(0, UINT64_MAX));
}

}  // namespace

void AddDaemonFlags(CLI::App* app, bool* start_daemon, std::string* program,
                    ConnectionFlags* connection) {
  app->add_flag("--start-daemon", *start_daemon,
                "Start a private qrd in a temporary directory for this run");
  app->add_option("--daemon", *program,
                  "With --start-daemon: the program; default: beside qrbench, "
                  "else in $PATH")
      ->type_name("PATH");
  AddConnectionFlags(app, connection);
}

void AddGpuFlags(CLI::App* app, AllReduceFlags* flags) {
  AllReduceSettings& s = flags->settings;
  app->add_option("--backend", s.backend, "host (default) or gpu: where the tensors are")
      ->check(CLI::IsMember({"host", "gpu"}));
  app->add_option("--order", s.order,
                  "With --backend gpu: host (post and wait), stream (on a stream; default), or "
                  "graph (20 operations captured and replayed). Timed by marks in the stream but "
                  "for host")
      ->check(CLI::IsMember({"host", "stream", "graph"}))
      ->default_str("");
  app->add_option("--devices", flags->devices,
                  "With --backend gpu: PCI addresses such as 0000:1b:00.0, one or one a rank; "
                  "default: all that the process sees, by turns")
      ->type_name("LIST");
}

void AddSizeFlags(CLI::App* app, AllReduceFlags* flags) {
  app->add_option("-b,--min-bytes", flags->min_bytes, "Smallest payload of a rank; default 4K")
      ->type_name("BYTES");
  app->add_option("-e,--max-bytes", flags->max_bytes, "Largest payload; default 64M")
      ->type_name("BYTES");
  app->add_option("-f,--factor", flags->factor, "From one size to the next; default 4")
      ->type_name("X")
      ->check(Within(1, 1e6));
  app->add_option("--sizes", flags->sizes, "Instead of -b, -e, -f: a list such as 4K,1M")
      ->type_name("LIST")
      ->check([](const std::string& list) {
        return list.empty() ? std::string("is empty; want a list such as 4K,1M") : std::string();
      });
}

absl::StatusOr<bool> SizesGiven(const CLI::App& app) {
  bool range = false;
  for (const char* flag : {"--min-bytes", "--max-bytes", "--factor"}) range |= app.count(flag) > 0;
  const bool list = app.count("--sizes") > 0;
  if (!range || !list) return range || list;
  return absl::InvalidArgumentError("--sizes does not go with -b, -e or -f: it names all sizes");
}

void AddAllReduceFlags(CLI::App* app, AllReduceFlags* flags) {
  AllReduceSettings& s = flags->settings;
  AddSizeFlags(app, flags);
  AddTensorFlags(
      app, &flags->tensors,
      "auto (default: what the daemon's policy says), none, int8, ... or all. A named "
      "codec is set by a rule for this run's communicator; the old policy comes back "
      "afterwards, also after Ctrl-C. Needs admin rights",
      "auto (default), one_shot, two_shot, all (of these two) or library; set like the codec");
  app->add_option(
         "--groups", s.groups,
         "So many groups of --ranks processes at the same time, 64 processes in all; default 1")
      ->type_name("K")
      ->check(WholeNumber(1, kProcessesMax));
  app->add_flag("--join", s.join,
                "Be one rank of a group that other processes form with the same flags "
                "(rank 0 sets the policy and reports)");
  app->add_option("--rank", s.rank, "With --join: 0 to ranks - 1")
      ->type_name("R")
      ->check(WholeNumber(0, kWorldSizeMax - 1));
  app->add_option("--communicator", s.communicator,
                  "Default: qrbench-PID, deleted afterwards if this user may; with --join: qrbench")
      ->type_name("NAME");
  app->add_option("--group", s.group, "Default: default")->type_name("NAME");
  app->add_option("--iters", s.iterations,
                  "Timed operations of each size; default 20 to 1000, by size")
      ->type_name("N")
      ->check(WholeNumber(1, kIterationsMax));
  app->add_option("--warmup", s.warmup, "Untimed operations before; default a tenth")
      ->type_name("N")
      ->check(WholeNumber(1, kIterationsMax));
  app->add_option("--buffers", s.buffers, "Pairs of buffers used in turn; default 2 to 8, by size")
      ->type_name("N")
      ->check(WholeNumber(1, 64));
  app->add_flag("--in-place", s.in_place,
                "Output over input (restored before each operation, untimed)");
  app->add_flag("--staged", s.staged, "Buffers in private memory, which the library must copy");
  AddGpuFlags(app, flags);
  app->add_option(
         "--check-bytes", flags->check_bytes,
         "Compare with the scalar reference up to this payload; default 4M. All results are "
         "compared between the ranks")
      ->type_name("BYTES");
  app->add_option("-o,--output", s.output, "table (default), csv or json")
      ->check(CLI::IsMember({"table", "csv", "json"}));
  app->add_option("--plot", s.plot, "Write a plot of time and SQNR over the payload (SVG)")
      ->type_name("FILE");
  AddDaemonFlags(app, &s.start_daemon, &s.daemon_program, &s.connection);
}

void AddAccuracyFlags(CLI::App* app, AccuracyFlags* flags) {
  AddTensorFlags(app, &flags->tensors, "none, int8, ... or all (default)",
                 "one_shot, two_shot or all (default)");
  app->add_option("--count", flags->count,
                  "Elements of synthetic input, 1 to 268435456; default 1048576")
      ->type_name("N")
      ->check(WholeNumber(1, kAccuracyCountMax));
  app->add_option("-o,--output", flags->output, "table (default), markdown, csv or json")
      ->check(CLI::IsMember({"table", "markdown", "csv", "json"}));
}

void AddGoldenFlags(CLI::App* app, GoldenSettings* settings) {
  app->add_option(
         "DIR", settings->directory,
         "Folder with index.json, inputs.bin and any of wire.bin, decoded.bin, results.bin; or a "
         "folder of epilogues (format qrd-epilogue-golden), in process only")
      ->required()
      ->type_name("");
  app->add_option("--backend", settings->backend,
                  "host (default) or gpu (the first one that this process sees)")
      ->type_name("NAME");
  CLI::Option* in_process =
      app->add_flag("--in-process", settings->in_process,
                    "All-reduce cases by the backend in this process (default)");
  app->add_flag("--served", settings->served,
                "All-reduce cases by a running daemon with one process a rank (sets the policy for "
                "its own communicators meanwhile; needs admin rights)")
      ->excludes(in_process);
  app->add_flag("--verbose", settings->verbose, "Print all failures, not only the first 20");
  AddDaemonFlags(app, &settings->start_daemon, &settings->daemon_program, &settings->connection);
}

}  // namespace qrd::tools
