// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"

namespace qrd {
namespace {

// The longest sleep: also the age that progress_ns() can reach.
constexpr int kSleepMsMax = 100;
constexpr uint64_t kNsPerMs = 1'000'000;

// With stream-ordered sessions, whose next operation comes without a system call: how long the
// engine looks at the doorbells without a pause after the last activity, how long it naps 50 us at
// a time after that (between the steps of a model), and how long a nap is when nothing happens.
constexpr uint64_t kStreamSpinNs = 2'000'000;
constexpr uint64_t kStreamNapsShortNs = 5'000'000'000;
constexpr long kStreamNapShortNs = 50'000;
constexpr long kStreamNapNs = 1'000'000;
constexpr uint32_t kIdleTurnsBetweenYields = 8;

}  // namespace

Engine::Engine(const Config& config, Backend* backend, PolicyStore* policy, Metrics* metrics,
               NodeSegment* node)
    : config_(config),
      backend_(backend),
      metrics_(metrics),
      node_(node),
      run_queue_(std::max<uint32_t>(config.worker_threads, 1)),
      workers_(std::max<uint32_t>(config.worker_threads, 1) - 1, &run_queue_, backend,
               [this] {
                 if (sleeping_.load(std::memory_order_seq_cst)) Wake();
               }),
      spin_ns_(uint64_t{config.spin_us_max} * 1000) {
  context_.backend = backend;
  context_.policy = policy;
  context_.metrics = metrics;
  context_.run_queue = &run_queue_;
  context_.device_queue = device_runner_.queue();
  context_.operation_timeout_ms = config.operation_timeout_ms;
  progress_ns_.store(MonotonicNs());
}

Engine::~Engine() { Stop(); }

absl::Status Engine::Start() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("engine: epoll or eventfd: %s", std::strerror(errno)));
  }
  if (absl::Status status = workers_.Start(); !status.ok()) return status;
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error& error) {
    workers_.Stop();
    return absl::ResourceExhaustedError(absl::StrFormat("engine thread: %s", error.what()));
  }
  pthread_setname_np(thread_.native_handle(), "qrd-engine");
  return absl::OkStatus();
}

bool Engine::Drain(absl::Time deadline) {
  Post([this] { context_.draining = true; });
  MutexLock lock(&mu_);
  while (!drained_now_) {
    if (!drain_changed_.WaitUntil(&mu_, absl::ToChronoTime(deadline))) return drained_now_;
  }
  return true;
}

void Engine::Stop() {
  stop_.store(true);
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  workers_.Stop();
}

void Engine::AddGroup(GroupSpec spec) {
  auto gauges = std::make_shared<GroupGauges>();
  {
    MutexLock lock(&mu_);
    for (const auto& channel : spec.channels) gauges_[channel->session_id()] = gauges;
  }
  Post([this, spec = std::move(spec), gauges]() mutable {
    DoAddGroup(std::move(spec), std::move(gauges));
  });
}

void Engine::AddStream(uint64_t session_id, std::unique_ptr<StreamChannel> stream) {
  // std::function wants something that can be copied.
  auto shared = std::make_shared<std::unique_ptr<StreamChannel>>(std::move(stream));
  Post([this, session_id, shared] {
    const auto it = ranks_.find(session_id);
    if (it == ranks_.end()) return;
    const auto [group, rank] = it->second;
    group->channel(rank)->AddStream(std::move(*shared));
    ++streams_;
  });
}

void Engine::EndSession(uint64_t session_id, shm::Status status, std::string reason, bool close) {
  Post([=, this] { DoEndSession(session_id, status, reason, close); });
}

void Engine::AbortGroup(uint64_t session_id, std::string reason) {
  Post([=, this] {
    const auto it = ranks_.find(session_id);
    if (it == ranks_.end()) return;
    const auto [group, rank] = it->second;
    group->Break({shm::Status::kAborted,
                  absl::StrFormat("rank %d called abort: %s", rank,
                                  reason.empty() ? "no reason given" : reason),
                  uint32_t{1} << rank},
                 MonotonicNs());
  });
}

void Engine::SetSessionEndHook(std::function<void(uint64_t, bool, std::string)> hook) {
  session_end_hook_ = std::move(hook);
}

void Engine::SetReportHook(std::function<void(bool, std::string)> hook) {
  context_.report = std::move(hook);
}

void Engine::GroupDetail(uint64_t session_id, v1::Group* group) const {
  MutexLock lock(&mu_);
  const auto it = gauges_.find(session_id);
  if (it == gauges_.end()) return;
  group->set_waiting_operations(it->second->waiting.load(std::memory_order_relaxed));
  group->set_queued_operations(it->second->queued.load(std::memory_order_relaxed));
}

