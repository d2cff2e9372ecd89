// SPDX-License-Identifier: Apache-2.0
// What a communicator needs once it puts operations on streams: the stream segment and a control
// page, both registered with the GPU driver, the way steps are put on a stream, the entries, the
// staging memory and the watcher thread.
//
// Thread safety: none, the communicator's stream mutex guards it; the watcher looks after itself.
// Ownership: owns all of it. End() decides whether the memory may go.
//
// The steps of one operation, in stream order:
//   [wait passed = the ticket before]   only if that one is on another stream
//   [copy input to staging]
//   write doorbell = entry + 1, wait done = 1, write done = 0
//   [copy staging to output]
//   [write passed = ticket]             not in captures: it would be the same at every launch
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/stream_segment.h"
#include "client/gpu/driver.h"
#include "client/src/memory_table.h"
#include "client/src/stream_entries.h"
#include "client/src/stream_watcher.h"
#include "qrd/qrd.h"

namespace qrd::client {

class StreamSession {
 public:
  struct Failure {
    qrd_status status = QRD_OK;
    std::string text;
    qrd_op_stats stats = QRD_OP_STATS_INIT;
  };
  // Between the steps of an operation.
  struct Copy {
    gpu::DevicePtr to = 0;
    gpu::DevicePtr from = 0;
    size_t bytes = 0;  // 0: nothing to copy
  };

  StreamSession(gpu::Driver* driver, int device) : driver_(driver), device_(device) {}
  ~StreamSession();

  // Maps, registers, chooses how to put steps on a stream, starts the watcher. The driver's context
  // is current, here and below. bound_ns: see StreamWatcher.
  qrd_status Open(int segment_fd, uint64_t segment_bytes, uint32_t entry_count,
                  StreamWatcher::Owner* owner, int socket_fd, uint64_t bound_ns);

  // Puts one operation on a stream. *begun is true if part of it is there although it failed: then
  // the stream needs the watcher to get on.
  qrd_status Put(gpu::Stream stream, uint32_t entry, bool captured, const Copy& in, const Copy& out,
                 bool* begun);
  // The ticket that the next Put of an operation that is not captured will have.
  uint32_t NextTicket() const { return last_ticket_ % kTicketMax + 1; }
  // The stream has passed the operation of this ticket.
  bool Passed(uint32_t ticket) const;
  // No operation that was put on a stream once is still to come. Of captured ones nothing is known.
  bool Quiet() const { return control_->passed.load(std::memory_order_acquire) == last_ticket_; }

  // Looks for the first failure of an operation; sticky.
  const Failure& CheckFailure();
  // The entry's completion as stats. False if the daemon was writing it.
  bool ReadStats(uint32_t entry, qrd_op_stats* stats) const;
  // The operation that ended last. False if none has.
  bool LastStats(qrd_op_stats* stats) const;

  // The session is lost: the watcher shall notice now.
  void Wake() const { watcher_->Wake(); }
  // The session must be lost unless this is Quiet. Waits until the streams are past everything, at
  // most so long. True: they are, and the memory was unregistered. False: they are not; watcher and
  // memory stay until the process ends.
  bool End(uint64_t deadline_ns);

  StreamEntries& entries() { return *entries_; }
  const StreamSegment& segment() const { return segment_; }
  gpu::StepMode mode() const { return mode_; }
  const std::string& capture_refusal() const { return capture_refusal_; }

  // Grown by the communicator; old ones stay, since captured graphs use them.
  std::vector<std::unique_ptr<Arena>> staging;

 private:
  struct StreamKey {
    gpu::Stream stream = nullptr;
    bool has_id = false;
    uint64_t id = 0;
  };
  StreamKey KeyOf(gpu::Stream stream) const;
  static bool SameStream(const StreamKey& a, const StreamKey& b);
  qrd_status MapControl();
  qrd_status ChooseMode();
  qrd_status ProbeMode(gpu::StepMode mode);
  qrd_status Enqueue(gpu::Stream stream, bool captured, std::vector<gpu::Step>* steps, bool* begun);
  qrd_status PassUnused(gpu::Stream stream, uint32_t ticket, const StreamKey& key,
                        qrd_status status, bool* begun);
  // The stream has nothing to wait for, so the host may ring in its place: one way through the
  // device less. Looks at the stream, but not at every call of somebody whose streams are busy.
  bool MayRing(gpu::Stream stream, const StreamKey& key);
  gpu::DevicePtr Word(const void* word, const void* page, gpu::DevicePtr device_page) const {
    return device_page + static_cast<gpu::DevicePtr>(static_cast<const std::byte*>(word) -
                                                     static_cast<const std::byte*>(page));
  }
  gpu::DevicePtr SegmentWord(const void* word) const {
    return Word(word, segment_.data(), segment_address_);
  }
  gpu::DevicePtr ControlWord(const void* word) const {
    return Word(word, control_, control_address_);
  }

  gpu::Driver* const driver_;
  const int device_;
  StreamSegment segment_;
  StreamControl* control_ = nullptr;
  gpu::DevicePtr segment_address_ = 0;
  gpu::DevicePtr control_address_ = 0;
  gpu::StepMode mode_ = gpu::StepMode::kMemory;
  gpu::StepMode captured_mode_ = gpu::StepMode::kMemory;
  std::string capture_refusal_;  // why nothing can be captured, "" if it can
  gpu::GateLimits limits_;
  std::unique_ptr<StreamEntries> entries_;
  std::unique_ptr<StreamWatcher> watcher_;
  std::vector<gpu::Step> steps_;  // of Put, kept to allocate once
  Failure failure_;

  uint32_t last_ticket_ = 0;
  StreamKey last_stream_;

  StreamKey looked_at_;  // by MayRing
  bool non_blocking_ = false;
  uint32_t busy_looks_ = 0;  // grows with every busy stream that MayRing sees in a row
  uint32_t looks_to_skip_ = 0;
};

}  // namespace qrd::client
