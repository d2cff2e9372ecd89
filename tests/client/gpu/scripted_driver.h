// SPDX-License-Identifier: Apache-2.0
// The test's side of a CUDA driver without a GPU (scripted_driver.cc, a library that libqrd loads
// by QRD_GPU_DRIVER). Device memory is memory of the process. Streams do nothing by themselves: Run
// executes what is on one until it ends or waits; cuStreamQuery does, too.
//
// The driver is as strict as the real one where libqrd could go wrong: calls without a current
// context fail, and calls that are not allowed in a capture spoil it unless the thread's capture
// mode is relaxed.
//
// Thread safety: all functions from any thread.
#pragma once

#include <cstddef>
#include <string>

namespace qrd::testing {

class ScriptedDriver {
 public:
  // Memory of one of two devices. Of the virtual memory API: memory that cannot be exported.
  virtual void* Allocate(size_t bytes, int device = 0, bool is_virtual = false) = 0;
  virtual void* NewStream() = 0;  // ordered with the default stream
  virtual void* NewNonBlockingStream() = 0;
  // True: it has ended.
  virtual bool Run(void* stream) = 0;

  virtual void BeginCapture(void* stream) = 0;
  // The number of the graph; 0 if the capture was spoilt.
  virtual int EndCapture(void* stream) = 0;
  virtual void SpoilCapture(void* stream) = 0;
  virtual void Launch(int graph, void* stream) = 0;

  // Makes the primary context of the device, or none (-1), current on this thread.
  virtual void SetCurrent(int device) = 0;
  virtual int Current() = 0;
  // What libqrd holds.
  virtual int registered() = 0;
  virtual int open_handles() = 0;
  virtual int retained() = 0;
  virtual int gate_launches() = 0;

 protected:
  ~ScriptedDriver() = default;
};

inline constexpr char kScriptedUuid[] = "GPU-00010203-0405-0607-0809-0a0b0c0d0e00";  // of device 0
inline constexpr char kScriptedAddress[] = "0000:1a:00.0";
// Exported by the library: qrd::testing::ScriptedDriver* qrd_scripted_driver();
inline constexpr char kScriptedDriverSymbol[] = "qrd_scripted_driver";

}  // namespace qrd::testing
