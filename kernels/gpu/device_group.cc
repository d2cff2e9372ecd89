// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/device_group.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

// Asking a stream costs a call of the driver: not at every look.
constexpr uint32_t kPollsBetweenChecks = 256;
// Of what is on the streams when a group ends. Kernels give up well before it.
constexpr std::chrono::seconds kEndTimeout{20};

}  // namespace

absl::StatusOr<std::shared_ptr<DevicePool>> DevicePool::Create(std::vector<int> device_of_rank,
                                                               const VisibleMemory* visible,
                                                               const CollectiveLibrary* library) {
  std::shared_ptr<DevicePool> pool(new DevicePool(std::move(device_of_rank), visible));
  if (absl::Status status = pool->Initialize(); !status.ok()) return status;
  pool->OpenLibrary(library);
  return pool;
}

// Libraries want each rank on a device of its own. One that fails here is not offered.
void DevicePool::OpenLibrary(const CollectiveLibrary* library) {
  if (library == nullptr || device_of_rank_.size() < 2 ||
      streams_.size() != device_of_rank_.size()) {
    return;
  }
  absl::StatusOr<std::unique_ptr<LibraryCommunicator>> made =
      LibraryCommunicator::Create(library, collective_->devices());
  if (made.ok()) library_ = *std::move(made);
}

