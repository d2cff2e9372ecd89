// SPDX-License-Identifier: Apache-2.0
#include "daemon/registry/communicator_registry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/registry/communicator_file.h"
#include "google/protobuf/util/time_util.h"
#include "proto/shm/layout.h"

namespace qrd {
namespace {

// Group names whose incarnation a communicator remembers; clients choose names, so there is a
// bound.
constexpr size_t kGroupNamesMax = 1024;

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(time));
}

absl::Status CheckName(std::string_view field, const std::string& name) {
  const std::string error = NameError(name);
  if (error.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s %s", field, error));
}

absl::Status CheckRequest(const v1::Communicator& request) {
  if (absl::Status status = CheckName("name", request.name()); !status.ok()) return status;
  if (request.world_size() < 1 || request.world_size() > shm::kWorldSizeMax) {
    return absl::InvalidArgumentError(absl::StrFormat("world_size is %d: want 1 to %d",
                                                      request.world_size(), shm::kWorldSizeMax));
  }
  if (!v1::Backend_IsValid(request.backend())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("backend is %d: want BACKEND_HOST (1) or BACKEND_GPU (2)",
                        static_cast<int>(request.backend())));
  }
  return absl::OkStatus();
}

}  // namespace

struct CommunicatorRegistry::GroupState {
  std::string name;
  v1::Group::State state = v1::Group::STATE_FORMING;
  uint64_t incarnation = 0;
  std::map<uint32_t, Member> members;  // by rank
  std::set<uint32_t> gave_up;          // ranks that waited in vain and have not come back
};

struct CommunicatorRegistry::CommunicatorState {
  uint32_t world_size = 0;
  v1::Backend backend = v1::BACKEND_HOST;
  absl::Time create_time;
  bool created_on_attach = false;
  std::shared_ptr<CommunicatorCounters> counters = std::make_shared<CommunicatorCounters>();
  // At most one of a name is not broken.
  std::list<GroupState> groups;
  // Last incarnation by group name. Names that are forgotten leave incarnation_floor behind.
  std::map<std::string, uint64_t> incarnations;
  uint64_t incarnation_floor = 0;
};

CommunicatorRegistry::CommunicatorRegistry(Options options) : options_(std::move(options)) {}
CommunicatorRegistry::~CommunicatorRegistry() = default;

absl::StatusOr<std::unique_ptr<CommunicatorRegistry>> CommunicatorRegistry::Open(
    const Config& config, absl::Status gpu_status) {
  Options options;
  options.gpu_status = std::move(gpu_status);
  options.path = config.state_directory + "/communicators.textproto";
  options.communicators_max = config.communicators_max;
  options.create_on_attach = config.create_on_attach;
  std::unique_ptr<CommunicatorRegistry> registry(new CommunicatorRegistry(std::move(options)));
  if (absl::Status status = registry->Load(); !status.ok()) return status;
  for (const v1::Communicator& communicator : config.communicators) {
    absl::StatusOr<v1::Communicator> made = registry->Create(communicator, /*on_attach=*/false);
    if (made.ok()) continue;
    if (!absl::IsAlreadyExists(made.status())) {
      return absl::Status(made.status().code(),
                          absl::StrFormat("communicators: %s", made.status().message()));
    }
    absl::StatusOr<v1::Communicator> old = registry->Get(communicator.name());
    if (old.ok() && old->world_size() != communicator.world_size()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("communicators: '%s' has world_size %d in the configuration but %d in %s",
                          communicator.name(), communicator.world_size(), old->world_size(),
                          registry->options_.path));
    }
  }
  return registry;
}

absl::Status CommunicatorRegistry::Load() {
  const absl::StatusOr<v1::ListCommunicatorsResponse> saved = LoadCommunicators(options_.path);
  absl::Status status = saved.status();
  MutexLock lock(&mu_);
  for (int i = 0; status.ok() && i < saved->communicators_size(); ++i) {
    const v1::Communicator& communicator = saved->communicators(i);
    if (communicator.created_on_attach()) continue;  // of an older daemon, which kept them
    absl::StatusOr<CommunicatorState*> state = Insert(communicator, /*on_attach=*/false);
    status = state.status();
    if (status.ok() && communicator.has_create_time()) {
      (*state)->create_time = absl::FromUnixNanos(
          google::protobuf::util::TimeUtil::TimestampToNanoseconds(communicator.create_time()));
    }
  }
  if (status.ok()) return status;
  // A daemon that does not start because of its own state file helps nobody.
  communicators_.clear();
  return SetAsideCommunicators(options_.path, status);
}

