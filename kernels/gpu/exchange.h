// SPDX-License-Identifier: Apache-2.0
// How a block of one rank meets its twins of the other ranks: rounds (kernels/gpu/kernel_args.h),
// flags, bounded waits, and the report at the end.
//
// Thread safety: block functions: all threads of a block call them together.
#pragma once

#include "kernels/gpu/device.h"
#include "kernels/gpu/kernel_args.h"

namespace qrd::gpu {

inline constexpr uint32_t kWaves = kBlockThreads / kWaveLanes;
// The abort word is in host memory: looked at rarely.
inline constexpr uint32_t kSpinsBetweenChecks = 256;

class Exchange {
 public:
  // Blocks of all local ranks with the same index are neighbours in the grid: even if not all fit,
  // the first ones are complete and can finish.
  explicit QRD_DEVICE Exchange(const AllReduceArgs& args)
      : args_(args),
        rank_(args.local[BlockIndex() % args.local_count]),
        block_(BlockIndex() / args.local_count),
        epoch_(args.controls[rank_]->epochs[block_] + 1) {}

  QRD_DEVICE uint32_t rank() const { return rank_; }
  QRD_DEVICE uint32_t block() const { return block_; }

  // Where wave `wave` of this round's payload from rank `source` lies in the inbox of `rank`.
  QRD_DEVICE uint8_t* Slot(uint32_t rank, uint32_t source, uint32_t wave) const {
    const uint64_t slot =
        ((uint64_t{block_} * 2 + (epoch_ & 1)) * args_.world_size + source) * kWaves + wave;
    return args_.inboxes[rank] + slot * kSlotBytes;
  }

  // Announces that this block's stores of the round are done, and waits for the other ranks'.
  // False: give up; then the block ends at once.
  QRD_DEVICE bool Meet() {
    DrainStores();
    BlockBarrier();
    const uint32_t peer = ThreadIndex();
    const bool waits = peer < args_.world_size && peer != rank_;
    // Release, system scope: after the stores of the whole block, which the barrier put before it.
    if (waits) StoreReleaseSystem(&args_.controls[peer]->flags[block_].of_rank[rank_], epoch_);
    const bool arrived = !waits || WaitFor(peer);
    return BlockAll(arrived);
  }
  // A round without payload: what others did before it is visible after it. False: give up.
  QRD_DEVICE bool PassRound() {
    if (!Meet()) return false;
    Acquire();
    NextRound();
    return true;
  }
  // The same, where a rank may be in another launch; else the stream has the order.
  QRD_DEVICE bool PassRoundApart() { return args_.has_all_ranks || PassRound(); }
  // After Meet() and the last read of the round.
  QRD_DEVICE void NextRound() { ++epoch_; }
  // Call after Meet(), before payload is read.
  QRD_DEVICE void Acquire() const { AcquirePayload(); }

  // The block is done: the next kernel goes on from here, of the same operation, which will report.
  QRD_DEVICE void FinishPart(uint32_t non_finite) const {
    Control* control = args_.controls[rank_];
    if (non_finite != 0) AtomicAddDevice(&control->non_finite, non_finite);
    DrainStores();
    BlockBarrier();
    if (ThreadIndex() == 0) control->epochs[block_] = epoch_ - 1;
  }
  // And the last block of the rank reports: the operation is done.
  QRD_DEVICE void Finish(uint32_t non_finite) const {
    FinishPart(non_finite);
    if (ThreadIndex() != 0) return;
    Control* control = args_.controls[rank_];
    if (!ArriveDevice(&control->arrived, args_.blocks)) return;
    RankStatus& status = args_.status[rank_];
    // Counted on the device: a read of host memory would take as long as a small operation.
    const uint64_t operations = control->operations + 1;
    status.non_finite = control->non_finite;
    status.operations = operations;
    control->operations = operations;
    control->non_finite = 0;
    if (args_.done[rank_] != nullptr) {
      StoreReleaseSystem(args_.done[rank_], 1);  // first: a stream waits for it
      status.done_stored = 1;
    }
    StoreReleaseSystem(&status.finished, static_cast<uint32_t>(operations));
  }

 private:
  QRD_DEVICE bool WaitFor(uint32_t peer) const {
    const uint32_t* flag = &args_.controls[rank_]->flags[block_].of_rank[peer];
    uint64_t start_ns = 0;
    for (uint32_t spins = 1;; ++spins) {
      // Relaxed, system scope; the peer may be one round ahead, and epochs wrap.
      if (static_cast<int32_t>(LoadRelaxedSystem(flag) - epoch_) >= 0) {
        AcquireSystem();
        return true;
      }
      if (spins % kSpinsBetweenChecks == 0) {
        if (LoadRelaxedSystem(args_.abort) != 0) return false;
        const uint64_t now_ns = ClockNs();
        if (start_ns == 0) start_ns = now_ns;
        if (now_ns - start_ns > args_.timeout_ns) return GiveUp(peer);
        SpinPause();
      }
    }
  }

  // Tells the host whom we waited for, and everyone in the communicator to stop.
  QRD_DEVICE bool GiveUp(uint32_t peer) const {
    RankStatus& status = args_.status[rank_];
    StoreRelaxedSystem(&status.missing, peer);
    StoreRelaxedSystem(&status.block, block_);
    StoreRelaxedSystem(&status.epoch, epoch_);
    StoreReleaseSystem(&status.timed_out, 1);
    StoreReleaseSystem(args_.abort, 1);
    return false;
  }

  const AllReduceArgs& args_;
  const uint32_t rank_;
  const uint32_t block_;
  uint32_t epoch_;
};

}  // namespace qrd::gpu
