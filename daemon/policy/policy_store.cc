// SPDX-License-Identifier: Apache-2.0
#include "daemon/policy/policy_store.h"

#include <errno.h>
#include <stdio.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/file.h"
#include "daemon/base/text_format.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr char kFileName[] = "policy.textproto";
// Never reached by counting; past it the next one could be 0, which stands for any.
constexpr uint64_t kGenerationMax = uint64_t{1} << 63;

std::string FileText(const PolicyStore::Snapshot& snapshot) {
  v1::GetPolicyResponse file;
  *file.mutable_policy() = snapshot.policy->proto();
  file.set_generation(snapshot.policy->generation());
  file.mutable_set_time()->set_seconds(absl::ToUnixSeconds(snapshot.set_time));
  if (snapshot.set_by_uid.has_value()) file.set_set_by_uid(*snapshot.set_by_uid);
  return absl::StrCat(
      "# Written by qrd: the codec policy in force. Change it with `qrctl policy set`.\n",
      PrintText(file));
}

absl::StatusOr<PolicyStore::Snapshot> ParseFile(const std::string& text, const std::string& path,
                                                const Backend& backend) {
  v1::GetPolicyResponse file;
  if (absl::Status status = ParseText(text, path, &file); !status.ok()) return status;
  if (file.generation() == 0 || file.generation() > kGenerationMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": generation is ", file.generation(), "; want 1 to ", kGenerationMax));
  }
  auto policy = CompiledPolicy::Compile(file.policy(), backend, file.generation());
  if (!policy.ok()) return policy.status();
  PolicyStore::Snapshot snapshot;
  snapshot.policy = *std::move(policy);
  snapshot.set_time = absl::FromUnixSeconds(file.set_time().seconds());
  if (file.has_set_by_uid()) snapshot.set_by_uid = file.set_by_uid();
  return snapshot;
}

absl::StatusOr<PolicyStore::Snapshot> BuiltIn(const v1::Policy& policy, const Backend& backend) {
  auto compiled = CompiledPolicy::Compile(policy, backend, 1);
  if (!compiled.ok()) return compiled.status();
  PolicyStore::Snapshot snapshot;
  snapshot.policy = *std::move(compiled);
  // To the second, as the file keeps it: the same before and after a restart.
  snapshot.set_time = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()));
  return snapshot;
}

// What is in force at start; a bad file is set aside.
absl::StatusOr<PolicyStore::Snapshot> Load(const std::string& path, const v1::Policy& initial,
                                           const Backend& backend) {
  auto first = BuiltIn(initial, backend);
  if (!first.ok()) {
    return absl::Status(first.status().code(),
                        absl::StrCat("initial_policy: ", std::string(first.status().message())));
  }
  const absl::StatusOr<std::string> text = ReadFile(path, kTextFileBytesMax);
  if (absl::IsNotFound(text.status())) return first;
  // An I/O error may pass; starting with another policy would be a silent change.
  if (!text.ok() && !absl::IsInvalidArgument(text.status())) return text.status();
  absl::StatusOr<PolicyStore::Snapshot> kept =
      text.ok() ? ParseFile(*text, path, backend) : text.status();
  if (kept.ok()) return kept;
  const std::string aside = path + ".bad";
  if (rename(path.c_str(), aside.c_str()) != 0) {
    return ErrnoError(errno, absl::StrCat("cannot set the bad policy file ", path, " aside"));
  }
  spdlog::warn(
      "policy: {}; the file is kept as {} and the built-in default (everything auto) is used",
      std::string(kept.status().message()), aside);
  return BuiltIn(v1::Policy(), backend);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PolicyStore>> PolicyStore::Open(const std::string& state_directory,
                                                               const v1::Policy& initial,
                                                               const Backend& backend) {
  const std::string path = absl::StrCat(state_directory, "/", kFileName);
  absl::StatusOr<Snapshot> snapshot = Load(path, initial, backend);
  if (!snapshot.ok()) return snapshot.status();
  std::unique_ptr<PolicyStore> store(new PolicyStore(path, backend));
  MutexLock lock(&store->mu_);
  store->snapshot_ = *std::move(snapshot);
  return store;
}

std::shared_ptr<const CompiledPolicy> PolicyStore::current() const {
  MutexLock lock(&mu_);
  return snapshot_.policy;
}

PolicyStore::Snapshot PolicyStore::snapshot() const {
  MutexLock lock(&mu_);
  return snapshot_;
}

absl::StatusOr<uint64_t> PolicyStore::Set(const v1::Policy& policy, uint64_t expected_generation,
                                          bool validate_only, std::optional<uint32_t> uid) {
  MutexLock write_lock(&write_mu_);
  const uint64_t in_force = current()->generation();
  if (expected_generation != 0 && expected_generation != in_force) {
    return absl::AbortedError(absl::StrCat("expected_generation is ", expected_generation,
                                           ", but generation ", in_force,
                                           " is in force; read the policy and try again"));
  }
  auto compiled = CompiledPolicy::Compile(policy, backend_, in_force + 1);
  if (!compiled.ok()) return compiled.status();
  if (validate_only) return in_force;

  // In seconds, as the file keeps it.
  Snapshot next{*std::move(compiled), absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now())), uid};
  if (absl::Status status = ReplaceFile(path_, FileText(next)); !status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("the policy in force is unchanged (generation ", in_force,
                                     "): ", std::string(status.message())));
  }
  {
    MutexLock lock(&mu_);
    snapshot_ = next;
  }
  for (const auto& [id, listener] : listeners_) listener(next);
  return next.policy->generation();
}

uint64_t PolicyStore::AddListener(std::function<void(const Snapshot&)> listener) {
  MutexLock lock(&write_mu_);
  listeners_.emplace_back(next_listener_, std::move(listener));
  return next_listener_++;
}

void PolicyStore::RemoveListener(uint64_t id) {
  MutexLock lock(&write_mu_);
  listeners_.erase(std::remove_if(listeners_.begin(), listeners_.end(),
                                  [id](const auto& entry) { return entry.first == id; }),
                   listeners_.end());
}

}  // namespace qrd
