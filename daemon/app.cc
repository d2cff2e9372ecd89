// SPDX-License-Identifier: Apache-2.0
#include "daemon/app.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/groups.h"
#include "daemon/base/version.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

// How often a drain asks whether to give up.
constexpr absl::Duration kDrainSlice = absl::Milliseconds(50);
constexpr absl::Duration kControlStopTimeout = absl::Milliseconds(500);

}  // namespace

App::App(Config config, Backends backends)
    : config_(std::move(config)), backends_(std::move(backends)) {}

App::~App() { Stop(); }

absl::Status App::Start() {
  std::optional<gid_t> attach_group;
  if (!config_.attach_group.empty()) {
    const absl::StatusOr<gid_t> group = FindGroup(config_.attach_group);
    if (!group.ok()) return group.status();
    attach_group = *group;
  }
  absl::Status status = PrepareRuntimeDirectory(config_.runtime_directory, attach_group);
  if (!status.ok()) return status;
  auto lock = LockFile::Acquire(config_.runtime_directory);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  status = PrepareStateDirectory(config_.state_directory);
  if (status.ok()) status = LockState();
  if (status.ok()) status = StartDataPath();
  if (status.ok()) status = StartControl();
  if (!status.ok()) return status;

  if (status = sessions_->Start(); !status.ok()) return status;
  control_->SetServing(true);
  state_ = v1::NodeStatus::STATE_SERVING;
  if (backends_.gpu != nullptr) {
    for (const DeviceInfo& device : backends_.gpu->devices()) {
      spdlog::info("device {}: {}", device.id, device.description);
    }
  } else {
    spdlog::debug("no GPU backend: {}", std::string(backends_.gpu_status.message()));
  }
  spdlog::info(
      "qrd {} serves {} ({} worker threads, policy generation {}, {} communicators, metrics {})",
      kVersion, config_.runtime_directory, config_.worker_threads, policy_->current()->generation(),
      registry_->communicator_count(), exposer_ == nullptr ? "off" : exposer_->address());
  return absl::OkStatus();
}

// Two daemons on one state directory would overwrite each other's policy and communicators.
absl::Status App::LockState() {
  std::error_code error;
  if (std::filesystem::equivalent(config_.state_directory, config_.runtime_directory, error)) {
    return absl::OkStatus();  // locked already
  }
  auto lock = LockFile::Acquire(config_.state_directory, "--state-directory");
  if (!lock.ok()) return lock.status();
  state_lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status App::StartDataPath() {
  auto policy = PolicyStore::Open(config_.state_directory, config_.initial_policy, *backends_.host);
  if (!policy.ok()) return policy.status();
  policy_ = *std::move(policy);

  auto registry = CommunicatorRegistry::Open(config_, backends_.gpu_status);
  if (!registry.ok()) return registry.status();
  registry_ = *std::move(registry);

  // Scrapes begin after everything below exists.
  GaugeSources gauges;
  gauges.sessions = [this] { return sessions_->session_count(); };
  gauges.arena_bytes = [this] { return sessions_->arena_bytes(); };
  gauges.communicators = [this] { return registry_->communicator_count(); };
  gauges.policy_generation = [this] { return policy_->current()->generation(); };
  metrics_ = std::make_unique<Metrics>(std::move(gauges));

  auto node_segment = NodeSegment::Create();
  if (!node_segment.ok()) return node_segment.status();
  node_segment_ = *std::move(node_segment);

  engine_ = std::make_unique<Engine>(config_, backends_.host.get(), policy_.get(), metrics_.get(),
                                     node_segment_.get());
  auto sessions = SessionServer::Open(config_, registry_.get(), engine_.get(), metrics_.get(),
                                      &backends_, node_segment_.get());
  if (!sessions.ok()) return sessions.status();
  sessions_ = *std::move(sessions);
  registry_->SetEndSessionsHook([this](const std::vector<uint64_t>& session_ids) {
    sessions_->EndSessions(session_ids, shm::Status::kAborted, "the communicator was deleted");
  });
  registry_->SetGroupDetailHook(
      [this](uint64_t session_id, v1::Group* group) { engine_->GroupDetail(session_id, group); });
  return engine_->Start();
}

absl::Status App::StartControl() {
  if (!config_.metrics_address.empty()) {
    Exposer::Sources sources;
    sources.metrics = metrics_.get();
    sources.live_error = [this] { return LiveError(); };
    sources.ready_error = [this] { return ReadyError(); };
    auto exposer = Exposer::Start(config_.metrics_address, std::move(sources));
    if (!exposer.ok()) return exposer.status();
    exposer_ = *std::move(exposer);
  }
  NodeSources node;
  node.config = &config_;
  node.backends = backends_.all();
  node.policy = policy_.get();
  node.registry = registry_.get();
  node.metrics = metrics_.get();
  node.sessions = [this] { return sessions_->session_count(); };
  node.arena_bytes = [this] { return sessions_->arena_bytes(); };
  node.state = [this] { return state(); };
  node.metrics_address = metrics_address();
  node.start_time = start_time_;
  auto control = ControlServer::Start(config_, std::move(node), policy_.get(), registry_.get(),
                                      metrics_.get());
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  return absl::OkStatus();
}

bool App::Drain(const std::function<bool()>& give_up) {
  if (state_ != v1::NodeStatus::STATE_SERVING) return true;
  state_ = v1::NodeStatus::STATE_DRAINING;
  control_->SetServing(false);
  sessions_->StopAccepting();
  const absl::Time deadline = absl::Now() + absl::Milliseconds(config_.drain_timeout_ms);
  spdlog::info("drain: {} sessions, at most {} ms", sessions_->session_count(),
               config_.drain_timeout_ms);
  while (!engine_->Drain(std::min(absl::Now() + kDrainSlice, deadline))) {
    if (absl::Now() >= deadline) {
      spdlog::warn("drain: operations are left after {} ms; they fail with UNAVAILABLE",
                   config_.drain_timeout_ms);
      return false;
    }
    if (give_up()) return false;
  }
  return true;
}

void App::Stop() {
  state_ = v1::NodeStatus::STATE_DRAINING;
  if (control_ != nullptr) control_->Stop(kControlStopTimeout);
  control_.reset();
  exposer_.reset();
  // First the engine: clients get a status for what is left before their connections close.
  if (engine_ != nullptr) engine_->Stop();
  if (sessions_ != nullptr) sessions_->Stop();
  sessions_.reset();
  engine_.reset();
  node_segment_.reset();
  metrics_.reset();
  registry_.reset();
  policy_.reset();
  state_lock_.reset();
  lock_.reset();
}

std::string App::LiveError() const {
  const uint64_t progress_ns = engine_->progress_ns();
  const uint64_t now_ns = MonotonicNs();
  const absl::Duration age =
      absl::Nanoseconds(static_cast<int64_t>(now_ns > progress_ns ? now_ns - progress_ns : 0));
  if (age < kStuckAfter) return "";
  return absl::StrCat("the engine has made no progress for ", absl::ToInt64Milliseconds(age),
                      " ms");
}

std::string App::ReadyError() const {
  switch (state()) {
    case v1::NodeStatus::STATE_SERVING:
      return "";
    case v1::NodeStatus::STATE_DRAINING:
      return "draining";
    default:
      return "starting";
  }
}

const std::string& App::metrics_address() const {
  static const std::string* const off = new std::string;
  return exposer_ == nullptr ? *off : exposer_->address();
}

}  // namespace qrd
