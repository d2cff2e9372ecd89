// SPDX-License-Identifier: Apache-2.0
// The open WatchPolicy streams. No thread a stream: gRPC's callback API.
//
// Each stream has at most one message under way; when that is written, the policy then in force
// goes out, if it is another one. So a slow reader costs one message and misses intermediate
// generations.
//
// Thread safety: all functions from any thread.
// Ownership: a stream lives until gRPC says that it is done; the hub must outlive the gRPC server.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "daemon/base/mutex.h"
#include "daemon/policy/policy_store.h"
#include "grpcpp/support/server_callback.h"
#include "qrd/v1/policy.pb.h"

namespace qrd {

class PolicyWatchHub {
 public:
  static constexpr size_t kWatchersMax = 64;

  explicit PolicyWatchHub(PolicyStore* store);
  ~PolicyWatchHub();

  // The reactor of a new stream; it ends at once with RESOURCE_EXHAUSTED at kWatchersMax and with
  // UNAVAILABLE after EndAll().
  grpc::ServerWriteReactor<v1::WatchPolicyResponse>* Watch();
  // Ends all streams with UNAVAILABLE, now and in future.
  void EndAll();
  size_t watcher_count() const;

 private:
  class Stream;
  void NotifyAll();
  void Remove(Stream* stream);
  std::vector<std::shared_ptr<Stream>> Streams() const;

  PolicyStore* const store_;
  uint64_t listener_id_ = 0;
  mutable Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace qrd
