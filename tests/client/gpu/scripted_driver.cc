// SPDX-License-Identifier: Apache-2.0
// See scripted_driver.h. The CUDA functions are those of client/gpu/cuda_api.h.
#include "tests/client/gpu/scripted_driver.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "client/gpu/cuda_api.h"
#include "client/gpu/gate_kernel.h"

using namespace qrd::client::gpu::cuda;  // NOLINT: the list of functions names its types
#define QRD_DECLARE(member, symbol, parameters) extern "C" int symbol parameters;
QRD_CUDA_FUNCTIONS(QRD_DECLARE, QRD_DECLARE)
#undef QRD_DECLARE

namespace qrd::testing {
namespace {

constexpr int kDevices = 2;
constexpr int kCaptureUnsupported = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
constexpr int kCaptureInvalidated = 2;    // CU_STREAM_CAPTURE_STATUS_INVALIDATED

struct Item {
  enum class Kind { kWrite, kWait, kCopy } kind;
  uint64_t to;
  uint64_t from;  // of a copy, else the value
  size_t bytes;
};
struct ScriptedStream {
  std::deque<Item> items;
  int capture = kCaptureNone;
  std::vector<Item> captured;
  uint64_t id = 0;
  bool non_blocking = false;
};
struct Allocation {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
  int device = 0;
  bool is_virtual = false;
};

char contexts[kDevices];
char gate_module, gate_function;
thread_local void* current = nullptr;
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

class Script final : public ScriptedDriver {
 public:
  void* Allocate(size_t bytes, int device, bool is_virtual) override;
  void* NewStream() override;
  void* NewNonBlockingStream() override;
  bool Run(void* stream) override;
  void BeginCapture(void* stream) override;
  int EndCapture(void* stream) override;
  void SpoilCapture(void* stream) override;
  void Launch(int graph, void* stream) override;
  void SetCurrent(int device) override { current = device < 0 ? nullptr : &contexts[device]; }
  int Current() override {
    return current == nullptr ? -1 : static_cast<int>(static_cast<char*>(current) - contexts);
  }
  int registered() override { return Count(&registered_); }
  int open_handles() override { return Count(&handles_); }
  int retained() override { return retained_; }
  int gate_launches() override { return gate_launches_; }

  // The allocation that holds the address, or null.
  const Allocation* Find(uint64_t address);
  // What a call begins with: kSuccess if a context is current and, for calls that no capture of
  // another thread allows (unless this thread is relaxed), nobody captures.
  int Check(bool allowed_in_captures);
  int Put(void* stream, const std::vector<Item>& items);
  int Insert(std::set<uint64_t>* to, uint64_t value);
  int Erase(std::set<uint64_t>* from, uint64_t value);

  std::mutex mu;
  std::map<void*, std::unique_ptr<ScriptedStream>> streams;
  std::set<uint64_t> registered_;
  std::set<uint64_t> handles_;
  std::atomic<int> retained_{0};
  std::atomic<int> gate_launches_{0};

 private:
  int Count(const std::set<uint64_t>* of) {
    const std::lock_guard<std::mutex> lock(mu);
    return static_cast<int>(of->size());
  }

