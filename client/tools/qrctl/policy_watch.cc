// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrctl/policy_watch.h"

#include <chrono>

namespace qrd::tools {
namespace {

using Reader = grpc::ClientAsyncReader<v1::WatchPolicyResponse>;

// Waits for the one outstanding operation of the queue; false if `deadline` passed or it failed.
enum class Event { kDone, kFailed, kTimeout };
Event Next(grpc::CompletionQueue& queue, std::chrono::system_clock::time_point deadline) {
  void* tag = nullptr;
  bool ok = false;
  switch (queue.AsyncNext(&tag, &ok, deadline)) {
    case grpc::CompletionQueue::GOT_EVENT:
      return ok ? Event::kDone : Event::kFailed;
    case grpc::CompletionQueue::TIMEOUT:
      return Event::kTimeout;
    case grpc::CompletionQueue::SHUTDOWN:
      break;
  }
  return Event::kFailed;
}

}  // namespace

absl::Status WatchPolicy(ControlClient& client, double first_timeout_s, uint32_t count,
                         const std::function<bool(const v1::WatchPolicyResponse&)>& on_policy) {
  const auto never = std::chrono::system_clock::time_point::max();
  auto deadline = std::chrono::system_clock::now() +
                  std::chrono::microseconds(static_cast<int64_t>(first_timeout_s * 1e6));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  std::unique_ptr<Reader> reader =
      client.policy().AsyncWatchPolicy(&context, v1::WatchPolicyRequest(), &queue, /*tag=*/nullptr);
  bool cancelled = false, timed_out = false;
  Event event = Next(queue, deadline);  // the start of the call
  v1::WatchPolicyResponse reply;
  for (uint32_t seen = 0; event == Event::kDone;) {
    reader->Read(&reply, nullptr);
    event = Next(queue, deadline);
    if (event != Event::kDone) break;
    const bool go_on = on_policy(reply);
    deadline = never;
    if (++seen == count || !go_on) {
      cancelled = true;
      break;
    }
  }
  if (event == Event::kTimeout) {
    timed_out = true;
    context.TryCancel();
    Next(queue, never);  // the cancelled operation
  }
  if (cancelled) context.TryCancel();
  grpc::Status status;
  reader->Finish(&status, nullptr);
  Next(queue, never);
  queue.Shutdown();
  if (cancelled) return absl::OkStatus();
  if (timed_out) {
    return client.Explain(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no policy came"));
  }
  if (status.ok()) return absl::UnavailableError("the daemon ended the stream of policies");
  return client.Explain(status);
}

}  // namespace qrd::tools