absl::Status CommunicatorRegistry::Persist() const {
  v1::ListCommunicatorsResponse saved;
  for (const auto& [name, state] : communicators_) {
    if (state->created_on_attach) continue;
    v1::Communicator* communicator = saved.add_communicators();
    communicator->set_name(name);
    communicator->set_world_size(state->world_size);
    communicator->set_backend(state->backend);
    *communicator->mutable_create_time() = ToTimestamp(state->create_time);
  }
  return SaveCommunicators(options_.path, saved);
}

absl::StatusOr<CommunicatorRegistry::CommunicatorState*> CommunicatorRegistry::Insert(
    const v1::Communicator& request, bool on_attach) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  if (communicators_.count(request.name()) != 0) {
    return absl::AlreadyExistsError(
        absl::StrFormat("communicator '%s' exists already", request.name()));
  }
  if (communicators_.size() >= options_.communicators_max && !EvictUnused()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "there are %d communicators, in use or made to stay: communicators_max is %d; delete one "
        "(qrctl comm delete NAME)",
        communicators_.size(), options_.communicators_max));
  }
  auto state = std::make_unique<CommunicatorState>();
  state->world_size = request.world_size();
  if (request.backend() == v1::BACKEND_GPU) state->backend = v1::BACKEND_GPU;
  state->create_time = absl::Now();
  state->created_on_attach = on_attach;
  state->incarnation_floor = incarnation_floor_;
  CommunicatorState* raw = state.get();
  communicators_.emplace(request.name(), std::move(state));
  return raw;
}

absl::StatusOr<v1::Communicator> CommunicatorRegistry::Keep(const v1::Communicator& request,
                                                            CommunicatorState* state) {
  if (absl::Status status = CheckRequest(request); !status.ok()) return status;
  const auto backend =
      request.backend() == v1::BACKEND_UNSPECIFIED ? v1::BACKEND_HOST : request.backend();
  if (request.world_size() != state->world_size || backend != state->backend) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "communicator '%s' exists already, made by an attach with world_size %d and %s",
        request.name(), state->world_size, v1::Backend_Name(state->backend)));
  }
  state->created_on_attach = false;
  if (absl::Status status = Persist(); !status.ok()) {
    state->created_on_attach = true;
    return status;
  }
  return Describe(request.name(), *state);
}

bool CommunicatorRegistry::EvictUnused() {
  auto oldest = communicators_.end();
  for (auto it = communicators_.begin(); it != communicators_.end(); ++it) {
    const CommunicatorState& state = *it->second;
    if (!state.created_on_attach || !state.groups.empty()) continue;
    if (oldest == communicators_.end() || state.create_time < oldest->second->create_time) {
      oldest = it;
    }
  }
  if (oldest == communicators_.end()) return false;
  CommunicatorState& state = *oldest->second;
  incarnation_floor_ = std::max(incarnation_floor_, state.incarnation_floor);
  for (const auto& [group, incarnation] : state.incarnations) {
    incarnation_floor_ = std::max(incarnation_floor_, incarnation);
  }
  communicators_.erase(oldest);
  return true;
}

absl::StatusOr<v1::Communicator> CommunicatorRegistry::Create(const v1::Communicator& request,
                                                              bool on_attach) {
  if (request.backend() == v1::BACKEND_GPU && !options_.gpu_status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("backend is BACKEND_GPU: %s", options_.gpu_status.message()));
  }
  MutexLock lock(&mu_);
  if (const auto it = communicators_.find(request.name());
      it != communicators_.end() && !on_attach && it->second->created_on_attach) {
    return Keep(request, it->second.get());
  }
  absl::StatusOr<CommunicatorState*> state = Insert(request, on_attach);
  if (!state.ok()) return state.status();
  if (absl::Status status = Persist(); !status.ok()) {
    communicators_.erase(request.name());
    return status;
  }
  return Describe(request.name(), **state);
}

absl::StatusOr<v1::Communicator> CommunicatorRegistry::Get(const std::string& name) const {
  v1::Communicator communicator;
  {
    MutexLock lock(&mu_);
    const auto it = communicators_.find(name);
    if (it == communicators_.end()) {
      return absl::NotFoundError(absl::StrFormat("no communicator %s", Quoted(name)));
    }
    communicator = Describe(name, *it->second);
  }
  AddGroupDetail(&communicator);
  return communicator;
}

std::vector<v1::Communicator> CommunicatorRegistry::List() const {
  std::vector<v1::Communicator> list;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, state] : communicators_) list.push_back(Describe(name, *state));
  }
  for (v1::Communicator& communicator : list) AddGroupDetail(&communicator);
  return list;
}

