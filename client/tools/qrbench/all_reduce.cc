// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/all_reduce.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/tools/common/args.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/plot_results.h"
#include "client/tools/qrbench/policy_override.h"
#include "client/tools/qrbench/private_daemon.h"
#include "client/tools/qrbench/progress.h"
#include "client/tools/qrbench/rank_set.h"
#include "client/tools/qrbench/report.h"
#include "client/tools/qrbench/rows.h"
#include "qrd/qrd.h"

namespace qrd::tools {
namespace {

constexpr uint32_t kRelayIterations = 2000;

// A run in its order: daemon, relay, ranks (all that forks), control plane, cases, clean-up.
class AllReduceRun {
 public:
  explicit AllReduceRun(AllReduceSettings settings) : settings_(std::move(settings)) {}

  int Execute();

 private:
  absl::Status Prepare();
  absl::Status ConnectControl();
  absl::Status RunCases();
  absl::Status RunCase(const BenchCase& c);
  absl::Status UsePolicy(const std::string& codec, const std::string& algorithm);
  absl::Status CleanUp();
  absl::Status CheckLibrary();
  absl::Status Attach();
  uint64_t CountOf(uint64_t bytes, Dtype dtype) const;
  uint32_t IterationsOf(uint64_t bytes) const;
  uint32_t BuffersOf(uint64_t bytes) const;
  bool Leads() const { return !settings_.join || settings_.rank == 0; }
  std::string SettingsLine() const;
  std::optional<double> DeviceLimitGbps(const BenchCase& c, const CaseReply& reply) const;

