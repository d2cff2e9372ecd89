// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/device_runner.h"

#include <utility>

#include "daemon/base/clock.h"

namespace qrd {

void DeviceRunner::Launch(Running* running) {
  Job* job = running->chunk.job;
  absl::StatusOr<uint64_t> ticket =
      running->target.group->Launch(job->params, running->target.done_words);
  if (ticket.ok()) {
    job->launched = true;
    running->ticket = *ticket;
  } else if (!absl::IsResourceExhausted(ticket.status())) {
    job->error = ticket.status();
  }
}

bool DeviceRunner::Poll(Running* running) {
  Job* job = running->chunk.job;
  if (running->ticket == 0) Launch(running);
  uint64_t nonfinite_count = 0;
  if (job->error.ok()) {
    if (running->ticket == 0) return false;
    absl::StatusOr<DeviceGroup::Progress> progress = running->target.group->Poll(running->ticket);
    if (progress.ok() && !progress->done) return false;
    if (progress.ok()) {
      nonfinite_count = progress->nonfinite_count;
    } else {
      job->error = progress.status();
      // A device that failed for good may not have stored to the done words.
      if (absl::IsInternal(job->error)) job->launched = false;
    }
  }
  queue_.Finish(running->chunk, nonfinite_count, MonotonicNs());
  return true;
}

bool DeviceRunner::Step() {
  return std::erase_if(in_flight_, [this](Running& running) { return Poll(&running); }) != 0;
}

}  // namespace qrd