void Engine::Post(Command command) {
  {
    MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
    has_commands_.store(true, std::memory_order_seq_cst);
  }
  if (sleeping_.load(std::memory_order_seq_cst)) Wake();
}

void Engine::Wake() {
  if (wake_.valid()) eventfd_write(wake_.get(), 1);
}

void Engine::Loop() {
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t now_ns = MonotonicNs();
    progress_ns_.store(now_ns, std::memory_order_relaxed);
    node_->progress_ns().store(now_ns, std::memory_order_relaxed);
    bool active = RunCommands();
    active |= PollRings(now_ns);
    active |= RunChunk();
    if (device_groups_ != 0) active |= RunDevices();
    active |= CompleteFinished();
    if (now_ns >= earliest_deadline_ns_) ExpireOperations(now_ns);
    if (ends_pending_) FinishEnds();
    if (context_.draining) ReportDrain();
    if (active) {
      NoteActivity(now_ns);
    } else {
      Idle(now_ns);
    }
  }
  FailEverything();
}

bool Engine::RunCommands() {
  if (!has_commands_.load(std::memory_order_relaxed)) return false;
  std::vector<Command> commands;
  {
    MutexLock lock(&mu_);
    commands.swap(commands_);
    has_commands_.store(false, std::memory_order_seq_cst);
  }
  for (Command& command : commands) command();
  return true;
}

bool Engine::PollRings(uint64_t now_ns) {
  bool active = false;
  for (auto& [flow, group] : groups_) {
    for (uint32_t rank = 0; rank < group->world_size(); ++rank) {
      const SessionChannel* channel = group->channel(rank);
      if (channel == nullptr || group->ends[rank].ended || !channel->HasSubmissions()) continue;
      active |= PollSession(group.get(), rank, now_ns);
    }
  }
  return active;
}

bool Engine::PollSession(GroupQueue* group, uint32_t rank, uint64_t now_ns) {
  SessionChannel* channel = group->channel(rank);
  Submission submission;
  std::string error;
  bool active = false;
  for (uint32_t i = 0; i < kPollBurst; ++i) {
    const SessionChannel::PollResult result = channel->Poll(&submission, &error);
    if (result == SessionChannel::PollResult::kEmpty) break;
    active = true;
    if (result == SessionChannel::PollResult::kProtocolError) {
      if (metrics_ != nullptr) metrics_->RecordInvalidSubmission();
      EndRank(group, rank,
              {shm::Status::kPeerLost,
               absl::StrFormat("rank %d (process %d) was closed: %s", rank, channel->pid(), error),
               uint32_t{1} << rank},
              /*call_hook=*/true, /*protocol_error=*/true, error);
      break;
    }
    const uint64_t deadline_ns = group->OnSubmission(rank, submission, now_ns);
    earliest_deadline_ns_ = std::min(earliest_deadline_ns_, deadline_ns);
  }
  if (active && metrics_ != nullptr) {
    if (const uint64_t refused = channel->TakeRingFull(); refused != 0) {
      metrics_->RecordRingFull(refused);
    }
  }
  return active;
}

bool Engine::RunChunk() {
  if (!run_queue_.has_chunks()) return false;
  Chunk chunk;
  if (!run_queue_.Take(&chunk)) return false;
  workers_.Notify();
  const uint64_t nonfinite = backend_->Run(chunk.job->params, chunk.range);
  run_queue_.Finish(chunk, nonfinite, MonotonicNs());
  return true;
}

bool Engine::RunDevices() {
  return device_runner_.LaunchReady([this](const Job& job) {
    const auto& operation = static_cast<const Operation&>(job);
    const GroupQueue& group = *groups_.find(job.flow)->second;  // a group outlives its jobs
    DeviceRunner::Target target;
    target.group = group.device_group();
    for (uint32_t rank = 0; rank < group.world_size(); ++rank) {
      const bool from_stream = (operation.posts[rank].slot & kStreamSlot) != 0;
      const SessionChannel* channel = group.channel(rank);
      target.done_words.push_back(from_stream && channel != nullptr ? channel->stream()->done_word()
                                                                    : nullptr);
    }
    return target;
  });
}

bool Engine::CompleteFinished() {
  const bool active = CompleteFinished(&run_queue_);
  return CompleteFinished(device_runner_.queue()) || active;
}

bool Engine::CompleteFinished(RunQueue* queue) {
  bool active = false;
  while (Job* job = queue->PopFinished()) {
    active = true;
    const auto it = groups_.find(job->flow);  // a group outlives its jobs
    GroupQueue* group = it->second.get();
    group->OnJobFinished(static_cast<Operation*>(job), MonotonicNs());
    if (group->broken()) ends_pending_ = true;
  }
  return active;
}

