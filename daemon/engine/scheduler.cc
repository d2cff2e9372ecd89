// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/scheduler.h"

#include <algorithm>

namespace qrd {

void FairScheduler::Add(uint64_t flow, uint32_t weight) {
  Flow& added = flows_[flow];
  added.weight = std::max<uint32_t>(weight, 1);
  added.virtual_time = now_;
}

void FairScheduler::Remove(uint64_t flow) {
  Deactivate(flow);
  flows_.erase(flow);
}

void FairScheduler::Activate(uint64_t flow) {
  const auto it = flows_.find(flow);
  if (it == flows_.end() || it->second.state == State::kActive) return;
  if (it->second.state == State::kIdle) {
    it->second.virtual_time = std::max(it->second.virtual_time, now_);
  }
  it->second.state = State::kActive;
  active_.emplace(it->second.virtual_time, flow);
}

void FairScheduler::Block(uint64_t flow) {
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return;
  active_.erase({it->second.virtual_time, flow});
  it->second.state = State::kBlocked;
}

void FairScheduler::Deactivate(uint64_t flow) {
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return;
  active_.erase({it->second.virtual_time, flow});
  it->second.state = State::kIdle;
}

std::optional<uint64_t> FairScheduler::Pick() const {
  if (active_.empty()) return std::nullopt;
  return active_.begin()->second;
}

void FairScheduler::Charge(uint64_t flow, uint64_t bytes) {
  const auto it = flows_.find(flow);
  if (it == flows_.end()) return;
  Flow& charged = it->second;
  if (charged.state == State::kActive) active_.erase({charged.virtual_time, flow});
  now_ = std::max(now_, charged.virtual_time);
  charged.virtual_time += static_cast<double>(bytes) / charged.weight;
  if (charged.state == State::kActive) active_.emplace(charged.virtual_time, flow);
}

}  // namespace qrd
