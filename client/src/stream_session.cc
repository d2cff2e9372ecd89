// SPDX-License-Identifier: Apache-2.0
#include "client/src/stream_session.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/core/keep_forever.h"
#include "client/src/completion.h"

namespace qrd::client {
namespace {

constexpr size_t kControlBytes = 4096;
static_assert(sizeof(StreamControl) <= kControlBytes);
// The gate kernel gives up after the watcher has had its chance.
constexpr uint64_t kGateGraceNs = 10'000'000'000;
// cudaStreamPerThread: one handle for a stream of each thread.
const gpu::Stream kStreamPerThread = reinterpret_cast<gpu::Stream>(2);
constexpr int kStatsTries = 100;
// Streams that are always busy are looked at once in so many operations (a look takes 1.6 us).
constexpr uint32_t kLooksToSkipMax = 63;
// A device that is shared by time slices may take a while to come to a stream.
constexpr uint64_t kProbeNs = 5'000'000'000;

}  // namespace

StreamSession::~StreamSession() {
  watcher_.reset();
  if (control_ == nullptr) return;
  // Only where Open failed or End has not been called: nothing was put on a stream.
  if (control_address_ != 0) driver_->UnregisterHost(control_);
  if (segment_address_ != 0) driver_->UnregisterHost(segment_.data());
  munmap(control_, kControlBytes);
}

qrd_status StreamSession::MapControl() {
  // Shared, so that a fork does not move the pages that the device writes away from this process.
  void* page =
      mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "cannot map the control page of streams: %s",
                strerror(errno));
  }
  madvise(page, kControlBytes, MADV_DONTFORK);
  control_ = new (page) StreamControl{};
  return driver_->RegisterHost(control_, kControlBytes, &control_address_);
}

qrd_status StreamSession::Open(int segment_fd, uint64_t segment_bytes, uint32_t entry_count,
                               StreamWatcher::Owner* owner, int socket_fd, uint64_t bound_ns) {
  qrd_status status = segment_.Map(segment_fd, segment_bytes, entry_count);
  if (status == QRD_OK) status = MapControl();
  if (status == QRD_OK) {
    status = driver_->RegisterHost(segment_.data(), segment_.bytes(), &segment_address_);
  }
  if (status != QRD_OK) return status;
  limits_.expired = ControlWord(&control_->expired);
  limits_.bound_ns = bound_ns + kGateGraceNs;
  if (status = ChooseMode(); status != QRD_OK) return status;
  entries_ = std::make_unique<StreamEntries>(entry_count);
  steps_.reserve(gpu::kStepsMax);
  watcher_ =
      std::make_unique<StreamWatcher>(owner, segment_.header(), control_, socket_fd, bound_ns);
  return watcher_->Start();
}

// A stream waits for the word, the host stores it, the stream answers.
qrd_status StreamSession::ProbeMode(gpu::StepMode mode) {
  gpu::Stream stream = nullptr;
  if (qrd_status status = driver_->CreateStream(&stream); status != QRD_OK) return status;
  const gpu::DevicePtr word = ControlWord(&control_->probe);
  control_->probe.store(0, std::memory_order_release);
  const gpu::Step steps[] = {{true, word, 1}, {false, word, 2}};
  size_t queued = 0;
  qrd_status status = driver_->Enqueue(stream, mode, steps, limits_, &queued);
  bool done = false;
  if (status == QRD_OK) status = driver_->StreamDone(stream, &done);
  if (status == QRD_OK && done) {
    status = Fail(QRD_UNIMPLEMENTED, "the stream did not wait for a word");
  }
  control_->probe.store(1, std::memory_order_release);
  const uint64_t deadline_ns = NowNs() + kProbeNs;
  while (status == QRD_OK && !(done && control_->probe.load(std::memory_order_acquire) == 2)) {
    if (RemainingNs(deadline_ns) == 0) {
      // The stream is given up: to destroy it could block.
      return Fail(QRD_UNIMPLEMENTED, "the stream did not see a word that the host wrote");
    }
    sched_yield();
    status = driver_->StreamDone(stream, &done);
  }
  if (done) driver_->DestroyStream(stream);
  return status;
}

