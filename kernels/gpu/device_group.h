// SPDX-License-Identifier: Apache-2.0
// Groups of ranks on devices, and the pool that the groups of a communicator share: one
// GpuCollective, one stream a device, and the words that tell how far the streams are.
//
// Thread safety: DevicePool: any thread. Ownership: groups share their pool; the pool ends with the
// last of them.
//
// Invariants
//   1. At most kInFlightMax operations of a pool are in flight; each has a result slot and words of
//      its own. One that ended by its kernels' count may leave its slot before the streams have
//      written its words: they hold its ticket, which nobody waits for any more.
//   2. A launched operation's words are written by the streams, whatever the kernel says.
//   3. A done word is stored once: by the kernel if it tells its end (for a rank that did not come
//      to it, by the host, once the streams have passed the operation), else by the streams.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/gpu/collective_library.h"
#include "kernels/gpu/device_memory.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/gpu/gpu_runtime.h"

namespace qrd::gpu {

class DevicePool {
 public:
  static constexpr uint32_t kInFlightMax = 8;

  static absl::StatusOr<std::shared_ptr<DevicePool>> Create(std::vector<int> device_of_rank,
                                                            const VisibleMemory* visible,
                                                            const CollectiveLibrary* library);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // As DeviceGroup.
  absl::StatusOr<uint64_t> Launch(const LaunchParams& params,
                                  std::span<std::atomic<uint32_t>* const> done_words)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<DeviceGroup::Progress> Poll(uint64_t ticket) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort() { collective_->Abort(); }
  LinkKind link() const;
  bool library_available() const { return library_ != nullptr; }
  uint64_t pool_bytes() const;

 private:
  // An operation from Launch() until Poll() has told its end.
  struct Slot {
    uint64_t ticket = 0;   // 0: free
    absl::Status failure;  // of one that was on the streams when the communicator failed
    // Its kernels count it at their very end, as this number (GpuCollective::HasFinished): seen
    // sooner than what the streams write after the kernels. Else the streams tell.
    bool count_is_last = false;
    uint32_t count = 0;
    // By rank, null: none. Of one whose count is last, until they are stored.
    std::array<std::atomic<uint32_t>*, kWorldSizeMax> done_words = {};
  };

  DevicePool(std::vector<int> device_of_rank, const VisibleMemory* visible)
      : device_of_rank_(std::move(device_of_rank)), visible_(visible) {}
  absl::Status Initialize();
  void OpenLibrary(const CollectiveLibrary* library);
  // True once the slot's operation has ended, in success or failure.
  bool Ended(size_t slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True once every stream has passed it.
  bool Passed(size_t slot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The collective works: after a failure, once the streams are empty, it is reset.
  absl::Status MakeHealthy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts the end of the slot's operation on the streams, done words of its own first.
  absl::Status WriteWords(size_t slot, std::span<std::atomic<uint32_t>* const> done_words)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The streams have passed the slot's operation: stores the done words that its kernel has not.
  void StoreMissedDone(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // INTERNAL if a device failed for good; then for ever.
  absl::Status CheckDevices() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::atomic_ref<uint32_t> Word(size_t slot, size_t device_index) const {
    return std::atomic_ref<uint32_t>(words_[slot * streams_.size() + device_index]);
  }

  const std::vector<int> device_of_rank_;
  const VisibleMemory* const visible_;
  std::unique_ptr<GpuCollective> collective_;
  std::unique_ptr<LibraryCommunicator> library_;  // null: none, or ranks that share a device
  std::vector<hipStream_t> streams_;              // by index in collective_->devices()
  uint32_t* words_ = nullptr;         // host memory that the streams write: slots x devices
  uint32_t* device_words_ = nullptr;  // the same, as the devices see it

  absl::Mutex mu_;
  std::array<Slot, kInFlightMax> slots_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  uint32_t counted_ ABSL_GUARDED_BY(mu_) = 0;  // operations, since the collective's start or reset
  uint32_t polls_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

// One group's view of its pool.
class PooledGroup : public DeviceGroup {
 public:
  explicit PooledGroup(std::shared_ptr<DevicePool> pool) : pool_(std::move(pool)) {}
  ~PooledGroup() override;

  absl::StatusOr<uint64_t> Launch(const LaunchParams& params,
                                  std::span<std::atomic<uint32_t>* const> done_words) override;
  absl::StatusOr<Progress> Poll(uint64_t ticket) override;
  void Abort() override { pool_->Abort(); }
  LinkKind link() const override { return pool_->link(); }
  bool library_available() const override { return pool_->library_available(); }

 private:
  const std::shared_ptr<DevicePool> pool_;
  std::vector<uint64_t> open_;  // tickets whose end was not told
};

}  // namespace qrd::gpu
