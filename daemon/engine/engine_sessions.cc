// SPDX-License-Identifier: Apache-2.0
// Engine: how groups begin and how sessions end. Engine thread only.
#include <sys/epoll.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/base/clock.h"
#include "daemon/engine/engine.h"

namespace qrd {

void Engine::DoAddGroup(GroupSpec spec, std::shared_ptr<GroupGauges> gauges) {
  const uint64_t flow = next_flow_++;
  const std::vector<std::shared_ptr<SessionChannel>> channels = spec.channels;
  if (spec.device_group != nullptr) ++device_groups_;
  auto group = std::make_unique<GroupQueue>(flow, std::move(spec), &context_, std::move(gauges));
  for (const auto& channel : channels) {
    ranks_[channel->session_id()] = {group.get(), channel->rank()};
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;
    // Without it the session would be slow, but served: the longest sleep is bounded.
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, channel->doorbell_fd(), &event);
  }
  groups_.emplace(flow, std::move(group));
}

void Engine::DoEndSession(uint64_t session_id, shm::Status status, const std::string& reason,
                          bool close) {
  const auto it = ranks_.find(session_id);
  if (it == ranks_.end()) {
    if (close && session_end_hook_) session_end_hook_(session_id, false, reason);
    return;
  }
  const auto [group, rank] = it->second;
  // What it published before it went away is still answered: a ring full of it, not more.
  for (uint32_t taken = 0; !group->ends[rank].ended && taken < group->channel(rank)->slot_count();
       taken += kPollBurst) {
    if (!PollSession(group, rank, MonotonicNs())) break;
  }
  if (group->ends[rank].ended) {  // a protocol error was first
    group->ends[rank].call_hook |= close;
    return;
  }
  std::string message = reason;
  if (status == shm::Status::kPeerLost) {
    message = absl::StrFormat("rank %d (process %d) is gone: %s", rank, group->channel(rank)->pid(),
                              reason);
  }
  EndRank(group, rank, {status, std::move(message), uint32_t{1} << rank}, close, false, reason);
}

void Engine::EndRank(GroupQueue* group, uint32_t rank, Failure failure, bool call_hook,
                     bool protocol_error, const std::string& reason) {
  GroupQueue::End& end = group->ends[rank];
  end.ended = true;
  end.call_hook = end.call_hook || call_hook;
  end.protocol_error = end.protocol_error || protocol_error;
  end.reason = reason;
  group->Break(std::move(failure), MonotonicNs());
  ends_pending_ = true;
}

void Engine::FinishEnds() {
  ends_pending_ = false;
  for (auto it = groups_.begin(); it != groups_.end();) {
    GroupQueue* group = it->second.get();
    // A group with chunks in flight comes back here when they are done.
    const bool over = group->broken() && group->quiescent() && DropEndedChannels(group);
    if (over && group->device_group() != nullptr) --device_groups_;
    it = over ? groups_.erase(it) : std::next(it);
  }
}

bool Engine::DropEndedChannels(GroupQueue* group) {
  bool any_left = false;
  for (uint32_t rank = 0; rank < group->world_size(); ++rank) {
    SessionChannel* channel = group->channel(rank);
    if (channel == nullptr) continue;
    GroupQueue::End& end = group->ends[rank];
    if (!end.ended) {
      any_left = true;
      continue;
    }
    const uint64_t session_id = channel->session_id();
    // The client holds a duplicate of the doorbell, so closing ours would not take it out.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel->doorbell_fd(), nullptr);
    {
      MutexLock lock(&mu_);
      gauges_.erase(session_id);
    }
    ranks_.erase(session_id);
    if (channel->stream() != nullptr) --streams_;
    group->DropChannel(rank);
    if (end.call_hook && session_end_hook_) {
      session_end_hook_(session_id, end.protocol_error, end.reason);
    }
  }
  return !any_left;
}

}  // namespace qrd
