// SPDX-License-Identifier: Apache-2.0
// The vendor's collective library (NCCL or RCCL), for payloads that it serves faster. Loaded at run
// time if it is there: nothing links it, and what is declared here is all that is used of it (the
// public C API of both, which is the same).
//
// It wants every rank on a device of its own. All ranks of a communicator are this process's, so
// one call starts an operation on all of them.
//
// Thread safety: CollectiveLibrary is immutable. LibraryCommunicator: one thread at a time.
// Ownership: the library is never unloaded; a communicator owns the library's communicators.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/gpu/gpu_runtime.h"

namespace qrd::gpu {

class CollectiveLibrary {
 public:
  // `which`: "auto" (by the usual names), "off", or a path. NOT_FOUND or FAILED_PRECONDITION says
  // what was tried.
  static absl::StatusOr<std::unique_ptr<CollectiveLibrary>> Load(std::string_view which);

  const std::string& version() const { return version_; }  // "NCCL 2.28.9"

 private:
  friend class LibraryCommunicator;
  CollectiveLibrary() = default;
  absl::Status Check(int result, const char* call) const;

  std::string version_;
  int (*get_version_)(int*) = nullptr;
  int (*init_all_)(void**, int, const int*) = nullptr;
  int (*destroy_)(void*) = nullptr;
  int (*abort_)(void*) = nullptr;
  int (*group_start_)() = nullptr;
  int (*group_end_)() = nullptr;
  int (*all_reduce_)(const void*, void*, size_t, int, int, void*, hipStream_t) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

class LibraryCommunicator {
 public:
  // One rank a device (runtime ordinals), in this order. Takes its time and device memory.
  static absl::StatusOr<std::unique_ptr<LibraryCommunicator>> Create(
      const CollectiveLibrary* library, std::vector<int> devices);
  ~LibraryCommunicator();
  LibraryCommunicator(const LibraryCommunicator&) = delete;
  LibraryCommunicator& operator=(const LibraryCommunicator&) = delete;

  // A validated operation of codec none, rank r on streams[r]. INTERNAL if the library failed: its
  // communicator is of no use any more.
  absl::Status AllReduce(const LaunchParams& params, std::span<const hipStream_t> streams);

 private:
  LibraryCommunicator(const CollectiveLibrary* library, std::vector<int> devices)
      : library_(library), devices_(std::move(devices)), ranks_(devices_.size(), nullptr) {}

  const CollectiveLibrary* const library_;
  const std::vector<int> devices_;
  std::vector<void*> ranks_;
  bool failed_ = false;
};

}  // namespace qrd::gpu