  AllReduceSettings settings_;
  std::string runtime_directory_;
  std::unique_ptr<PrivateDaemon> daemon_;
  std::unique_ptr<RankSet> ranks_;
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<PolicyOverride> policy_;
  std::unique_ptr<ReportWriter> writer_;
  MachineLimits limits_;
  double copy_bytes_per_second_ = 0;  // of the one GPU that all ranks share
  RunInfo info_;
  std::vector<Row> rows_;
  bool wrong_results_ = false;
};

uint64_t AllReduceRun::CountOf(uint64_t bytes, Dtype dtype) const {
  return settings_.source.files.empty() ? bytes / DtypeBytes(dtype)
                                        : settings_.source.files[0].size();
}

uint32_t AllReduceRun::IterationsOf(uint64_t bytes) const {
  return settings_.iterations != 0 ? settings_.iterations : AutoIterations(bytes);
}

uint32_t AllReduceRun::BuffersOf(uint64_t bytes) const {
  return settings_.buffers != 0 ? settings_.buffers : AutoBuffers(bytes);
}

std::string AllReduceRun::SettingsLine() const {
  return absl::StrCat(
      settings_.ranks, " ranks", settings_.join ? " (one of them here)" : "", ", ",
      settings_.groups, settings_.groups == 1 ? " group, " : " groups, ",
      std::string(Name(settings_.op)), ", ", settings_.in_place ? "in place" : "out of place", ", ",
      settings_.staged ? "staged (private memory)" : "zero copy", ", ",
      settings_.backend == "gpu" ? absl::StrCat("on GPUs, order ", settings_.order, ", ") : "",
      settings_.source.files.empty() ? absl::StrCat("synthetic input, seed ", settings_.source.seed)
                                     : "input from files",
      ", communicator ", settings_.communicator);
}

// All ranks on one GPU: each reads its input and writes its output once, and without a direct
// algorithm writes and reads its wire bytes twice (performance page: 2S + 4cS), at the rate of a
// copy.
std::optional<double> AllReduceRun::DeviceLimitGbps(const BenchCase& c,
                                                    const CaseReply& reply) const {
  const auto bytes = static_cast<double>(c.count * DtypeBytes(c.dtype));
  if (copy_bytes_per_second_ == 0 || bytes == 0) return std::nullopt;
  const double wire =
      reply.codec == Codec::kNone
          ? 0
          : 4 * static_cast<double>(EncodedBytes(reply.codec, c.dtype, c.count)) / bytes;
  return copy_bytes_per_second_ / (settings_.ranks * settings_.groups * (2 + wire)) / 1e9;
}

absl::Status AllReduceRun::Prepare() {
  if (settings_.start_daemon) {
    absl::StatusOr<std::unique_ptr<PrivateDaemon>> daemon =
        PrivateDaemon::Start(settings_.daemon_program);
    if (!daemon.ok()) return daemon.status();
    daemon_ = *std::move(daemon);
    settings_.connection.runtime_directory = daemon_->runtime_directory();
  }
  absl::StatusOr<std::string> directory =
      FindRuntimeDirectory(settings_.connection.runtime_directory);
  // Before anything is forked: is a daemon there at all?
  const absl::StatusOr<int> fd =
      directory.ok() ? ConnectControlSocket(*directory) : absl::StatusOr<int>(directory.status());
  if (!fd.ok()) {
    return absl::Status(fd.status().code(), absl::StrCat(fd.status().message(),
                                                         "; or let qrbench start a private one "
                                                         "with --start-daemon"));
  }
  close(*fd);
  runtime_directory_ = *directory;
  if (settings_.ranks == 2 && settings_.groups == 1 && !settings_.join &&
      settings_.backend == "host") {
    Progress("measuring the futex relay");
    absl::StatusOr<RelayTimes> relay = MeasureRelay(kRelayIterations, kRelayIterations / 10);
    if (!relay.ok()) return relay.status();
    info_.relay = *relay;
  }
  uint32_t iterations_max = settings_.iterations;
  for (const uint64_t bytes : settings_.sizes) {
    iterations_max = std::max(iterations_max, IterationsOf(bytes));
  }
  if (settings_.sizes.empty()) iterations_max = std::max(iterations_max, AutoIterations(0));
  absl::StatusOr<std::unique_ptr<RankSet>> ranks =
      RankSet::Start(settings_, runtime_directory_, iterations_max);
  if (!ranks.ok()) return ranks.status();
  ranks_ = *std::move(ranks);
  return absl::OkStatus();
}

absl::Status AllReduceRun::ConnectControl() {
  ConnectionFlags flags = settings_.connection;
  flags.runtime_directory = runtime_directory_;
  absl::StatusOr<std::unique_ptr<ControlClient>> control = ControlClient::Connect(flags);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  v1::NodeStatus status;
  const absl::Status called = control_->Call(&v1::NodeService::Stub::GetStatus, control_->node(),
                                             v1::GetStatusRequest(), &status);
  if (!called.ok()) return called;
  info_.daemon = absl::StrCat("qrd ", status.version(), " at ", runtime_directory_, ", pid ",
                              status.pid(), ", ", status.worker_threads(), " worker threads");
  policy_ = std::make_unique<PolicyOverride>(control_.get(), settings_.communicator,
                                             absl::StrCat("qrbench-", getpid()));
  return absl::OkStatus();
}

// `library` is a plan that the daemon makes where it can: without one it would measure another.
absl::Status AllReduceRun::CheckLibrary() {
  if (std::find(settings_.algorithms.begin(), settings_.algorithms.end(), "library") ==
      settings_.algorithms.end()) {
    return absl::OkStatus();
  }
  v1::Capabilities capabilities;
  const absl::Status called =
      control_->Call(&v1::NodeService::Stub::GetCapabilities, control_->node(),
                     v1::GetCapabilitiesRequest(), &capabilities);
  if (!called.ok()) return called;
  const auto wanted = settings_.backend == "gpu" ? v1::BACKEND_GPU : v1::BACKEND_HOST;
  std::string why = "the host backend has none";
  for (const v1::BackendCapability& backend : capabilities.backends()) {
    if (backend.backend() != wanted || wanted == v1::BACKEND_HOST) continue;
    if (!backend.collective_library().empty()) return absl::OkStatus();
    why = backend.collective_library_missing();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--algorithms library: the daemon offers no collective library: ", why));
}

absl::Status AllReduceRun::Attach() {
  CaseRequest request;
  request.kind = CaseRequest::kAttach;
  request.staged = settings_.staged;
  for (const Dtype dtype : settings_.dtypes) {
    std::vector<uint64_t> sizes = settings_.sizes;
    if (sizes.empty()) sizes.push_back(CountOf(0, dtype) * DtypeBytes(dtype));
    for (const uint64_t bytes : sizes) {
      request.pool_bytes =
          std::max(request.pool_bytes, PoolBytes(bytes, BuffersOf(bytes), settings_.in_place));
    }
  }
  Progress(absl::StrCat("attaching ", settings_.ranks, " ranks"));
  const absl::StatusOr<std::vector<CaseReply>> replies = ranks_->Ask(request);
  if (!replies.ok()) return replies.status();
  copy_bytes_per_second_ = replies->front().copy_bytes_per_second;
  return absl::OkStatus();
}

absl::Status AllReduceRun::UsePolicy(const std::string& codec, const std::string& algorithm) {
  if (!Leads()) return absl::OkStatus();
  if (codec == "auto" && algorithm == "auto") return policy_->Restore();
  absl::StatusOr<v1::Codec> codec_value = ParseCodecFlag(codec, "--codecs");
  if (!codec_value.ok()) return codec_value.status();
  absl::StatusOr<v1::Algorithm> algorithm_value = ParseAlgorithmFlag(algorithm, "--algorithms");
  if (!algorithm_value.ok()) return algorithm_value.status();
  return policy_->Set(*codec_value, *algorithm_value);
}

absl::Status AllReduceRun::RunCases() {
  const size_t total = settings_.dtypes.size() * settings_.codecs.size() *
                       settings_.algorithms.size() * std::max<size_t>(1, settings_.sizes.size());
  size_t done = 0;
  for (const Dtype dtype : settings_.dtypes) {
    for (const std::string& codec : settings_.codecs) {
      for (const std::string& algorithm : settings_.algorithms) {
        if (absl::Status status = UsePolicy(codec, algorithm); !status.ok()) return status;
        std::vector<uint64_t> sizes = settings_.sizes;
        if (sizes.empty()) sizes.push_back(CountOf(0, dtype) * DtypeBytes(dtype));
        for (const uint64_t bytes : sizes) {
          if (Leads() && OutputIsLost())
            return absl::CancelledError("standard output takes no more");
          Progress(absl::StrFormat("[%d/%d] %s %s %s %s", ++done, total, std::string(Name(dtype)),
                                   codec, algorithm, HumanBytes(bytes)));
          const absl::Status status = RunCase({CountOf(bytes, dtype), dtype, codec, algorithm});
          if (!status.ok()) return status;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AllReduceRun::RunCase(const BenchCase& c) {
  const uint64_t bytes = c.count * DtypeBytes(c.dtype);
  CaseRequest request;
  request.kind = CaseRequest::kRun;
  request.count = c.count;
  request.dtype = c.dtype;
  request.op = settings_.op;
  request.iterations = IterationsOf(bytes);
  request.warmup = settings_.warmup != 0 ? settings_.warmup : AutoWarmup(request.iterations);
  request.buffers = BuffersOf(bytes);
  request.in_place = settings_.in_place;
  request.staged = settings_.staged;
  request.check_reference = bytes <= settings_.check_bytes_max;
  absl::StatusOr<std::vector<CaseReply>> replies = ranks_->Ask(request);
  if (absl::IsCancelled(replies.status())) return replies.status();
  Row row = BaseRow(settings_, c);
  if (replies.ok()) {
    std::optional<double> limit;
    if (settings_.backend == "gpu") {
      limit = DeviceLimitGbps(c, replies->front());
    } else if (Leads() && !Interrupted()) {
      limit = limits_.AlgorithmGbps(bytes, settings_.ranks);
    }
    FillRow(settings_, c, *replies, ranks_->IterationTimes(request.iterations), limit, row);
  } else {
    row.check = "FAILED";
    row.error = std::string(replies.status().message());
  }
  wrong_results_ |= !row.error.empty();
  rows_.push_back(row);
  ClearProgress();
  if (Leads()) writer_->Add(row);
  return replies.status();
}

// Always runs, whatever happened before: ranks away, then the policy back, then the communicator.
absl::Status AllReduceRun::CleanUp() {
  ranks_.reset();
  if (policy_ == nullptr) return absl::OkStatus();
  const absl::Status restored = policy_->Restore();
  if (settings_.communicator == absl::StrCat("qrbench-", getpid())) {
    DeleteOwnCommunicator(*control_, settings_.communicator);
  }
  return restored;
}

int AllReduceRun::Execute() {
  InstallInterruptHandlers();
  info_.version = qrd_version();
  info_.machine = DescribeMachine();
  info_.command = settings_.command;
  if (settings_.communicator.empty()) {
    settings_.communicator = settings_.join ? "qrbench" : absl::StrCat("qrbench-", getpid());
  }
  info_.settings = SettingsLine();
  writer_ = MakeReportWriter(settings_.output, stdout);
  // Before minutes of measuring.
  absl::Status status = settings_.plot.empty() ? absl::OkStatus() : CheckWritable(settings_.plot);
  if (status.ok()) status = Prepare();
  if (status.ok()) status = ConnectControl();
  if (status.ok()) status = CheckLibrary();
  if (status.ok()) status = Attach();
  ClearProgress();
  const bool began = status.ok();
  if (began && Leads()) writer_->Begin(info_);
  if (began) status = RunCases();
  ClearProgress();
  const absl::Status cleaned = CleanUp();
  if (began && Leads()) writer_->End(info_, rows_);
  if (!settings_.plot.empty() && Leads() && !rows_.empty()) {
    const absl::Status plotted = WriteFile(settings_.plot, PlotResults(info_, rows_));
    if (!plotted.ok()) return Fail("qrbench", plotted, kExitFailed);
    std::fprintf(stderr, "qrbench: wrote %s\n", settings_.plot.c_str());
  }
  if (!cleaned.ok()) {
    Fail("qrbench", absl::InternalError(absl::StrCat("policy not put back: ", cleaned.message())),
         1);
  }
  if (Interrupted()) return Fail("qrbench", absl::CancelledError("interrupted"), kExitInterrupted);
  if (!status.ok()) return Fail("qrbench", status, began ? kExitFailed : ExitCodeOf(status));
  if (wrong_results_)
    return Fail("qrbench", absl::DataLossError("wrong results, see above"), kExitFailed);
  return cleaned.ok() ? kExitOk : kExitFailed;
}

}  // namespace

uint32_t AutoIterations(uint64_t payload_bytes) {
  constexpr uint64_t kBytesOfAll = uint64_t{1} << 30;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(kBytesOfAll / std::max<uint64_t>(payload_bytes, 1), 20, 1000));
}

uint32_t AutoWarmup(uint32_t iterations) { return std::clamp<uint32_t>(iterations / 10, 3, 100); }

int RunAllReduce(AllReduceSettings settings) { return AllReduceRun(std::move(settings)).Execute(); }

}  // namespace qrd::tools
