// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/hip_driver.h"

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "client/core/error.h"
#include "client/gpu/gate_kernel.h"
#include "client/gpu/hip_api.h"
#include "client/gpu/hip_rtc.h"

namespace qrd::client::gpu {
namespace {

constexpr size_t kPciTextBytes = 32;

void* Pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }
DevicePtr Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

class HipDriver : public Driver {
 public:
  qrd_status Load(const Library& library);

  const char* name() const override { return "HIP"; }

  qrd_status DeviceCount(int* count) override {
    return Check(api_.GetDeviceCount(count), "hipGetDeviceCount");
  }
  qrd_status DeviceAt(int ordinal, int* device) override {
    *device = ordinal;
    return QRD_OK;
  }
  qrd_status DeviceUuid(int device, std::string* uuid) override;
  qrd_status DevicePciAddress(int device, std::string* address) override;
  qrd_status FindPciAddress(const std::string& address, int* device) override;
  qrd_status CurrentDevice(int* device) override {
    return Check(api_.GetDevice(device), "hipGetDevice");
  }
  // HIP has one context a device, which lives as long as the process.
  qrd_status OpenContext(int device, Context* context, bool* retained) override {
    *context = ContextOf(device);
    *retained = false;
    return QRD_OK;
  }
  void CloseContext(int) override {}
  qrd_status Enter(Context context, Context* previous) override;
  void Leave(Context previous) override;
  bool RelaxCapture(int* previous) override;
  void RestoreCapture(int previous) override { api_.ExchangeCaptureMode(&previous); }

  qrd_status DescribePointer(const void* ptr, PointerInfo* info) override;
  qrd_status AllocationOf(DevicePtr ptr, DevicePtr* base, size_t* bytes) override;
  qrd_status ExportHandle(DevicePtr base, char handle[kIpcHandleBytes]) override;
  qrd_status OpenHandle(const char handle[kIpcHandleBytes], DevicePtr* base) override;
  qrd_status CloseHandle(DevicePtr base) override {
    return Check(api_.IpcCloseMemHandle(Pointer(base)), "hipIpcCloseMemHandle");
  }
  qrd_status RegisterHost(void* data, size_t bytes, DevicePtr* address) override;
  qrd_status UnregisterHost(void* data) override {
    return Check(api_.HostUnregister(data), "hipHostUnregister");
  }

  qrd_status CreateStream(Stream* stream) override {
    return Check(api_.StreamCreate(stream, hip::kStreamNonBlocking), "hipStreamCreateWithFlags");
  }
  void DestroyStream(Stream stream) override { Ignore(api_.StreamDestroy(stream)); }
  qrd_status StreamDone(Stream stream, bool* done) override;
  bool IsNonBlocking(Stream) override { return false; }  // the use of it was not run on AMD
  bool StreamId(Stream, uint64_t*) override { return false; }
  qrd_status CaptureState(Stream stream, Capture* capture) override;
  qrd_status Copy(Stream stream, DevicePtr to, DevicePtr from, size_t bytes) override {
    return Check(
        api_.MemcpyAsync(Pointer(to), Pointer(from), bytes, hip::kMemcpyDeviceToDevice, stream),
        "hipMemcpyAsync");
  }
  qrd_status PrepareSteps(int device, StepMode mode) override;
  // HIP refuses its stream memory operations in a capture.
  bool Capturable(StepMode mode) const override { return mode == StepMode::kKernel; }
  qrd_status Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                     const GateLimits& limits, size_t* queued) override;

 private:
  static Context ContextOf(int device) {
    return reinterpret_cast<Context>(static_cast<uintptr_t>(device) + 1);
  }
  static int DeviceOf(Context context) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  }
  qrd_status Check(int result, const char* what) const;
  // A failed call leaves an error behind that the program's own hipGetLastError would report.
  void Ignore(int result) const {
    if (result != hip::kSuccess) api_.GetLastError();
  }
  bool HasPointerAttribute(const void* ptr, int attribute, int* value) const;
  qrd_status LoadGate(int device);

  hip::Api api_;
  std::mutex gate_mu_;
  std::vector<std::pair<int, void*>> gates_;  // by device; never unloaded
};