  std::vector<Allocation> allocations_;
  std::map<int, std::vector<Item>> graphs_;
  uint64_t streams_made_ = 0;
};

Script& TheScript() {
  static auto* const script = new Script;
  return *script;
}

void* Script::Allocate(size_t bytes, int device, bool is_virtual) {
  const std::lock_guard<std::mutex> lock(mu);
  allocations_.push_back({std::make_unique<std::byte[]>(bytes), bytes, device, is_virtual});
  return allocations_.back().data.get();
}

const Allocation* Script::Find(uint64_t address) {
  for (const Allocation& allocation : allocations_) {
    const auto start = reinterpret_cast<uintptr_t>(allocation.data.get());
    if (address >= start && address - start < allocation.bytes) return &allocation;
  }
  return nullptr;
}

void* Script::NewStream() {
  const std::lock_guard<std::mutex> lock(mu);
  auto made = std::make_unique<ScriptedStream>();
  made->id = ++streams_made_;
  void* const handle = made.get();
  streams[handle] = std::move(made);
  return handle;
}

void* Script::NewNonBlockingStream() {
  void* const stream = NewStream();
  const std::lock_guard<std::mutex> lock(mu);
  streams[stream]->non_blocking = true;
  return stream;
}

bool Script::Run(void* stream) {
  const std::lock_guard<std::mutex> lock(mu);
  std::deque<Item>& items = streams.at(stream)->items;
  while (!items.empty()) {
    const Item& item = items.front();
    auto* const word = reinterpret_cast<std::atomic<uint32_t>*>(item.to);
    if (item.kind == Item::Kind::kCopy) {
      std::memcpy(reinterpret_cast<void*>(item.to), reinterpret_cast<const void*>(item.from),
                  item.bytes);
    } else if (item.kind == Item::Kind::kWrite) {
      word->store(static_cast<uint32_t>(item.from), std::memory_order_release);
    } else if (word->load(std::memory_order_acquire) != item.from) {
      return false;
    }
    items.pop_front();
  }
  return true;
}

void Script::BeginCapture(void* stream) {
  const std::lock_guard<std::mutex> lock(mu);
  streams.at(stream)->capture = kCaptureActive;
}

int Script::EndCapture(void* stream) {
  const std::lock_guard<std::mutex> lock(mu);
  ScriptedStream& capturing = *streams.at(stream);
  const bool good = capturing.capture == kCaptureActive;
  capturing.capture = kCaptureNone;
  std::vector<Item> items;
  items.swap(capturing.captured);
  if (!good) return 0;
  const int graph = static_cast<int>(graphs_.size()) + 1;
  graphs_[graph] = std::move(items);
  return graph;
}

void Script::SpoilCapture(void* stream) {
  const std::lock_guard<std::mutex> lock(mu);
  streams.at(stream)->capture = kCaptureInvalidated;
}

void Script::Launch(int graph, void* stream) {
  const std::lock_guard<std::mutex> lock(mu);
  for (const Item& item : graphs_.at(graph)) streams.at(stream)->items.push_back(item);
}

int Script::Check(bool allowed_in_captures) {
  if (current == nullptr) return kErrorInvalidContext;
  if (allowed_in_captures || capture_mode == kCaptureModeRelaxed) return kSuccess;
  int result = kSuccess;
  for (auto& [handle, stream] : streams) {
    if (stream->capture != kCaptureActive) continue;
    stream->capture = kCaptureInvalidated;
    result = kCaptureUnsupported;
  }
  return result;
}

int Script::Put(void* stream, const std::vector<Item>& items) {
  const std::lock_guard<std::mutex> lock(mu);
  if (const int result = Check(true); result != kSuccess) return result;
  const auto found = streams.find(stream);
  if (found == streams.end()) return kErrorInvalidValue;
  ScriptedStream& target = *found->second;
  if (target.capture == kCaptureInvalidated) return kCaptureUnsupported;
  for (const Item& item : items) {
    if (target.capture == kCaptureActive) {
      target.captured.push_back(item);
    } else {
      target.items.push_back(item);
    }
  }
  return kSuccess;
}

int Script::Insert(std::set<uint64_t>* to, uint64_t value) {
  const std::lock_guard<std::mutex> lock(mu);
  if (const int result = Check(false); result != kSuccess) return result;
  return to->insert(value).second ? kSuccess : kErrorInvalidValue;
}

int Script::Erase(std::set<uint64_t>* from, uint64_t value) {
  const std::lock_guard<std::mutex> lock(mu);
  if (const int result = Check(false); result != kSuccess) return result;
  return from->erase(value) == 1 ? kSuccess : kErrorInvalidValue;
}

Item WriteOf(DevicePointer address, uint64_t value) {
  return {Item::Kind::kWrite, address, value, 0};
}
Item WaitOf(DevicePointer address, uint64_t value) {
  return {Item::Kind::kWait, address, value, 0};
}

}  // namespace
}  // namespace qrd::testing

