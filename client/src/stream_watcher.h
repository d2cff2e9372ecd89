// SPDX-License-Identifier: Apache-2.0
// The thread that keeps a communicator's streams from waiting for ever. It watches the attach
// connection, the daemon's signs of life and the doorbell. Once the daemon is gone, has not moved
// or has not taken an operation for the bound, it lets every operation that the streams come to
// pass, until it is stopped; the results are void and the communicator says so.
//
// Thread safety: Wake from any thread; Start, Stop, Detach from one.
// Ownership: the words are the owner's and must outlive the thread; Detach gives the thread up.
//
// Invariants
//   1. The thread calls no GPU function, takes no signal and never waits without a bound.
//   2. Once releasing, always releasing, and the owner's functions are not called any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "client/core/unique_fd.h"
#include "proto/shm/layout.h"
#include "qrd/qrd.h"

namespace qrd::client {

// Words of the client alone, in a page that the device can write. Each has a cache line.
struct StreamControl {
  // Ticket (1 to kTicketMax) of the last operation that its stream is past. Captured ones have
  // none.
  alignas(64) std::atomic<uint32_t> passed;
  // The gate kernel stores 1 when it has waited for its bound.
  alignas(64) std::atomic<uint32_t> expired;
  // For the test whether stream memory operations work on such memory.
  alignas(64) std::atomic<uint32_t> probe;
};
inline constexpr uint32_t kTicketMax = 0x7FFFFFFFu;

class StreamWatcher {
 public:
  class Owner {
   public:
    // True once the session is lost.
    virtual bool SessionLost() = 0;
    // How long the daemon has not moved, counted from since_ns at the earliest.
    virtual uint64_t DaemonStalledNs(uint64_t since_ns) = 0;
    // The daemon does not get on.
    virtual void LoseSession(qrd_status status, const std::string& text) = 0;

   protected:
    ~Owner() = default;
  };

  StreamWatcher(Owner* owner, shm::StreamHeader* header, const StreamControl* control,
                int socket_fd, uint64_t bound_ns)
      : owner_(owner),
        header_(header),
        control_(control),
        socket_fd_(socket_fd),
        bound_ns_(bound_ns) {}
  ~StreamWatcher() { Stop(); }
  StreamWatcher(const StreamWatcher&) = delete;
  StreamWatcher& operator=(const StreamWatcher&) = delete;

  // QRD_RESOURCE_EXHAUSTED if there is no thread or descriptor to be had.
  qrd_status Start();
  // Something changed (the session is lost): look now.
  void Wake() const;
  void Stop();
  // From here on the thread runs until the process ends, releasing what comes, without its owner.
  void Detach();

 private:
  void Run();
  // False: stop.
  bool Watch();
  void Release();
  bool Sleep(int timeout_ms, bool with_socket) const;
  // Why the daemon is taken for stuck, or null.
  const char* Stuck();
  // The session is lost, or is now. The owner is asked and told.
  bool Lost();

  std::mutex owner_mu_;
  Owner* owner_;  // null: detached
  shm::StreamHeader* const header_;
  const StreamControl* const control_;
  const int socket_fd_;
  const uint64_t bound_ns_;
  UniqueFd wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  // What the doorbell and the count of ended operations were when Stuck last saw them change.
  uint32_t seen_doorbell_ = 0;
  uint64_t seen_operations_ = 0;
  uint64_t since_ns_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace qrd::client