qrd_status HipDriver::Check(int result, const char* what) const {
  if (result == hip::kSuccess) return QRD_OK;
  Ignore(result);
  const char* text = api_.GetErrorString(result);
  const qrd_status status =
      result == hip::kErrorOutOfMemory ? QRD_RESOURCE_EXHAUSTED : QRD_INTERNAL;
  return Fail(status, "%s: %s (HIP error %d)", what, text != nullptr ? text : "unknown", result);
}

qrd_status HipDriver::Load(const Library& library) {
  const char* missing = nullptr;
#define QRD_LOAD_REQUIRED(member, symbol, parameters)                 \
  api_.member = library.FindFunction<decltype(api_.member)>(#symbol); \
  if (api_.member == nullptr && missing == nullptr) missing = #symbol;
#define QRD_LOAD_OPTIONAL(member, symbol, parameters) \
  api_.member = library.FindFunction<decltype(api_.member)>(#symbol);
  QRD_HIP_FUNCTIONS(QRD_LOAD_REQUIRED, QRD_LOAD_OPTIONAL)
#undef QRD_LOAD_REQUIRED
#undef QRD_LOAD_OPTIONAL
  api_.GetErrorString = library.FindFunction<decltype(api_.GetErrorString)>("hipGetErrorString");
  if (api_.GetErrorString == nullptr) missing = "hipGetErrorString";
  if (missing != nullptr) {
    return Fail(QRD_FAILED_PRECONDITION, "%s has no function %s; want HIP 6.0 or later",
                library.name().c_str(), missing);
  }
  int version = 0;
  int count = 0;
  qrd_status status = Check(api_.Init(0), "hipInit");
  if (status == QRD_OK) status = Check(api_.RuntimeGetVersion(&version), "hipRuntimeGetVersion");
  if (status == QRD_OK) status = DeviceCount(&count);
  if (status != QRD_OK) {
    const SavedError error;
    return error.Restore(QRD_FAILED_PRECONDITION);
  }
  if (version < hip::kRuntimeVersionMin) {
    return Fail(QRD_FAILED_PRECONDITION, "%s has version %d, want HIP 6.0 (%d) or later",
                library.name().c_str(), version, hip::kRuntimeVersionMin);
  }
  if (count > 0) return QRD_OK;
  return Fail(QRD_FAILED_PRECONDITION, "%s shows no device to this process",
              library.name().c_str());
}

qrd_status HipDriver::DeviceUuid(int device, std::string* uuid) {
  hip::Uuid bytes{};
  const qrd_status status = Check(api_.DeviceGetUuid(&bytes, device), "hipDeviceGetUuid");
  if (status == QRD_OK) *uuid = FormatUuid(reinterpret_cast<const unsigned char*>(bytes.bytes));
  return status;
}

qrd_status HipDriver::DevicePciAddress(int device, std::string* address) {
  char text[kPciTextBytes] = {};
  const qrd_status status =
      Check(api_.DeviceGetPciBusId(text, sizeof(text) - 1, device), "hipDeviceGetPCIBusId");
  if (status == QRD_OK) *address = text;
  return status;
}

qrd_status HipDriver::FindPciAddress(const std::string& address, int* device) {
  const int result = api_.DeviceGetByPciBusId(device, address.c_str());
  if (result == hip::kErrorInvalidValue || result == hip::kErrorInvalidDevice) {
    Ignore(result);
    return Fail(QRD_NOT_FOUND, "no device of this process has the PCI address %s", address.c_str());
  }
  return Check(result, "hipDeviceGetByPCIBusId");
}

qrd_status HipDriver::Enter(Context context, Context* previous) {
  int current = -1;
  if (qrd_status status = Check(api_.GetDevice(&current), "hipGetDevice"); status != QRD_OK) {
    return status;
  }
  *previous = ContextOf(current);
  if (*previous == context) return QRD_OK;
  return Check(api_.SetDevice(DeviceOf(context)), "hipSetDevice");
}

void HipDriver::Leave(Context previous) {
  int current = -1;
  if (api_.GetDevice(&current) == hip::kSuccess && ContextOf(current) == previous) return;
  Ignore(api_.SetDevice(DeviceOf(previous)));
}

bool HipDriver::RelaxCapture(int* previous) {
  if (api_.ExchangeCaptureMode == nullptr) return false;
  *previous = hip::kCaptureModeRelaxed;
  const int result = api_.ExchangeCaptureMode(previous);
  Ignore(result);
  return result == hip::kSuccess;
}

bool HipDriver::HasPointerAttribute(const void* ptr, int attribute, int* value) const {
  *value = 0;  // some attributes are a bool, see the CUDA driver
  const int result = api_.PointerGetAttribute(value, attribute, const_cast<void*>(ptr));
  Ignore(result);
  return result == hip::kSuccess;
}

qrd_status HipDriver::DescribePointer(const void* ptr, PointerInfo* info) {
  *info = PointerInfo{};
  int type = 0;
  // Memory that the runtime does not know is the host's.
  if (!HasPointerAttribute(ptr, hip::kPointerMemoryType, &type)) return QRD_OK;
  int managed = 0;
  if (type == hip::kMemoryTypeManaged ||
      (HasPointerAttribute(ptr, hip::kPointerIsManaged, &managed) && managed != 0)) {
    info->kind = PointerInfo::Kind::kManaged;
    return QRD_OK;
  }
  if (type != hip::kMemoryTypeDevice) return QRD_OK;
  info->kind = PointerInfo::Kind::kDevice;
  if (!HasPointerAttribute(ptr, hip::kPointerDeviceOrdinal, &info->device)) info->device = -1;
  // HIP has no attribute that tells (the one of that name is not supported): exporting shows it.
  info->ipc_capable = true;
  return QRD_OK;
}

qrd_status HipDriver::AllocationOf(DevicePtr ptr, DevicePtr* base, size_t* bytes) {
  void* start = nullptr;
  const qrd_status status =
      Check(api_.MemGetAddressRange(&start, bytes, Pointer(ptr)), "hipMemGetAddressRange");
  if (status == QRD_OK) *base = Address(start);
  return status;
}

qrd_status HipDriver::ExportHandle(DevicePtr base, char handle[kIpcHandleBytes]) {
  hip::IpcMemHandle exported{};
  const qrd_status status =
      Check(api_.IpcGetMemHandle(&exported, Pointer(base)), "hipIpcGetMemHandle");
  if (status == QRD_OK) std::memcpy(handle, exported.reserved, kIpcHandleBytes);
  return status;
}

qrd_status HipDriver::OpenHandle(const char handle[kIpcHandleBytes], DevicePtr* base) {
  hip::IpcMemHandle imported{};
  std::memcpy(imported.reserved, handle, kIpcHandleBytes);
  void* start = nullptr;
  const qrd_status status =
      Check(api_.IpcOpenMemHandle(&start, imported, hip::kIpcLazyEnablePeerAccess),
            "hipIpcOpenMemHandle");
  if (status == QRD_OK) *base = Address(start);
  return status;
}

qrd_status HipDriver::RegisterHost(void* data, size_t bytes, DevicePtr* address) {
  constexpr unsigned kFlags = hip::kHostRegisterPortable | hip::kHostRegisterMapped;
  if (qrd_status status = Check(api_.HostRegister(data, bytes, kFlags), "hipHostRegister");
      status != QRD_OK) {
    return status;
  }
  void* mapped = nullptr;
  const qrd_status status =
      Check(api_.HostGetDevicePointer(&mapped, data, 0), "hipHostGetDevicePointer");
  if (status == QRD_OK) {
    *address = Address(mapped);
  } else {
    Ignore(api_.HostUnregister(data));
  }
  return status;
}

qrd_status HipDriver::StreamDone(Stream stream, bool* done) {
  const int result = api_.StreamQuery(stream);
  *done = result == hip::kSuccess;
  if (result != hip::kErrorNotReady) return Check(result, "hipStreamQuery");
  Ignore(result);
  return QRD_OK;
}

qrd_status HipDriver::CaptureState(Stream stream, Capture* capture) {
  int state = 0;
  const qrd_status status = Check(api_.StreamIsCapturing(stream, &state), "hipStreamIsCapturing");
  *capture = state == hip::kCaptureNone     ? Capture::kNone
             : state == hip::kCaptureActive ? Capture::kActive
                                            : Capture::kInvalidated;
  return status;
}

qrd_status HipDriver::LoadGate(int device) {
  const std::lock_guard<std::mutex> lock(gate_mu_);
  for (const auto& [loaded_on, function] : gates_) {
    if (loaded_on == device) return QRD_OK;
  }
  std::vector<char> code;
  if (qrd_status status = CompileHipGate(&code); status != QRD_OK) return status;
  void* module = nullptr;
  void* function = nullptr;
  qrd_status status =
      Check(api_.ModuleLoadData(&module, code.data()), "hipModuleLoadData of the gate kernel");
  if (status == QRD_OK) {
    status = Check(api_.ModuleGetFunction(&function, module, kGateKernelName),
                   "hipModuleGetFunction of the gate kernel");
  }
  if (status == QRD_OK) gates_.emplace_back(device, function);
  return status;
}

qrd_status HipDriver::PrepareSteps(int device, StepMode mode) {
  const auto missing = [](const char* symbol) {
    return Fail(QRD_UNIMPLEMENTED, "the HIP runtime has no function %s", symbol);
  };
  switch (mode) {
    case StepMode::kBatch:
      return Fail(QRD_UNIMPLEMENTED, "batches of stream memory operations are for CUDA only");
    case StepMode::kMemory:
      if (api_.StreamWriteValue32 == nullptr) return missing("hipStreamWriteValue32");
      return api_.StreamWaitValue32 == nullptr ? missing("hipStreamWaitValue32") : QRD_OK;
    case StepMode::kKernel:
      if (api_.ModuleLoadData == nullptr) return missing("hipModuleLoadData");
      if (api_.ModuleGetFunction == nullptr) return missing("hipModuleGetFunction");
      if (api_.ModuleLaunchKernel == nullptr) return missing("hipModuleLaunchKernel");
      return LoadGate(device);
  }
  return Fail(QRD_INTERNAL, "step mode %d", static_cast<int>(mode));
}

qrd_status HipDriver::Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                              const GateLimits& limits, size_t* queued) {
  *queued = 0;
  if (steps.size() > kStepsMax) {
    return Fail(QRD_INTERNAL, "%zu steps, at most %u", steps.size(), kStepsMax);
  }
  if (mode == StepMode::kKernel) {
    int device = -1;
    void* function = nullptr;
    if (qrd_status status = CurrentDevice(&device); status != QRD_OK) return status;
    {
      const std::lock_guard<std::mutex> lock(gate_mu_);
      for (const auto& [loaded_on, loaded] : gates_) {
        if (loaded_on == device) function = loaded;
      }
    }
    if (function == nullptr) return Fail(QRD_INTERNAL, "the gate kernel is not loaded");
    GateArgs args = MakeGateArgs(steps, limits);
    void* parameters[] = {&args};
    const qrd_status status =
        Check(api_.ModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
              "hipModuleLaunchKernel of the gate kernel");
    if (status == QRD_OK) *queued = steps.size();
    return status;
  }
  for (const Step& step : steps) {
    void* const word = Pointer(step.address);
    const qrd_status status =
        step.wait
            ? Check(api_.StreamWaitValue32(stream, word, step.value, hip::kWaitValueEq, ~0u),
                    "hipStreamWaitValue32")
            : Check(api_.StreamWriteValue32(stream, word, step.value, 0), "hipStreamWriteValue32");
    if (status != QRD_OK) return status;
    ++*queued;
  }
  return QRD_OK;
}

}  // namespace

qrd_status MakeHipDriver(const Library& library, std::unique_ptr<Driver>* driver) {
  auto made = std::make_unique<HipDriver>();
  const qrd_status status = made->Load(library);
  if (status == QRD_OK) *driver = std::move(made);
  return status;
}

bool IsHipDeviceMemory(const Library& library, const void* ptr) {
  const auto query =
      library.FindFunction<decltype(hip::Api::PointerGetAttribute)>("hipPointerGetAttribute");
  const auto clear = library.FindFunction<decltype(hip::Api::GetLastError)>("hipGetLastError");
  if (query == nullptr || clear == nullptr) return false;
  int type = 0;
  const int result = query(&type, hip::kPointerMemoryType, const_cast<void*>(ptr));
  if (result != hip::kSuccess) clear();
  return result == hip::kSuccess && type == hip::kMemoryTypeDevice;
}

}  // namespace qrd::client::gpu