using qrd::testing::contexts;
using qrd::testing::current;
using qrd::testing::Item;
using qrd::testing::TheScript;
using qrd::testing::WaitOf;
using qrd::testing::WriteOf;

extern "C" {

qrd::testing::ScriptedDriver* qrd_scripted_driver() { return &TheScript(); }

int cuInit(unsigned) { return kSuccess; }
int cuGetErrorString(int error, const char** text) {
  *text = error == kErrorInvalidContext                ? "no context is current"
          : error == qrd::testing::kCaptureUnsupported ? "not allowed while a stream captures"
                                                       : "an error of the script";
  return kSuccess;
}
int cuDeviceGetCount(int* count) { return *count = qrd::testing::kDevices, kSuccess; }
int cuDeviceGet(int* device, int ordinal) {
  // Not the ordinal: the two are different things.
  if (ordinal < 0 || ordinal >= qrd::testing::kDevices) return kErrorInvalidDevice;
  return *device = ordinal + 10, kSuccess;
}
int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(i);
  uuid->bytes[15] = static_cast<char>(device - 10);
  return kSuccess;
}
int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::strncpy(text, device == 10 ? qrd::testing::kScriptedAddress : "0000:2b:00.0",
               static_cast<size_t>(bytes));
  return kSuccess;
}
int cuDeviceGetByPCIBusId(int* device, const char* text) {
  if (std::strcmp(text, qrd::testing::kScriptedAddress) != 0) return kErrorInvalidValue;
  return *device = 10, kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  ++TheScript().retained_;
  return *context = &contexts[device - 10], kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) { return --TheScript().retained_, kSuccess; }
int cuCtxGetCurrent(void** context) { return *context = current, kSuccess; }
int cuCtxSetCurrent(void* context) { return current = context, kSuccess; }
int cuCtxGetDevice(int* device) {
  if (current == nullptr) return kErrorInvalidContext;
  return *device = TheScript().Current() + 10, kSuccess;
}

int cuPointerGetAttribute(void* data, int attribute, DevicePointer ptr) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto* allocation = TheScript().Find(ptr);
  if (allocation == nullptr) return kErrorInvalidValue;
  const int value = attribute == kPointerMemoryType           ? kMemoryTypeDevice
                    : attribute == kPointerDeviceOrdinal      ? allocation->device
                    : attribute == kPointerIsLegacyIpcCapable ? (allocation->is_virtual ? 0 : 1)
                                                              : 0;
  std::memcpy(data, &value, sizeof(value));
  return kSuccess;
}
int cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer ptr) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto* allocation = TheScript().Find(ptr);
  if (allocation == nullptr) return kErrorInvalidValue;
  *base = reinterpret_cast<uintptr_t>(allocation->data.get());
  *bytes = allocation->bytes;
  return kSuccess;
}
int cuIpcGetMemHandle(IpcMemHandle* handle, DevicePointer ptr) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto* allocation = TheScript().Find(ptr);
  if (allocation == nullptr || allocation->is_virtual) return kErrorInvalidValue;
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle->reserved, &ptr, sizeof(ptr));
  return kSuccess;
}
int cuIpcOpenMemHandle_v2(DevicePointer* ptr, IpcMemHandle handle, unsigned) {
  std::memcpy(ptr, handle.reserved, sizeof(*ptr));
  return TheScript().Insert(&TheScript().handles_, *ptr);
}
int cuIpcCloseMemHandle(DevicePointer ptr) { return TheScript().Erase(&TheScript().handles_, ptr); }
int cuMemHostRegister_v2(void* data, size_t, unsigned) {
  return TheScript().Insert(&TheScript().registered_, reinterpret_cast<uintptr_t>(data));
}
int cuMemHostUnregister(void* data) {
  return TheScript().Erase(&TheScript().registered_, reinterpret_cast<uintptr_t>(data));
}
int cuMemHostGetDevicePointer_v2(DevicePointer* ptr, void* data, unsigned) {
  return *ptr = reinterpret_cast<uintptr_t>(data), kSuccess;
}
int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
  return TheScript().Put(stream, {{Item::Kind::kCopy, to, from, bytes}});
}