absl::StatusOr<uint32_t> CommunicatorRegistry::Delete(const std::string& name, bool force) {
  std::vector<uint64_t> sessions;
  {
    MutexLock lock(&mu_);
    const auto it = communicators_.find(name);
    if (it == communicators_.end()) {
      return absl::NotFoundError(absl::StrFormat("no communicator %s", Quoted(name)));
    }
    for (const GroupState& group : it->second->groups) {
      for (const auto& [rank, member] : group.members) sessions.push_back(member.session_id);
    }
    if (!sessions.empty() && !force) {
      return absl::FailedPreconditionError(
          absl::StrFormat("communicator '%s' has %d attached sessions; set force to end them", name,
                          sessions.size()));
    }
    std::unique_ptr<CommunicatorState> removed = std::move(it->second);
    communicators_.erase(it);
    if (absl::Status status = Persist(); !status.ok()) {
      communicators_.emplace(name, std::move(removed));
      return status;
    }
  }
  if (!sessions.empty() && end_sessions_) end_sessions_(sessions);
  return static_cast<uint32_t>(sessions.size());
}

absl::StatusOr<CommunicatorRegistry::CommunicatorState*> CommunicatorRegistry::FindOrCreate(
    const std::string& name, uint32_t world_size, v1::Backend backend, bool create_if_absent) {
  const auto it = communicators_.find(name);
  if (it != communicators_.end()) {
    if (it->second->world_size != world_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "world_size is %d: communicator '%s' has %d", world_size, name, it->second->world_size));
    }
    if (it->second->backend != backend) {
      return absl::FailedPreconditionError(
          backend == v1::BACKEND_GPU
              ? absl::StrFormat("device is set: communicator '%s' is of host memory (BACKEND_HOST)",
                                name)
              : absl::StrFormat("device is not set: communicator '%s' is of GPUs (BACKEND_GPU), "
                                "name this rank's",
                                name));
    }
    return it->second.get();
  }
  if (!create_if_absent) {
    return absl::NotFoundError(
        absl::StrFormat("no communicator '%s' (and create_if_absent is not set)", name));
  }
  if (!options_.create_on_attach) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "no communicator '%s', and create_on_attach is false in the configuration", name));
  }
  v1::Communicator request;
  request.set_name(name);
  request.set_world_size(world_size);
  request.set_backend(backend);
  return Insert(request, /*on_attach=*/true);
}

CommunicatorRegistry::GroupState* CommunicatorRegistry::CurrentGroup(
    CommunicatorState* communicator, const std::string& name) const {
  for (GroupState& group : communicator->groups) {
    if (group.name == name && group.state != v1::Group::STATE_BROKEN) return &group;
  }
  auto& incarnations = communicator->incarnations;
  if (incarnations.count(name) == 0 && incarnations.size() >= kGroupNamesMax) {
    for (const auto& [other, incarnation] : incarnations) {
      communicator->incarnation_floor = std::max(communicator->incarnation_floor, incarnation);
    }
    incarnations.clear();
  }
  uint64_t& last = incarnations.try_emplace(name, communicator->incarnation_floor).first->second;
  GroupState& group = communicator->groups.emplace_back();
  group.name = name;
  group.incarnation = ++last;
  return &group;
}

absl::StatusOr<CommunicatorRegistry::JoinResult> CommunicatorRegistry::Join(
    const std::string& communicator, const std::string& group, uint32_t world_size,
    bool create_if_absent, const Member& member) {
  if (absl::Status s = CheckName("communicator", communicator); !s.ok()) return s;
  if (absl::Status s = CheckName("group", group); !s.ok()) return s;
  if (world_size < 1 || world_size > shm::kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("world_size is %d: want 1 to %d", world_size, shm::kWorldSizeMax));
  }
  if (member.rank >= world_size) {
    return absl::InvalidArgumentError(absl::StrFormat("rank is %d: want 0 to %d (world_size is %d)",
                                                      member.rank, world_size - 1, world_size));
  }
  MutexLock lock(&mu_);
  absl::StatusOr<CommunicatorState*> state =
      FindOrCreate(communicator, world_size, member.backend, create_if_absent);
  if (!state.ok()) return state.status();
  GroupState* current = CurrentGroup(*state, group);
  const auto [holder, inserted] = current->members.emplace(member.rank, member);
  if (!inserted) {
    return absl::AlreadyExistsError(
        absl::StrFormat("rank %d of group '%s' of communicator '%s' is held by process %d",
                        member.rank, group, communicator, holder->second.pid));
  }
  current->gave_up.erase(member.rank);
  JoinResult result;
  result.incarnation = current->incarnation;
  result.counters = (*state)->counters;
  if (current->members.size() == world_size) {
    current->state = v1::Group::STATE_READY;
    result.complete = true;
    for (const auto& [rank, m] : current->members) result.session_ids.push_back(m.session_id);
  }
  return result;
}

