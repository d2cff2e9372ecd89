// SPDX-License-Identifier: Apache-2.0
// Attach, loss of the daemon, abort.
#include "client/src/comm.h"

#include <algorithm>
#include <utility>

#include "client/core/clock.h"
#include "client/core/error.h"
#include "client/src/device_side.h"
#include "client/src/version.h"
#include "proto/shm/layout.h"

namespace qrd::client {
namespace {

// Hello, arenas and abort need no other rank, so the daemon answers at once or is stuck.
constexpr uint64_t kCallTimeoutMs = 10'000;
// The daemon's answer names the missing ranks; it is worth waiting a little longer than the caller
// said.
constexpr uint64_t kJoinGraceMs = 1'000;
constexpr uint32_t kAttachTimeoutMsDefault = 30'000;
constexpr uint32_t kSpinUsMax = 10'000;

}  // namespace

qrd_status Comm::Attach(const AttachOptions& options, std::unique_ptr<Comm>* comm) {
  std::unique_ptr<Comm> made(new Comm);
  if (!options.device.empty()) {
    // Before the daemon is asked: what is wrong on this side costs the other ranks nothing.
    if (qrd_status status = made->OpenDevice(options.device); status != QRD_OK) return status;
  }
  if (qrd_status status = made->Open(options); status != QRD_OK) return status;
  *comm = std::move(made);
  return QRD_OK;
}

Comm::Comm() = default;

Comm::~Comm() {
  if (device_ != nullptr) CloseDevice();
  // Disarmed before the descriptors close: a fork in between must not close others' descriptors.
  fork_guard_.Disarm();
}

qrd_status Comm::Open(const AttachOptions& options) {
  rank_ = options.rank;
  world_size_ = options.world_size;
  const uint64_t start_ns = NowNs();
  const uint64_t limit_ms = options.timeout_ms == 0
                                ? kCallTimeoutMs
                                : std::min<uint64_t>(options.timeout_ms, kCallTimeoutMs);
  const uint64_t hello_deadline_ns = start_ns + limit_ms * kNsPerMs;
  if (qrd_status status = socket_.Connect(options.attach_path, hello_deadline_ns);
      status != QRD_OK) {
    return status;
  }
  v1::ClientMessage request;
  request.mutable_hello()->set_layout_version(shm::kLayoutVersion);
  request.mutable_hello()->set_client_version(Version());
  v1::ServerMessage reply;
  qrd_status status = socket_.Call(request, "Hello", v1::ServerMessage::kWelcome, 0,
                                   hello_deadline_ns, &reply, nullptr);
  if (status != QRD_OK) return status;
  if (reply.welcome().layout_version() != shm::kLayoutVersion) {
    return Fail(QRD_FAILED_PRECONDITION,
                "Hello: the daemon (%.64s) speaks layout version %u, this library (%s) version %u",
                reply.welcome().daemon_version().c_str(), reply.welcome().layout_version(),
                Version(), shm::kLayoutVersion);
  }
  uint64_t join_ms = options.timeout_ms;
  if (join_ms == 0) join_ms = reply.welcome().attach_timeout_ms();
  if (join_ms == 0) join_ms = kAttachTimeoutMsDefault;
  return Join(options, start_ns + join_ms * kNsPerMs);
}

qrd_status Comm::Join(const AttachOptions& options, uint64_t deadline_ns) {
  v1::ClientMessage request;
  v1::Join& join = *request.mutable_join();
  join.set_communicator(options.communicator);
  join.set_group(options.group);
  join.set_rank(options.rank);
  join.set_world_size(options.world_size);
  join.set_create_if_absent(options.create_if_absent);
  if (device_ != nullptr) join.set_device(device_->uuid);
  if (options.timeout_ms != 0) {
    join.set_timeout_ms(std::max<uint32_t>(1, RemainingPollMs(deadline_ns)));
  }
  v1::ServerMessage reply;
  std::vector<UniqueFd> fds;
  qrd_status status = socket_.Call(request, "Join", v1::ServerMessage::kJoined, 3,
                                   deadline_ns + kJoinGraceMs * kNsPerMs, &reply, &fds);
  if (status != QRD_OK) return status;
  const v1::Joined& joined = reply.joined();
  const std::string& device = device_ != nullptr ? device_->uuid : std::string();
  if (joined.device() != device) {
    return Fail(QRD_INTERNAL, "Join: the daemon answers for device \"%.64s\", want \"%.64s\"",
                joined.device().c_str(), device.c_str());
  }
  operation_timeout_ms_ = joined.operation_timeout_ms();
  status = node_.Map(fds[0].get(), joined.node_segment_bytes());
  if (status != QRD_OK) return status;
  status = session_.Map(fds[1].get(), joined.session_segment_bytes(), rank_, world_size_);
  if (status != QRD_OK) return status;
  if (!PrepareDoorbell(fds[2].get())) {
    return Fail(QRD_INTERNAL, "doorbell from the daemon is not an eventfd");
  }
  doorbell_ = std::move(fds[2]);
  spin_ = std::make_unique<SpinBudget>(uint64_t{std::min(joined.spin_us_max(), kSpinUsMax)} * 1000);
  operations_ = std::make_unique<OperationTable>(session_.slot_count());
  ring_ = RingProducer(session_.producer(), session_.consumer(), session_.ring(),
                       session_.slot_count(), node_.engine_sleeping(), doorbell_.get());
  fork_guard_.Arm(socket_.fd(), doorbell_.get());
  return QRD_OK;
}

qrd_status Comm::CallDaemon(const v1::ClientMessage& request, const char* what,
                            v1::ServerMessage::MessageCase want, size_t want_fds,
                            v1::ServerMessage* reply, std::vector<UniqueFd>* fds) {
  if (IsLost()) return FailLost();
  qrd_status status;
  {
    const std::lock_guard<std::mutex> lock(call_mu_);
    status = socket_.Call(request, what, want, want_fds, NowNs() + kCallTimeoutMs * kNsPerMs, reply,
                          fds);
  }
  // A failure that ends the connection loses the daemon for everyone, with this call's text.
  if (status == QRD_OK || !socket_.HungUp()) return status;
  const bool daemon_spoke = reply->has_error() || socket_.spoke();
  MarkLost(daemon_spoke ? status : QRD_DAEMON_LOST, LastError());
  return FailLost();
}

bool Comm::CheckLost() {
  if (IsLost()) return true;
  if (!socket_.HungUp()) return false;
  // A daemon that ends a session by itself may say why. A call in progress gets to read it instead.
  std::string words;
  qrd_status status = QRD_DAEMON_LOST;
  bool spoke = false;
  if (call_mu_.try_lock()) {
    spoke = socket_.LastWords(&status, &words);
    call_mu_.unlock();
  }
  MarkLost(status, spoke ? words : "the attach connection is closed");
  return true;
}

void Comm::MarkLost(qrd_status status, const std::string& text) {
  const std::lock_guard<std::mutex> lock(lost_mu_);
  if (lost_.load(std::memory_order_relaxed)) return;
  lost_status_ = status;
  lost_text_ = "the session with the daemon has ended (finalize and init again): " + text;
  lost_.store(true, std::memory_order_release);
}

qrd_status Comm::FailLost() {
  const std::lock_guard<std::mutex> lock(lost_mu_);
  return Fail(lost_status_, "%.700s", lost_text_.c_str());
}

qrd_status Comm::Abort(const std::string& reason) {
  v1::ClientMessage request;
  request.mutable_abort()->set_reason(reason);
  v1::ServerMessage reply;
  return CallDaemon(request, "Abort", v1::ServerMessage::kAborted, 0, &reply, nullptr);
}

}  // namespace qrd::client
