// SPDX-License-Identifier: Apache-2.0
// The policy in force: versioned, replaced atomically, kept on disk (last known good).
//
// File: <state_directory>/policy.textproto (a GetPolicyResponse), written to a temporary file,
// fsynced and renamed by each Set; a file that does not parse or compile at start is kept aside as
// policy.textproto.bad with a warning and the built-in default (empty policy) is used; the daemon
// starts. Without a file the initial policy is in force, as generation 1, and is not written.
// Thread safety: all functions from any thread. current() is called for every operation: it takes
// no lock that a writer holds during I/O.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/mutex.h"
#include "daemon/policy/policy.h"

namespace qrd {

class PolicyStore {
 public:
  struct Snapshot {
    std::shared_ptr<const CompiledPolicy> policy;
    absl::Time set_time;
    std::optional<uint32_t> set_by_uid;
  };

  // `backend` must outlive the store. `initial` is used if the directory holds no policy.
  static absl::StatusOr<std::unique_ptr<PolicyStore>> Open(const std::string& state_directory,
                                                           const v1::Policy& initial,
                                                           const Backend& backend);

  std::shared_ptr<const CompiledPolicy> current() const;
  Snapshot snapshot() const;

  // ABORTED if expected_generation is neither 0 nor the one in force. INTERNAL/RESOURCE_EXHAUSTED
  // if the file cannot be written (nothing changes then). Returns the generation in force
  // afterwards.
  absl::StatusOr<uint64_t> Set(const v1::Policy& policy, uint64_t expected_generation,
                               bool validate_only, std::optional<uint32_t> uid);

  // Calls `listener(snapshot)` after each replacement, from the thread that made it, until removed.
  // RemoveListener returns only when no call is running. A listener must not block and must call
  // neither Set nor Add- or RemoveListener.
  uint64_t AddListener(std::function<void(const Snapshot&)> listener);
  void RemoveListener(uint64_t id);

 private:
  PolicyStore(std::string path, const Backend& backend)
      : path_(std::move(path)), backend_(backend) {}

  const std::string path_;
  const Backend& backend_;
  Mutex write_mu_;  // serializes Set; held during I/O
  mutable Mutex mu_;
  Snapshot snapshot_ ABSL_GUARDED_BY(mu_);
  uint64_t next_listener_ ABSL_GUARDED_BY(write_mu_) = 1;
  std::vector<std::pair<uint64_t, std::function<void(const Snapshot&)>>> listeners_
      ABSL_GUARDED_BY(write_mu_);
};

}  // namespace qrd