absl::Status DevicePool::Initialize() {
  GpuCollective::Options options;
  options.device_of_rank = device_of_rank_;
  options.result_slots = kInFlightMax;
  auto collective = GpuCollective::Create(options);
  if (!collective.ok()) return collective.status();
  collective_ = *std::move(collective);
  for (const int ordinal : collective_->devices()) {
    const ScopedDevice device(ordinal);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    hipStream_t stream = nullptr;
    QRD_RETURN_IF_RUNTIME_ERROR(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    streams_.push_back(stream);
  }
  const size_t bytes = kInFlightMax * streams_.size() * sizeof(uint32_t);
  void* words = nullptr;
  QRD_RETURN_IF_RUNTIME_ERROR(
      hipHostMalloc(&words, bytes, hipHostMallocMapped | hipHostMallocPortable));
  words_ = static_cast<uint32_t*>(words);
  QRD_RETURN_IF_RUNTIME_ERROR(hipHostGetDevicePointer(&words, words_, 0));
  device_words_ = static_cast<uint32_t*>(words);
  std::fill_n(words_, bytes / sizeof(uint32_t), 0);
  return absl::OkStatus();
}

DevicePool::~DevicePool() {
  if (collective_ != nullptr) collective_->Abort();
  for (size_t i = 0; i < streams_.size(); ++i) {
    const ScopedDevice device(collective_->devices()[i]);
    (void)hipStreamSynchronize(streams_[i]);
    (void)hipStreamDestroy(streams_[i]);
  }
  if (words_ != nullptr) (void)hipHostFree(words_);
}

bool DevicePool::Ended(size_t slot) const {
  const Slot& s = slots_[slot];
  return (s.count_is_last && collective_->HasFinished(static_cast<uint32_t>(slot), s.count)) ||
         Passed(slot);
}

bool DevicePool::Passed(size_t slot) const {
  const auto want = static_cast<uint32_t>(slots_[slot].ticket);
  for (size_t i = 0; i < streams_.size(); ++i) {
    // Acquire: what the operation wrote to host memory before comes with it.
    if (Word(slot, i).load(std::memory_order_acquire) != want) return false;
  }
  return true;
}

absl::Status DevicePool::CheckDevices() {
  for (size_t i = 0; lost_.ok() && i < streams_.size(); ++i) {
    const ScopedDevice device(collective_->devices()[i]);
    const hipError_t error = hipStreamQuery(streams_[i]);
    if (error != hipSuccess && error != hipErrorNotReady) {
      lost_ = FromRuntime(error, "a device of the communicator has failed");
    }
  }
  return lost_;
}

absl::Status DevicePool::MakeHealthy() {
  const absl::Status health = collective_->Health();
  if (health.ok()) return health;
  if (absl::Status status = CheckDevices(); !status.ok()) return status;
  for (size_t slot = 0; slot < kInFlightMax; ++slot) {
    if (slots_[slot].ticket != 0 && !Passed(slot)) {
      return absl::ResourceExhaustedError(
          "operations of the communicator that failed are still ending");
    }
  }
  for (Slot& slot : slots_) {
    StoreMissedDone(&slot);  // the reset forgets who has come to the end
    if (slot.ticket != 0 && slot.failure.ok()) slot.failure = health;
  }
  counted_ = 0;
  return collective_->Reset();
}

void DevicePool::StoreMissedDone(Slot* slot) {
  const auto index = static_cast<uint32_t>(slot - slots_.data());
  for (uint32_t rank = 0; rank < device_of_rank_.size(); ++rank) {
    std::atomic<uint32_t>* const word = std::exchange(slot->done_words[rank], nullptr);
    if (word != nullptr && !collective_->HasStoredDone(rank, index)) {
      word->store(1, std::memory_order_release);
    }
  }
}

absl::Status DevicePool::WriteWords(size_t slot,
                                    std::span<std::atomic<uint32_t>* const> done_words) {
  const std::vector<int>& devices = collective_->devices();
  for (size_t i = 0; i < streams_.size(); ++i) {
    const ScopedDevice device(devices[i]);
    QRD_RETURN_IF_RUNTIME_ERROR(device.error());
    std::array<StreamWord, kWorldSizeMax + 1> words;
    size_t count = 0;
    for (size_t rank = 0; rank < done_words.size(); ++rank) {
      if (done_words[rank] == nullptr || device_of_rank_[rank] != devices[i]) continue;
      words[count++] = {visible_->Translate(done_words[rank]), 1};
    }
    words[count++] = {device_words_ + slot * streams_.size() + i,
                      static_cast<uint32_t>(slots_[slot].ticket)};
    QRD_RETURN_IF_RUNTIME_ERROR(WriteStreamWords(streams_[i], {words.data(), count}));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DevicePool::Launch(const LaunchParams& params,
                                            std::span<std::atomic<uint32_t>* const> done_words) {
  for (std::atomic<uint32_t>* word : done_words) {
    if (word != nullptr && visible_->Translate(word) == nullptr) {
      return absl::InvalidArgumentError("done_words: a word is not in device-visible memory");
    }
  }
  absl::MutexLock lock(&mu_);
  if (!lost_.ok()) return lost_;
  if (absl::Status status = MakeHealthy(); !status.ok()) return status;
  const auto free = std::ranges::find(slots_, uint64_t{0}, &Slot::ticket);
  if (free == slots_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("operations on the devices: ", kInFlightMax, ", the bound of a communicator"));
  }
  const auto slot = static_cast<size_t>(free - slots_.begin());
  const uint64_t ticket = next_ticket_++;
  for (size_t i = 0; i < streams_.size(); ++i) {
    Word(slot, i).store(static_cast<uint32_t>(ticket) - 1, std::memory_order_relaxed);
  }
  Slot next;
  next.ticket = ticket;
  next.count_is_last = collective_->CountIsLast(params);
  std::array<uint32_t*, kWorldSizeMax> told = {};  // of next.done_words, as the devices see them
  for (size_t rank = 0; next.count_is_last && rank < done_words.size(); ++rank) {
    next.done_words[rank] = done_words[rank];
    if (done_words[rank] != nullptr)
      told[rank] = static_cast<uint32_t*>(visible_->Translate(done_words[rank]));
  }
  absl::Status status;
  if (params.algorithm != Algorithm::kLibrary) {
    const size_t tells = next.count_is_last ? device_of_rank_.size() : 0;
    status =
        collective_->Launch(params, streams_, static_cast<uint32_t>(slot), {told.data(), tells});
  } else if (library_ != nullptr) {
    status = library_->AllReduce(params, streams_);
    if (!status.ok()) lost_ = status;  // some devices may have got their part, which waits
  } else {
    status = absl::UnimplementedError("algorithm = library: none serves these ranks");
  }
  if (!status.ok()) {
    // Some devices, or kernels of an operation, may have got their part: it ends by the abort, and
    // all fails.
    const bool refused = absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
    const bool has_parts = streams_.size() > 1 || params.epilogue != Epilogue::kNone;
    if (has_parts && !refused) collective_->Abort();
    return status;
  }
  if (GpuCollective::IsCounted(params)) ++counted_;
  next.count = counted_;
  *free = next;
  if (next.count_is_last) done_words = {};
  status = WriteWords(slot, done_words);
  if (!status.ok()) {
    lost_ = status;  // the streams are in no known state
    return status;
  }
  return ticket;
}

absl::StatusOr<DeviceGroup::Progress> DevicePool::Poll(uint64_t ticket) {
  absl::MutexLock lock(&mu_);
  const auto found = std::ranges::find(slots_, ticket, &Slot::ticket);
  if (ticket == 0 || found == slots_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("ticket = ", ticket, ": not in flight"));
  }
  const auto slot = static_cast<size_t>(found - slots_.begin());
  if (found->failure.ok() && lost_.ok() && !Ended(slot)) {
    if (++polls_ % kPollsBetweenChecks != 0 || CheckDevices().ok()) return DeviceGroup::Progress{};
  }
  absl::Status failure = !lost_.ok() ? lost_ : found->failure;
  if (failure.ok()) failure = collective_->Health();
  if (lost_.ok()) StoreMissedDone(&*found);
  *found = {};
  if (!failure.ok()) return failure;
  return DeviceGroup::Progress{true, collective_->non_finite(static_cast<uint32_t>(slot))};
}

LinkKind DevicePool::link() const {
  if (streams_.size() <= 1) return LinkKind::kSameDevice;
#if defined(QRD_GPU_CUDA)
  return LinkKind::kNvlink;
#else
  return LinkKind::kXgmi;
#endif
}

PooledGroup::~PooledGroup() {
  const auto end = std::chrono::steady_clock::now() + kEndTimeout;
  while (!open_.empty() && std::chrono::steady_clock::now() < end) {
    const uint64_t ticket = open_.back();
    const absl::StatusOr<Progress> progress = Poll(ticket);
    if (progress.ok() && !progress->done) std::this_thread::yield();
  }
}

absl::StatusOr<uint64_t> PooledGroup::Launch(const LaunchParams& params,
                                             std::span<std::atomic<uint32_t>* const> done_words) {
  absl::StatusOr<uint64_t> ticket = pool_->Launch(params, done_words);
  if (ticket.ok()) open_.push_back(*ticket);
  return ticket;
}

absl::StatusOr<DeviceGroup::Progress> PooledGroup::Poll(uint64_t ticket) {
  absl::StatusOr<Progress> progress = pool_->Poll(ticket);
  if (!progress.ok() || progress->done) std::erase(open_, ticket);
  return progress;
}

}  // namespace qrd::gpu