void Engine::ExpireOperations(uint64_t now_ns) {
  earliest_deadline_ns_ = UINT64_MAX;
  for (auto& [flow, group] : groups_) {
    earliest_deadline_ns_ = std::min(earliest_deadline_ns_, group->Expire(now_ns));
  }
}

void Engine::NoteActivity(uint64_t now_ns) {
  const uint64_t max_ns = uint64_t{config_.spin_us_max} * 1000;
  const uint64_t gap_ns = now_ns - last_active_ns_;
  if (gap_ns <= max_ns) {
    spin_ns_ = std::min(max_ns, std::max(spin_ns_, 2 * gap_ns));
  } else {
    spin_ns_ = std::max(max_ns / 8, spin_ns_ / 2);
  }
  last_active_ns_ = now_ns;
}

void Engine::Idle(uint64_t now_ns) {
  // Devices wake nobody: while they work the engine looks. Nor do streams announce that they will
  // announce something (a graph may be replayed at any time), so it looks for a while longer, then
  // naps.
  const uint64_t spin_ns = streams_ == 0 ? spin_ns_ : std::max(spin_ns_, kStreamSpinNs);
  const bool spins = now_ns - last_active_ns_ < spin_ns && yield_guard_.MaySpin(now_ns);
  if (!device_runner_.idle() || spins) {
    // A yield takes as long as several turns: where devices are waited for, not at each.
    const bool yields = device_runner_.idle() && streams_ == 0;
    if (!yields && ++idle_turns_ % kIdleTurnsBetweenYields != 0) return;
    const uint64_t before_ns = MonotonicNs();
    sched_yield();
    yield_guard_.Note(before_ns, MonotonicNs());
  } else {
    Sleep(now_ns);
  }
}

bool Engine::AnythingToDo() {
  if (stop_.load() || has_commands_.load(std::memory_order_seq_cst) || run_queue_.has_chunks() ||
      run_queue_.has_finished()) {
    return true;
  }
  for (auto& [flow, group] : groups_) {
    for (uint32_t rank = 0; rank < group->world_size(); ++rank) {
      const SessionChannel* channel = group->channel(rank);
      if (channel != nullptr && !group->ends[rank].ended && channel->HasSubmissions()) return true;
    }
  }
  return false;
}

void Engine::Sleep(uint64_t now_ns) {
  // Both flags before the last look (sequentially consistent, see layout.h): whoever adds work
  // after that look sees the flag and writes an eventfd.
  sleeping_.store(true, std::memory_order_seq_cst);
  node_->engine_sleeping().store(1, std::memory_order_seq_cst);
  if (!AnythingToDo()) {
    int timeout_ms = kSleepMsMax;
    if (earliest_deadline_ns_ != UINT64_MAX) {
      const uint64_t left_ns = earliest_deadline_ns_ > now_ns ? earliest_deadline_ns_ - now_ns : 0;
      timeout_ms = static_cast<int>(std::min<uint64_t>(timeout_ms, left_ns / kNsPerMs + 1));
    }
    epoll_event events[16];
    // Edge-triggered: what is in the eventfds need not be read.
    if (streams_ == 0) {
      epoll_wait(epoll_.get(), events, 16, timeout_ms);
    } else {
      const bool lately = now_ns - last_active_ns_ < kStreamNapsShortNs;
      const timespec nap = {0, lately ? kStreamNapShortNs : kStreamNapNs};
      epoll_pwait2(epoll_.get(), events, 16, &nap, nullptr);
    }
  }
  node_->engine_sleeping().store(0, std::memory_order_seq_cst);
  sleeping_.store(false, std::memory_order_seq_cst);
}

void Engine::FailEverything() {
  RunCommands();  // groups that formed just now have posts too
  PollRings(MonotonicNs());
  for (auto& [flow, group] : groups_) {
    group->Break({shm::Status::kUnavailable, "the daemon stopped", 0}, MonotonicNs());
  }
  const auto all_quiescent = [this] {
    return std::all_of(groups_.begin(), groups_.end(),
                       [](const auto& entry) { return entry.second->quiescent(); });
  };
  while (!all_quiescent()) {
    RunChunk();
    if (device_groups_ != 0) RunDevices();
    if (!CompleteFinished()) sched_yield();
  }
  RunCommands();
}

void Engine::ReportDrain() {
  MutexLock lock(&mu_);
  const bool drained = context_.active_operations == 0;
  if (drained == drained_now_) return;
  drained_now_ = drained;
  drain_changed_.SignalAll();
}

}  // namespace qrd
