// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/args.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/qrbench/golden_check.h"
#include "client/tools/qrbench/golden_epilogue.h"
#include "client/tools/qrbench/golden_gpu.h"
#include "client/tools/qrbench/golden_served.h"
#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/private_daemon.h"
#include "client/tools/qrbench/progress.h"

namespace qrd::tools {
namespace {

constexpr int kFailuresShown = 20;

class GoldenRun {
 public:
  explicit GoldenRun(const GoldenSettings& settings) : settings_(settings) {}

  int Execute();

 private:
  int ExecuteEpilogues();
  int Conclude(const absl::Status& status);
  absl::Status StartServing();
  absl::Status OpenGpu();
  absl::Status CheckAll();
  absl::StatusOr<CaseResult> CheckOne(const GoldenCase& c);
  void Count(const std::string& name, const CaseResult& result);

  const GoldenSettings& settings_;
  absl::StatusOr<GoldenFolder> folder_ = absl::UnknownError("not loaded");
  std::unique_ptr<PrivateDaemon> daemon_;
  std::unique_ptr<GoldenServer> server_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GoldenGpu> gpu_;  // null: the host's codecs and collectives
  int passed_ = 0, failed_ = 0, skipped_ = 0;
};

absl::Status GoldenRun::StartServing() {
  ConnectionFlags flags = settings_.connection;
  if (settings_.start_daemon) {
    absl::StatusOr<std::unique_ptr<PrivateDaemon>> daemon =
        PrivateDaemon::Start(settings_.daemon_program);
    if (!daemon.ok()) return daemon.status();
    daemon_ = *std::move(daemon);
    flags.runtime_directory = daemon_->runtime_directory();
  }
  absl::StatusOr<std::string> directory = FindRuntimeDirectory(flags.runtime_directory);
  if (!directory.ok()) return directory.status();
  const absl::StatusOr<int> fd = ConnectControlSocket(*directory);
  if (!fd.ok()) return fd.status();
  close(*fd);
  flags.runtime_directory = *directory;
  absl::StatusOr<std::unique_ptr<GoldenServer>> server =
      GoldenServer::Start(*folder_, *directory, settings_.backend == "gpu");
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return server_->Connect(flags);
}

absl::Status GoldenRun::OpenGpu() {
  absl::StatusOr<std::unique_ptr<GoldenGpu>> gpu = GoldenGpu::Open();
  // A build without kernels for GPUs can still serve: its codec cases are the host's then.
  if (!gpu.ok() && settings_.served && absl::IsFailedPrecondition(gpu.status())) {
    std::printf("note: codec cases by the host: %s\n", std::string(gpu.status().message()).c_str());
    return absl::OkStatus();
  }
  if (!gpu.ok()) return gpu.status();
  gpu_ = *std::move(gpu);
  return absl::OkStatus();
}

absl::StatusOr<CaseResult> GoldenRun::CheckOne(const GoldenCase& c) {
  if (!c.problem.empty()) return CaseResult{Verdict::kFailed, {c.problem}};
  if (!c.is_reduce && gpu_ != nullptr) return gpu_->CheckCodecCase(*folder_, c);
  if (!c.is_reduce) return CheckCodecCase(*folder_, c);
  if (server_ != nullptr) return server_->Check(c);
  if (gpu_ != nullptr) return gpu_->CheckReduceCase(*folder_, c);
  return CheckReduceCase(*folder_, c, *backend_);
}

void GoldenRun::Count(const std::string& name, const CaseResult& result) {
  if (result.verdict == Verdict::kPassed) ++passed_;
  if (result.verdict == Verdict::kSkipped) ++skipped_;
  if (result.verdict != Verdict::kFailed) return;
  if (++failed_ > kFailuresShown && !settings_.verbose) return;
  ClearProgress();
  std::printf("FAILED case %s\n", name.c_str());
  for (const std::string& difference : result.differences)
    std::printf("  %s\n", difference.c_str());
}

absl::Status GoldenRun::CheckAll() {
  std::vector<const GoldenCase*> order;
  for (const GoldenCase& c : folder_->cases()) order.push_back(&c);
  // Served: all cases of one number of ranks in a row, and of one plan, so that ranks attach once
  // and the policy changes seldom.
  if (settings_.served) {
    const auto key = [](const GoldenCase* c) {
      return c->is_reduce ? std::make_tuple(c->ranks, static_cast<int>(c->codec),
                                            static_cast<int>(c->algorithm))
                          : std::make_tuple(0u, 0, 0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](const GoldenCase* a, const GoldenCase* b) { return key(a) < key(b); });
  }
  size_t done = 0;
  for (const GoldenCase* c : order) {
    if (Interrupted()) return absl::CancelledError("interrupted");
    if (OutputIsLost()) return absl::CancelledError("standard output takes no more");
    if (done++ % 50 == 0) Progress(absl::StrFormat("[%d/%d] cases", done, order.size()));
    const absl::StatusOr<CaseResult> result = CheckOne(*c);
    if (!result.ok()) {
      return absl::Status(result.status().code(), absl::StrCat("case ", c->number, " ", c->name,
                                                               ": ", result.status().message()));
    }
    Count(c->name.empty() ? absl::StrCat(c->number) : absl::StrCat(c->number, " ", c->name),
          *result);
  }
  return absl::OkStatus();
}

int GoldenRun::Execute() {
  if (absl::Status known = CheckKnown(settings_.backend, {"host", "gpu"}, "--backend");
      !known.ok()) {
    return Fail("qrbench", known, kExitUsage);
  }
  InstallInterruptHandlers();
  if (EpilogueFolder::Is(settings_.directory)) return ExecuteEpilogues();
  folder_ = GoldenFolder::Load(settings_.directory);
  if (!folder_.ok()) return Fail("qrbench", folder_.status(), kExitFailed);
  for (const std::string& name : folder_->missing()) {
    std::printf("note: no %s, its comparisons are skipped\n", name.c_str());
  }
  backend_ = MakeHostBackend();
  // Forks, so before this process has anything to do with a GPU.
  absl::Status status = settings_.served ? StartServing() : absl::OkStatus();
  if (status.ok() && settings_.backend == "gpu") status = OpenGpu();
  if (!status.ok()) return Fail("qrbench", status, ExitCodeOf(status));
  status = CheckAll();
  ClearProgress();
  const absl::Status finished = server_ != nullptr ? server_->Finish() : absl::OkStatus();
  if (status.ok()) status = finished;
  return Conclude(status);
}

// In process only: the operands of a case are more than a rank process is told.
int GoldenRun::ExecuteEpilogues() {
  if (settings_.served) {
    return Fail("qrbench",
                absl::InvalidArgumentError("--served does not go with a folder of epilogues"),
                kExitUsage);
  }
  const absl::StatusOr<EpilogueFolder> folder = EpilogueFolder::Load(settings_.directory);
  if (!folder.ok()) return Fail("qrbench", folder.status(), kExitFailed);
  backend_ = MakeHostBackend();
  std::vector<std::pair<std::string, EpilogueRunner>> runners;
  if (settings_.backend == "gpu") {
    if (absl::Status status = OpenGpu(); !status.ok()) {
      return Fail("qrbench", status, ExitCodeOf(status));
    }
    runners.emplace_back("gpu", gpu_->Runner());
  } else {
    runners.emplace_back("host", HostRunner(backend_.get()));
    runners.emplace_back("scalar reference", ReferenceRunner());
  }
  size_t done = 0;
  for (const EpilogueCase& c : folder->cases()) {
    if (Interrupted() || OutputIsLost()) break;
    Progress(absl::StrFormat("[%d/%d] cases", ++done, folder->cases().size()));
    Count(c.name, CheckEpilogueCase(*folder, c, runners));
  }
  ClearProgress();
  return Conclude(absl::OkStatus());
}

int GoldenRun::Conclude(const absl::Status& status) {
  if (failed_ > kFailuresShown && !settings_.verbose) {
    std::printf("%d more failures; --verbose prints them\n", failed_ - kFailuresShown);
  }
  if (skipped_ > 0) std::printf("%d skipped: nothing to compare with\n", skipped_);
  if (passed_ + failed_ == 0) std::printf("no case was checked\n");
  PrintNow(stdout, absl::StrFormat("%d passed, %d failed\n", passed_, failed_));
  if (Interrupted()) return Fail("qrbench", absl::CancelledError("interrupted"), kExitInterrupted);
  if (!status.ok()) return Fail("qrbench", status, kExitFailed);
  return failed_ == 0 && passed_ > 0 ? kExitOk : kExitFailed;
}

}  // namespace

int RunGolden(const GoldenSettings& settings) { return GoldenRun(settings).Execute(); }

}  // namespace qrd::tools