qrd_status StreamSession::ChooseMode() {
  using gpu::StepMode;
  std::vector<StepMode> candidates = {StepMode::kBatch, StepMode::kMemory, StepMode::kKernel};
  const char* forced = std::getenv("QRD_GPU_GATE");
  if (forced != nullptr && forced[0] != '\0') {
    const std::string_view name = forced;
    if (name == "batch") {
      candidates = {StepMode::kBatch};
    } else if (name == "memory") {
      candidates = {StepMode::kMemory};
    } else if (name == "kernel") {
      candidates = {StepMode::kKernel};
    } else {
      return Fail(QRD_INVALID_ARGUMENT, "QRD_GPU_GATE: \"%.64s\", want batch, memory or kernel",
                  forced);
    }
  }
  std::string reasons;
  bool found = false;
  for (const StepMode mode : candidates) {
    qrd_status status = driver_->PrepareSteps(device_, mode);
    if (status == QRD_OK) status = ProbeMode(mode);
    if ((found = status == QRD_OK)) {
      mode_ = mode;
      break;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(LastError());
  }
  if (!found) {
    return Fail(QRD_UNIMPLEMENTED, "no way to order operations on a stream of this device: %.600s",
                reasons.c_str());
  }
  captured_mode_ = mode_;
  if (driver_->Capturable(mode_)) return QRD_OK;
  // Loaded now: nothing may be loaded while operations are on their way.
  captured_mode_ = StepMode::kKernel;
  if (driver_->PrepareSteps(device_, captured_mode_) != QRD_OK) capture_refusal_ = LastError();
  return QRD_OK;
}

StreamSession::StreamKey StreamSession::KeyOf(gpu::Stream stream) const {
  StreamKey key;
  key.stream = stream;
  key.has_id = driver_->StreamId(stream, &key.id);
  return key;
}

bool StreamSession::SameStream(const StreamKey& a, const StreamKey& b) {
  if (a.has_id && b.has_id) return a.id == b.id;
  return a.stream == b.stream && a.stream != kStreamPerThread;
}

bool StreamSession::Passed(uint32_t ticket) const {
  // Tickets pass in order and wrap: the newer half of the circle has not come yet.
  const uint32_t passed = control_->passed.load(std::memory_order_acquire);
  const uint32_t ahead = (passed + kTicketMax - ticket) % kTicketMax;
  return passed != 0 && ahead < kTicketMax / 2;
}

qrd_status StreamSession::Enqueue(gpu::Stream stream, bool captured, std::vector<gpu::Step>* steps,
                                  bool* begun) {
  size_t queued = 0;
  const qrd_status status =
      driver_->Enqueue(stream, captured ? captured_mode_ : mode_, *steps, limits_, &queued);
  if (queued > 0) *begun = true;
  steps->clear();
  return status;
}

// The stream waits for the ticket before, but nothing of an operation follows. The word must not
// move on before the stream has seen that ticket: so this one is used up.
qrd_status StreamSession::PassUnused(gpu::Stream stream, uint32_t ticket, const StreamKey& key,
                                     qrd_status status, bool* begun) {
  const SavedError error;
  bool queued = false;
  steps_.assign({{false, ControlWord(&control_->passed), ticket}});
  *begun = Enqueue(stream, false, &steps_, &queued) != QRD_OK;
  last_ticket_ = ticket;
  last_stream_ = key;
  return error.Restore(status);
}

bool StreamSession::MayRing(gpu::Stream stream, const StreamKey& key) {
  if (last_ticket_ != 0 && !Passed(last_ticket_)) return false;
  if (looks_to_skip_ > 0) {
    --looks_to_skip_;
    return false;
  }
  // A handle without a number may have become another stream's.
  if (!key.has_id || !SameStream(key, looked_at_)) non_blocking_ = driver_->IsNonBlocking(stream);
  looked_at_ = key;
  if (!non_blocking_) return false;
  bool done = false;
  // A stream that has failed says so to the steps that follow.
  if (driver_->StreamDone(stream, &done) != QRD_OK) return false;
  busy_looks_ = done ? 0 : std::min(2 * busy_looks_ + 1, kLooksToSkipMax);
  looks_to_skip_ = busy_looks_;
  return done;
}

qrd_status StreamSession::Put(gpu::Stream stream, uint32_t entry, bool captured, const Copy& in,
                              const Copy& out, bool* begun) {
  *begun = false;
  shm::StreamHeader* const header = segment_.header();
  const uint32_t ticket = NextTicket();
  const StreamKey key = captured ? StreamKey{} : KeyOf(stream);
  bool waited = false;
  qrd_status status = QRD_OK;
  steps_.clear();
  if (!captured && last_ticket_ != 0 && !SameStream(key, last_stream_) && !Passed(last_ticket_)) {
    steps_.push_back({true, ControlWord(&control_->passed), last_ticket_});
  }
  if (in.bytes > 0) {
    // Not yet the operation's own steps: should the copy fail, nothing has begun.
    if (!steps_.empty()) status = Enqueue(stream, captured, &steps_, &waited);
    if (status == QRD_OK) status = driver_->Copy(stream, in.to, in.from, in.bytes);
    if (status != QRD_OK) return waited ? PassUnused(stream, ticket, key, status, begun) : status;
  }
  if (!captured && in.bytes == 0 && MayRing(stream, key)) {
    header->done.store(0, std::memory_order_relaxed);
    header->doorbell.store(entry + 1, std::memory_order_release);
    *begun = true;
  } else {
    steps_.push_back({false, SegmentWord(&header->done), 0});
    steps_.push_back({false, SegmentWord(&header->doorbell), entry + 1});
  }
  steps_.push_back({true, SegmentWord(&header->done), 1});
  if (out.bytes > 0) {
    status = Enqueue(stream, captured, &steps_, begun);
    if (status == QRD_OK) status = driver_->Copy(stream, out.to, out.from, out.bytes);
  }
  if (status == QRD_OK && !captured) {
    steps_.push_back({false, ControlWord(&control_->passed), ticket});
  }
  if (status == QRD_OK && !steps_.empty()) status = Enqueue(stream, captured, &steps_, begun);
  if (!captured && (status == QRD_OK || *begun)) {
    last_ticket_ = ticket;
    last_stream_ = key;
  }
  return status;
}

const StreamSession::Failure& StreamSession::CheckFailure() {
  if (failure_.status != QRD_OK) return failure_;
  const uint32_t failed = segment_.header()->failed_entry.load(std::memory_order_acquire);
  if (failed == 0) return failure_;
  if (failed > entries_->count()) {
    failure_.text = "the daemon's failed_entry is " + std::to_string(failed) + ", want at most " +
                    std::to_string(entries_->count());
    failure_.status = QRD_INTERNAL;
    return failure_;
  }
  const shm::Completion& completion = segment_.entry(failed - 1)->completion;
  const Result result = ReadResult(completion, completion.sequence);
  failure_.stats.sequence = completion.sequence;
  failure_.stats.payload_bytes = completion.payload_bytes;
  failure_.stats.staged = entries_->staged(failed - 1) ? 1 : 0;
  CopyStats(completion, &failure_.stats);
  // The daemon says that it failed: a status of OK is not to be believed.
  failure_.status = result.status == QRD_OK ? QRD_INTERNAL : result.status;
  failure_.stats.status = failure_.status;
  failure_.text = ResultText(result, completion.sequence);
  return failure_;
}

bool StreamSession::ReadStats(uint32_t entry, qrd_op_stats* stats) const {
  const shm::Completion& shared = segment_.entry(entry)->completion;
  // The daemon may be writing it for a later operation: two equal copies are one completion.
  alignas(shm::Completion) std::byte first[sizeof(shm::Completion)];
  alignas(shm::Completion) std::byte second[sizeof(shm::Completion)];
  const auto copy = [&](std::byte* to) {
    const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(&shared);
    for (size_t i = 0; i < sizeof(shm::Completion) / sizeof(uint64_t); ++i) {
      const uint64_t word = words[i].load(std::memory_order_acquire);
      std::memcpy(to + i * sizeof(word), &word, sizeof(word));
    }
  };
  for (int tries = 0; tries < kStatsTries; ++tries) {
    copy(first);
    copy(second);
    if (std::memcmp(first, second, sizeof(first)) != 0) continue;
    const auto& completion = *reinterpret_cast<const shm::Completion*>(first);
    *stats = QRD_OP_STATS_INIT;
    stats->status = ReadResult(completion, completion.sequence).status;
    stats->sequence = completion.sequence;
    stats->payload_bytes = completion.payload_bytes;
    stats->staged = entries_->staged(entry) ? 1 : 0;
    CopyStats(completion, stats);
    return true;
  }
  return false;
}

bool StreamSession::LastStats(qrd_op_stats* stats) const {
  uint64_t last_sequence = 0;
  uint32_t last_entry = 0;
  for (uint32_t entry = 0; entry < entries_->touched(); ++entry) {
    // 0: never ended. An entry that waits for another turn has the completion of its last one.
    const uint64_t sequence = segment_.entry(entry)->completion.sequence;
    if (sequence <= last_sequence) continue;
    last_sequence = sequence;
    last_entry = entry;
  }
  return last_sequence != 0 && ReadStats(last_entry, stats);
}

bool StreamSession::End(uint64_t deadline_ns) {
  while (!Quiet() && RemainingNs(deadline_ns) > 0) {
    const timespec nap{0, 200'000};
    nanosleep(&nap, nullptr);
  }
  if (!Quiet()) {
    // A stream may come to an operation at any time: the watcher lets it pass, for good.
    watcher_->Detach();
    watcher_->Wake();
    KeepForever(std::move(watcher_));
    segment_.Leak();
    control_ = nullptr;
    return false;
  }
  // A graph that still runs, against the rules, is released while the driver waits for it here.
  if (entries_->kept() == 0) watcher_->Stop();
  driver_->UnregisterHost(segment_.data());
  driver_->UnregisterHost(control_);
  watcher_->Stop();
  segment_address_ = 0;
  control_address_ = 0;
  return true;
}

}  // namespace qrd::client