int cuStreamCreate(void** stream, unsigned) {
  if (current == nullptr) return kErrorInvalidContext;
  return *stream = TheScript().NewStream(), kSuccess;
}
int cuStreamDestroy_v2(void* stream) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  return TheScript().streams.erase(stream) == 1 ? kSuccess : kErrorInvalidValue;
}
int cuStreamQuery(void* stream) {
  {
    const std::lock_guard<std::mutex> lock(TheScript().mu);
    if (const int result = TheScript().Check(false); result != kSuccess) return result;
  }
  return TheScript().Run(stream) ? kSuccess : kErrorNotReady;
}
int cuStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto found = TheScript().streams.find(stream);
  if (found == TheScript().streams.end()) return kErrorInvalidValue;
  return *status = found->second->capture, kSuccess;
}
int cuStreamGetFlags(void* stream, unsigned* flags) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto found = TheScript().streams.find(stream);
  if (found == TheScript().streams.end()) return kErrorInvalidValue;
  return *flags = found->second->non_blocking ? kStreamNonBlocking : 0, kSuccess;
}
int cuStreamGetId(void* stream, unsigned long long* id) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  const auto found = TheScript().streams.find(stream);
  if (found == TheScript().streams.end()) return kErrorInvalidValue;
  return *id = found->second->id, kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, qrd::testing::capture_mode);
  return kSuccess;
}
int cuStreamWriteValue32_v2(void* stream, DevicePointer address, uint32_t value, unsigned) {
  return TheScript().Put(stream, {WriteOf(address, value)});
}
int cuStreamWaitValue32_v2(void* stream, DevicePointer address, uint32_t value, unsigned flags) {
  if (flags != kWaitValueEq) return kErrorInvalidValue;
  return TheScript().Put(stream, {WaitOf(address, value)});
}
int cuStreamBatchMemOp_v2(void* stream, unsigned count, BatchMemOp* operations, unsigned) {
  std::vector<Item> items;
  for (unsigned i = 0; i < count; ++i) {
    const BatchMemOp& operation = operations[i];
    items.push_back(operation.operation == kMemOpWait32
                        ? WaitOf(operation.address, operation.value)
                        : WriteOf(operation.address, operation.value));
  }
  return TheScript().Put(stream, items);
}

int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard<std::mutex> lock(TheScript().mu);
  if (const int result = TheScript().Check(false); result != kSuccess) return result;
  if (std::strstr(static_cast<const char*>(image), ".version") == nullptr) {
    return kErrorInvalidValue;
  }
  return *module = &qrd::testing::gate_module, kSuccess;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &qrd::testing::gate_module || std::strcmp(name, "qrd_gate") != 0) {
    return kErrorInvalidValue;
  }
  return *function = &qrd::testing::gate_function, kSuccess;
}
int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned, void* stream, void** parameters, void**) {
  if (function != &qrd::testing::gate_function) return kErrorInvalidValue;
  const auto& args = *static_cast<const qrd::client::gpu::GateArgs*>(parameters[0]);
  std::vector<Item> items;
  for (uint32_t i = 0; i < args.count; ++i) {
    const bool waits = (args.wait_mask >> i & 1) != 0;
    items.push_back(waits ? WaitOf(args.address[i], args.value[i])
                          : WriteOf(args.address[i], args.value[i]));
  }
  ++TheScript().gate_launches_;
  return TheScript().Put(stream, items);
}

}  // extern "C"
