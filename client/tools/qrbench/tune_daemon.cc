// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/tune_daemon.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/qrbench/progress.h"
#include "client/tools/qrbench/rows.h"

namespace qrd::tools {
namespace {

constexpr uint32_t kIterationsMin = 3, kIterationsMostly = 50;
constexpr uint64_t kBatchBytes = uint64_t{64} << 20;

// Of one batch: short, since batches of all plans take turns.
uint32_t IterationsOf(uint64_t payload_bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      kBatchBytes / std::max<uint64_t>(payload_bytes, 1), kIterationsMin, kIterationsMostly));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TuneDaemon>> TuneDaemon::Start(const TuneDaemonSettings& settings) {
  std::unique_ptr<TuneDaemon> daemon(new TuneDaemon(settings));
  if (absl::Status status = daemon->Prepare(); !status.ok()) return status;
  return daemon;
}

TuneDaemon::~TuneDaemon() { (void)Finish(); }

absl::Status TuneDaemon::Prepare() {
  ConnectionFlags flags = settings_.connection;
  if (settings_.start_daemon) {
    absl::StatusOr<std::unique_ptr<PrivateDaemon>> started =
        PrivateDaemon::Start(settings_.daemon_program);
    if (!started.ok()) return started.status();
    private_daemon_ = *std::move(started);
    flags.runtime_directory = private_daemon_->runtime_directory();
  }
  absl::StatusOr<std::string> directory = FindRuntimeDirectory(flags.runtime_directory);
  const absl::StatusOr<int> fd =
      directory.ok() ? ConnectControlSocket(*directory) : absl::StatusOr<int>(directory.status());
  if (!fd.ok()) {
    return absl::Status(fd.status().code(),
                        absl::StrCat(fd.status().message(),
                                     "; or let qrbench start a private one with --start-daemon"));
  }
  close(*fd);
  runtime_directory_ = *directory;
  // All that forks comes before the first gRPC call.
  if (absl::Status status = ForkTeams(); !status.ok()) return status;
  return Connect();
}

absl::Status TuneDaemon::ForkTeams() {
  uint32_t iterations_max = 0;
  for (const uint64_t bytes : settings_.sizes) {
    iterations_max = std::max(iterations_max, IterationsOf(bytes));
  }
  for (const uint32_t ranks : settings_.ranks) {
    Team& team = teams_.emplace_back();
    team.settings.ranks = ranks;
    team.settings.backend = settings_.backend;
    team.settings.order = settings_.order;
    team.settings.devices = settings_.devices;
    team.settings.communicator = settings_.communicator.empty()
                                     ? absl::StrCat("qrbench-", getpid(), "-w", ranks)
                                     : settings_.communicator;
    absl::StatusOr<std::unique_ptr<RankSet>> set =
        RankSet::Start(team.settings, runtime_directory_, iterations_max);
    if (!set.ok()) return set.status();
    team.ranks = *std::move(set);
  }
  return absl::OkStatus();
}

absl::Status TuneDaemon::Connect() {
  ConnectionFlags flags = settings_.connection;
  flags.runtime_directory = runtime_directory_;
  absl::StatusOr<std::unique_ptr<ControlClient>> control = ControlClient::Connect(flags);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  v1::NodeStatus status;
  const absl::Status called = control_->Call(&v1::NodeService::Stub::GetStatus, control_->node(),
                                             v1::GetStatusRequest(), &status);
  if (called.ok()) {
    daemon_text_ =
        absl::StrCat("qrd ", status.version(), ", ", status.worker_threads(), " worker threads");
  }
  return called;
}

absl::Status TuneDaemon::CloseTeam() {
  if (open_ == nullptr) return absl::OkStatus();
  absl::Status status = policy_->Restore();
  policy_.reset();
  CaseRequest request;
  request.kind = CaseRequest::kDetach;
  const absl::Status detached = open_->ranks->Ask(request).status();
  open_ = nullptr;
  return status.ok() ? detached : status;
}

absl::Status TuneDaemon::Open(uint32_t ranks, Dtype dtype, uint64_t) {
  filled_bytes_ = 0;
  dtype_ = dtype;
  if (open_ != nullptr && open_->settings.ranks == ranks) return absl::OkStatus();
  if (absl::Status status = CloseTeam(); !status.ok()) return status;
  const auto team = std::find_if(teams_.begin(), teams_.end(),
                                 [&](const Team& t) { return t.settings.ranks == ranks; });
  if (team == teams_.end()) return absl::InternalError("no team of this world size");
  CaseRequest request;
  request.kind = CaseRequest::kAttach;
  for (const uint64_t bytes : settings_.sizes) {
    request.pool_bytes = std::max(request.pool_bytes, PoolBytes(bytes, AutoBuffers(bytes), false));
  }
  Report(absl::StrCat("attaching ", ranks, " ranks"));
  if (absl::Status status = team->ranks->Ask(request).status(); !status.ok()) return status;
  open_ = &*team;
  policy_ = std::make_unique<PolicyOverride>(control_.get(), team->settings.communicator,
                                             absl::StrCat("qrbench-", getpid()));
  return ReadBackend();
}

absl::Status TuneDaemon::ReadBackend() {
  v1::GetCommunicatorRequest request;
  request.set_name(open_->settings.communicator);
  v1::Communicator reply;
  const absl::Status status = control_->Call(&v1::CommunicatorService::Stub::GetCommunicator,
                                             control_->communicators(), request, &reply);
  if (status.ok()) backend_ = ShortName(reply.backend());
  return status;
}

absl::StatusOr<std::vector<double>> TuneDaemon::Batch(const TunePlan& plan,
                                                      uint64_t payload_bytes) {
  const std::string codec(Name(plan.codec)), algorithm(Name(plan.algorithm));
  absl::StatusOr<v1::Codec> codec_value = ParseCodecFlag(codec, "codec");
  if (!codec_value.ok()) return codec_value.status();
  absl::StatusOr<v1::Algorithm> algorithm_value = ParseAlgorithmFlag(algorithm, "algorithm");
  if (!algorithm_value.ok()) return algorithm_value.status();
  if (absl::Status s = policy_->Set(*codec_value, *algorithm_value); !s.ok()) return s;
  CaseRequest request;
  request.kind = CaseRequest::kRun;
  request.count = payload_bytes / DtypeBytes(dtype_);
  request.dtype = dtype_;
  request.iterations = IterationsOf(payload_bytes);
  request.warmup = 1;
  request.buffers = AutoBuffers(payload_bytes);
  request.only_time = filled_bytes_ == payload_bytes;
  absl::StatusOr<std::vector<CaseReply>> replies = open_->ranks->Ask(request);
  if (!replies.ok()) return replies.status();
  filled_bytes_ = payload_bytes;
  std::string check;
  const std::string wrong =
      CheckReplies(open_->settings, {request.count, dtype_, codec, algorithm}, *replies, &check);
  if (!wrong.empty()) return absl::DataLossError(wrong);
  std::vector<double> us;
  for (const uint64_t ns : open_->ranks->IterationTimes(request.iterations)) {
    us.push_back(static_cast<double>(ns) / 1e3);
  }
  return us;
}

double TuneDaemon::Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void TuneDaemon::Report(const std::string& progress) { Progress(progress); }

absl::Status TuneDaemon::Finish() {
  ClearProgress();
  absl::Status restored = policy_ == nullptr ? absl::OkStatus() : policy_->Restore();
  policy_.reset();
  open_ = nullptr;
  for (Team& team : teams_) team.ranks.reset();
  if (control_ != nullptr && settings_.communicator.empty()) DeleteCommunicators();
  teams_.clear();
  return restored;
}

void TuneDaemon::DeleteCommunicators() {
  for (const Team& team : teams_) DeleteOwnCommunicator(*control_, team.settings.communicator);
}

absl::Status TuneDaemon::Validate(const v1::Policy& policy) {
  v1::SetPolicyRequest request;
  *request.mutable_policy() = policy;
  request.set_validate_only(true);
  v1::SetPolicyResponse reply;
  return control_->Call(&v1::PolicyService::Stub::SetPolicy, control_->policy(), request, &reply);
}

}  // namespace qrd::tools
