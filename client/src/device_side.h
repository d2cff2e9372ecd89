// SPDX-License-Identifier: Apache-2.0
// What a communicator has if its tensors are on a device.
//
// Thread safety: the fields above the mutexes are constant after OpenDevice. Order of locks:
// stream_mu, then the one of DeviceMemory, then the communicator's own. stream_mu is held while an
// operation is put on a stream, which orders operations of several threads; also while the first
// one opens the stream segment or staging grows (a message to the daemon, bounded).
// Ownership: the communicator's.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "client/gpu/driver.h"
#include "client/src/device_memory.h"
#include "client/src/stream_session.h"

namespace qrd::client {

struct DeviceSide {
  explicit DeviceSide(DeviceMemory::Source* source) : memory(source) {}

  gpu::Driver* driver = nullptr;
  int device = -1;
  std::string uuid;
  gpu::Context context = nullptr;
  bool retained = false;

  DeviceMemory memory;

  // For the copies of operations that the host waits for.
  std::mutex copy_mu;
  gpu::Stream copy_stream = nullptr;

  std::mutex stream_mu;
  std::unique_ptr<StreamSession> stream;  // null before the first use
  // Why there will never be one.
  qrd_status stream_refusal_status = QRD_OK;
  std::string stream_refusal;
};

}  // namespace qrd::client
