// SPDX-License-Identifier: Apache-2.0
// What a benchmark rank needs of a GPU: memory, copies, a stream, timing marks, a graph. The driver
// library (libcuda.so.1, else libamdhip64.so) is loaded when it is asked for, as libqrd does.
//
// Thread safety: none, one rank uses one. Ownership: its stream, marks and graph; memory by
// Allocate lives as long as it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace qrd::tools {

class Gpu {
 public:
  // Makes the device current on this thread, by PCI address ("0000:1b:00.0"), or the
  // (rank mod number of devices)-th if `address` is empty. FAILED_PRECONDITION or NOT_FOUND says
  // what is missing.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& address, uint32_t rank);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int device_count() const { return device_count_; }
  absl::StatusOr<void*> Allocate(size_t bytes);
  // These wait until it is done.
  absl::Status CopyIn(void* device, const void* host, size_t bytes);
  absl::Status CopyOut(void* host, const void* device, size_t bytes);
  absl::Status Synchronize();

  // In the order of the stream.
  void* stream() const { return stream_; }
  absl::Status CopyOnDevice(void* to, const void* from, size_t bytes);
  // A mark in the stream; ElapsedNs between two that the stream has passed.
  absl::Status Mark(size_t index);
  absl::StatusOr<uint64_t> ElapsedNs(size_t from, size_t to);

  // What `record` puts on the stream becomes the graph (in the place of the one before).
  absl::Status Capture(const std::function<absl::Status()>& record);
  absl::Status LaunchGraph();

  // Bytes read and written a second by a copy of 256 MiB, median of several.
  absl::StatusOr<double> CopyBytesPerSecond();

 private:
  struct Api;
  Gpu();
  absl::Status Load();
  absl::Status Check(int result, const char* what) const;
  void DropGraph();

  std::unique_ptr<Api> api_;
  int device_count_ = 0;
  void* stream_ = nullptr;
  std::vector<void*> marks_, allocations_;
  void* graph_ = nullptr;
};

}  // namespace qrd::tools