void CommunicatorRegistry::Leave(uint64_t session_id, bool gave_up) {
  MutexLock lock(&mu_);
  for (auto& [name, state] : communicators_) {
    for (auto group = state->groups.begin(); group != state->groups.end(); ++group) {
      for (const auto& [rank, member] : group->members) {
        if (member.session_id != session_id) continue;
        if (gave_up) group->gave_up.insert(rank);
        group->members.erase(member.rank);
        if (group->state == v1::Group::STATE_READY) group->state = v1::Group::STATE_BROKEN;
        if (group->members.empty()) state->groups.erase(group);
        return;
      }
    }
  }
}

void CommunicatorRegistry::MarkBroken(uint64_t session_id) {
  MutexLock lock(&mu_);
  for (auto& [name, state] : communicators_) {
    for (GroupState& group : state->groups) {
      for (const auto& [rank, member] : group.members) {
        if (member.session_id == session_id) group.state = v1::Group::STATE_BROKEN;
      }
    }
  }
}

std::vector<uint32_t> CommunicatorRegistry::MissingRanks(const std::string& communicator,
                                                         const std::string& group,
                                                         uint64_t incarnation) const {
  std::vector<uint32_t> missing;
  MutexLock lock(&mu_);
  const auto it = communicators_.find(communicator);
  if (it == communicators_.end()) return missing;
  for (const GroupState& state : it->second->groups) {
    if (state.name != group || state.incarnation != incarnation) continue;
    for (uint32_t rank = 0; rank < it->second->world_size; ++rank) {
      if (state.members.count(rank) == 0 && state.gave_up.count(rank) == 0) missing.push_back(rank);
    }
    if (missing.empty()) missing.assign(state.gave_up.begin(), state.gave_up.end());
  }
  return missing;
}

std::vector<uint64_t> CommunicatorRegistry::GroupSessions(const std::string& communicator,
                                                          const std::string& group) const {
  std::vector<uint64_t> sessions;
  MutexLock lock(&mu_);
  const auto it = communicators_.find(communicator);
  if (it == communicators_.end()) return sessions;
  for (const GroupState& state : it->second->groups) {
    if (state.name != group || state.state == v1::Group::STATE_BROKEN) continue;
    for (const auto& [rank, member] : state.members) sessions.push_back(member.session_id);
  }
  return sessions;
}

uint64_t CommunicatorRegistry::communicator_count() const {
  MutexLock lock(&mu_);
  return communicators_.size();
}

v1::Communicator CommunicatorRegistry::Describe(const std::string& name,
                                                const CommunicatorState& state) const {
  v1::Communicator out;
  out.set_name(name);
  out.set_world_size(state.world_size);
  out.set_backend(state.backend);
  *out.mutable_create_time() = ToTimestamp(state.create_time);
  out.set_created_on_attach(state.created_on_attach);
  const CommunicatorCounters& counters = *state.counters;
  out.set_operations_total(counters.operations.load(std::memory_order_relaxed));
  out.set_operations_failed_total(counters.operations_failed.load(std::memory_order_relaxed));
  out.set_payload_bytes_total(counters.payload_bytes.load(std::memory_order_relaxed));
  out.set_wire_bytes_total(counters.wire_bytes.load(std::memory_order_relaxed));
  out.set_nonfinite_elements_total(counters.nonfinite_elements.load(std::memory_order_relaxed));
  for (const GroupState& group : state.groups) {
    v1::Group* g = out.add_groups();
    g->set_name(group.name);
    g->set_state(group.state);
    g->set_incarnation(group.incarnation);
    for (const auto& [rank, member] : group.members) {
      v1::Session* session = g->add_sessions();
      session->set_session_id(member.session_id);
      session->set_rank(rank);
      session->set_pid(member.pid);
      session->set_uid(member.uid);
      *session->mutable_attach_time() = ToTimestamp(member.attach_time);
      if (member.arenas) {
        session->set_arenas(static_cast<uint32_t>(member.arenas->load(std::memory_order_relaxed)));
      }
      if (member.arena_bytes) {
        session->set_arena_bytes(member.arena_bytes->load(std::memory_order_relaxed));
      }
    }
  }
  return out;
}

void CommunicatorRegistry::AddGroupDetail(v1::Communicator* communicator) const {
  if (!group_detail_) return;
  for (v1::Group& group : *communicator->mutable_groups()) {
    if (group.sessions_size() > 0) group_detail_(group.sessions(0).session_id(), &group);
  }
}

void CommunicatorRegistry::SetEndSessionsHook(
    std::function<void(const std::vector<uint64_t>&)> hook) {
  end_sessions_ = std::move(hook);
}

void CommunicatorRegistry::SetGroupDetailHook(std::function<void(uint64_t, v1::Group*)> hook) {
  group_detail_ = std::move(hook);
}

}  // namespace qrd
