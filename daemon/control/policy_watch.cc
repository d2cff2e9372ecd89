// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/policy_watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace qrd {

// Lives until OnDone(). Start* and Finish are called under mu_ and only before finished_, so never
// on a stream that is done; gRPC runs no reaction inside of them.
class PolicyWatchHub::Stream : public grpc::ServerWriteReactor<v1::WatchPolicyResponse> {
 public:
  explicit Stream(PolicyWatchHub* hub) : hub_(hub) {}

  // Sends the policy in force unless it was sent or a message is under way.
  void Notify() {
    MutexLock lock(&mu_);
    MaybeWrite();
  }

  void End(const grpc::Status& status) {
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::CANCELLED);
    MutexLock lock(&mu_);
    writing_ = false;
    MaybeWrite();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { hub_->Remove(this); }

 private:
  void MaybeWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || writing_) return;
    const std::shared_ptr<const CompiledPolicy> policy = hub_->store_->current();
    if (policy->generation() == sent_generation_) return;
    sent_generation_ = policy->generation();
    message_.set_generation(policy->generation());
    *message_.mutable_policy() = policy->proto();
    writing_ = true;
    StartWrite(&message_);
  }

  PolicyWatchHub* const hub_;
  Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t sent_generation_ ABSL_GUARDED_BY(mu_) = 0;
  v1::WatchPolicyResponse message_;  // while writing_: gRPC's
};

PolicyWatchHub::PolicyWatchHub(PolicyStore* store) : store_(store) {
  listener_id_ = store_->AddListener([this](const PolicyStore::Snapshot&) { NotifyAll(); });
}

PolicyWatchHub::~PolicyWatchHub() { store_->RemoveListener(listener_id_); }

grpc::ServerWriteReactor<v1::WatchPolicyResponse>* PolicyWatchHub::Watch() {
  auto stream = std::make_shared<Stream>(this);
  grpc::Status refusal;
  {
    MutexLock lock(&mu_);
    if (ended_) {
      refusal = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon drains");
    } else if (streams_.size() >= kWatchersMax) {
      refusal = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                             absl::StrCat("there are ", kWatchersMax, " policy watchers; no more"));
    }
    streams_.insert(stream);
  }
  if (refusal.ok()) {
    stream->Notify();
  } else {
    stream->End(refusal);
  }
  return stream.get();
}

void PolicyWatchHub::EndAll() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  for (const auto& stream : Streams()) {
    stream->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon drains"));
  }
}

size_t PolicyWatchHub::watcher_count() const {
  MutexLock lock(&mu_);
  return streams_.size();
}

void PolicyWatchHub::NotifyAll() {
  for (const auto& stream : Streams()) stream->Notify();
}

void PolicyWatchHub::Remove(Stream* stream) {
  std::shared_ptr<Stream> last;  // destroyed outside the lock
  MutexLock lock(&mu_);
  for (auto it = streams_.begin(); it != streams_.end(); ++it) {
    if (it->get() != stream) continue;
    last = *it;
    streams_.erase(it);
    return;
  }
}

std::vector<std::shared_ptr<PolicyWatchHub::Stream>> PolicyWatchHub::Streams() const {
  MutexLock lock(&mu_);
  return {streams_.begin(), streams_.end()};
}

}  // namespace qrd
