// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/rank_set.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace qrd::tools {
namespace {

// A case of many slow iterations takes long; each operation has its own deadline in the daemon.
constexpr std::chrono::milliseconds kReplyTimeout = std::chrono::minutes(30);

}  // namespace

RankSet::RankSet(uint32_t ranks, uint32_t groups, uint32_t iterations_max)
    : ranks_(ranks),
      groups_(groups),
      iterations_max_(iterations_max),
      samples_(sizeof(uint64_t) * ranks * groups * iterations_max),
      barriers_(sizeof(SharedBarrier) * groups) {}

absl::StatusOr<std::unique_ptr<RankSet>> RankSet::Start(const AllReduceSettings& settings,
                                                        const std::string& runtime_directory,
                                                        uint32_t iterations_max) {
  // With --join this set has one rank, whatever the group has.
  std::unique_ptr<RankSet> set(new RankSet(settings.join ? 1 : settings.ranks,
                                           settings.join ? 1 : settings.groups, iterations_max));
  if (set->samples_.data() == nullptr || set->barriers_.data() == nullptr) {
    return absl::ResourceExhaustedError("no memory for the samples");
  }
  const auto config_of = [&](uint32_t index) {
    RankConfig config;
    config.runtime_directory = runtime_directory;
    config.communicator = settings.communicator;
    config.group = settings.groups == 1 ? settings.group
                                        : absl::StrCat(settings.group, "-", index / settings.ranks);
    config.rank = settings.join ? settings.rank : index % settings.ranks;
    config.world_size = settings.ranks;
    config.timeout_ms = settings.attach_timeout_ms;
    config.source = &settings.source;
    config.on_gpu = settings.backend == "gpu";
    config.order = settings.order == "graph"    ? Order::kGraph
                   : settings.order == "stream" ? Order::kStream
                                                : Order::kHost;
    if (!settings.devices.empty()) {
      config.device = settings.devices[settings.devices.size() == 1 ? 0 : config.rank];
    }
    config.samples = reinterpret_cast<uint64_t*>(set->samples_.data()) +
                     static_cast<size_t>(index) * iterations_max;
    if (!settings.join) {
      config.barrier =
          reinterpret_cast<SharedBarrier*>(set->barriers_.data()) + index / settings.ranks;
    }
    return config;
  };
  if (settings.join) {
    set->joined_ = std::make_unique<RankRunner>(config_of(0));
    return set;
  }
  absl::StatusOr<std::unique_ptr<ProcessTeam>> team = ProcessTeam::Fork(
      static_cast<int>(settings.ranks * settings.groups), [&](int socket, int index) {
        return ServeRank(socket, config_of(static_cast<uint32_t>(index)));
      });
  if (!team.ok()) return team.status();
  set->team_ = *std::move(team);
  return set;
}

absl::StatusOr<std::vector<CaseReply>> RankSet::Ask(const CaseRequest& request) {
  std::vector<CaseReply> replies;
  if (joined_ != nullptr) {
    replies.push_back(joined_->Handle(request));
  } else {
    absl::StatusOr<std::vector<CaseReply>> all =
        team_->AskAll<CaseReply>(team_->count(), request, kReplyTimeout);
    if (!all.ok()) return all.status();
    replies = *std::move(all);
  }
  std::string error;
  for (const CaseReply& reply : replies) {
    const std::string text = reply.error;
    const bool only_a_consequence = absl::StrContains(text, "PEER_LOST");
    if (!text.empty() &&
        (error.empty() || (absl::StrContains(error, "PEER_LOST") && !only_a_consequence))) {
      error = text;
    }
  }
  if (!error.empty()) return absl::InternalError(error);
  return replies;
}

std::vector<uint64_t> RankSet::IterationTimes(uint32_t iterations) const {
  const auto* samples = reinterpret_cast<const uint64_t*>(samples_.data());
  std::vector<uint64_t> times;
  times.reserve(static_cast<size_t>(groups_) * iterations);
  for (uint32_t group = 0; group < groups_; ++group) {
    for (uint32_t i = 0; i < iterations; ++i) {
      uint64_t slowest = 0;
      for (uint32_t rank = 0; rank < ranks_; ++rank) {
        const size_t process = static_cast<size_t>(group) * ranks_ + rank;
        slowest = std::max(slowest, samples[process * iterations_max_ + i]);
      }
      times.push_back(slowest);
    }
  }
  return times;
}

}  // namespace qrd::tools
