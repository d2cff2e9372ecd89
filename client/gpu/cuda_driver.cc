// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/cuda_driver.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "client/core/error.h"
#include "client/gpu/cuda_api.h"
#include "client/gpu/gate_kernel.h"

namespace qrd::client::gpu {
namespace {

constexpr size_t kPciTextBytes = 32;

class CudaDriver : public Driver {
 public:
  qrd_status Load(const Library& library);

  const char* name() const override { return "CUDA"; }

  qrd_status DeviceCount(int* count) override {
    return Check(api_.DeviceGetCount(count), "cuDeviceGetCount");
  }
  qrd_status DeviceAt(int ordinal, int* device) override {
    return Check(api_.DeviceGet(device, ordinal), "cuDeviceGet");
  }
  qrd_status DeviceUuid(int device, std::string* uuid) override;
  qrd_status DevicePciAddress(int device, std::string* address) override;
  qrd_status FindPciAddress(const std::string& address, int* device) override;
  qrd_status CurrentDevice(int* device) override;
  qrd_status OpenContext(int device, Context* context, bool* retained) override;
  void CloseContext(int device) override { api_.PrimaryCtxRelease(device); }
  qrd_status Enter(Context context, Context* previous) override;
  void Leave(Context previous) override;
  bool RelaxCapture(int* previous) override;
  void RestoreCapture(int previous) override { api_.ExchangeCaptureMode(&previous); }

  qrd_status DescribePointer(const void* ptr, PointerInfo* info) override;
  qrd_status AllocationOf(DevicePtr ptr, DevicePtr* base, size_t* bytes) override;
  qrd_status ExportHandle(DevicePtr base, char handle[kIpcHandleBytes]) override;
  qrd_status OpenHandle(const char handle[kIpcHandleBytes], DevicePtr* base) override;
  qrd_status CloseHandle(DevicePtr base) override {
    return Check(api_.IpcCloseMemHandle(base), "cuIpcCloseMemHandle");
  }
  qrd_status RegisterHost(void* data, size_t bytes, DevicePtr* address) override;
  qrd_status UnregisterHost(void* data) override {
    return Check(api_.MemHostUnregister(data), "cuMemHostUnregister");
  }

  qrd_status CreateStream(Stream* stream) override {
    return Check(api_.StreamCreate(stream, cuda::kStreamNonBlocking), "cuStreamCreate");
  }
  void DestroyStream(Stream stream) override { api_.StreamDestroy(stream); }
  qrd_status StreamDone(Stream stream, bool* done) override;
  bool IsNonBlocking(Stream stream) override;
  bool StreamId(Stream stream, uint64_t* id) override;
  qrd_status CaptureState(Stream stream, Capture* capture) override;
  qrd_status Copy(Stream stream, DevicePtr to, DevicePtr from, size_t bytes) override {
    return Check(api_.MemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
  }
  qrd_status PrepareSteps(int device, StepMode mode) override;
  bool Capturable(StepMode) const override { return true; }
  qrd_status Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                     const GateLimits& limits, size_t* queued) override;

 private:
  qrd_status Check(int result, const char* what) const;
  bool HasPointerAttribute(const void* ptr, int attribute, int* value) const;
  qrd_status LoadGate(int device);
  qrd_status EnqueueBatch(Stream stream, std::span<const Step> steps, size_t* queued);
  qrd_status EnqueueGate(Stream stream, std::span<const Step> steps, const GateLimits& limits,
                         size_t* queued);

  cuda::Api api_;
  std::mutex gate_mu_;
  // By context: a function belongs to the context that it was loaded in. Never unloaded.
  std::vector<std::pair<Context, void*>> gates_;
};

qrd_status CudaDriver::Check(int result, const char* what) const {
  if (result == cuda::kSuccess) return QRD_OK;
  const char* text = nullptr;
  if (api_.GetErrorString(result, &text) != cuda::kSuccess || text == nullptr) text = "unknown";
  const qrd_status status =
      result == cuda::kErrorOutOfMemory ? QRD_RESOURCE_EXHAUSTED : QRD_INTERNAL;
  return Fail(status, "%s: %s (CUDA error %d)", what, text, result);
}

qrd_status CudaDriver::Load(const Library& library) {
  const char* missing = nullptr;
#define QRD_LOAD_REQUIRED(member, symbol, parameters)                 \
  api_.member = library.FindFunction<decltype(api_.member)>(#symbol); \
  if (api_.member == nullptr && missing == nullptr) missing = #symbol;
#define QRD_LOAD_OPTIONAL(member, symbol, parameters) \
  api_.member = library.FindFunction<decltype(api_.member)>(#symbol);
  QRD_CUDA_FUNCTIONS(QRD_LOAD_REQUIRED, QRD_LOAD_OPTIONAL)
#undef QRD_LOAD_REQUIRED
#undef QRD_LOAD_OPTIONAL
  if (missing != nullptr) {
    return Fail(QRD_FAILED_PRECONDITION,
                "%s has no function %s; want a CUDA driver of version 11.4 or later",
                library.name().c_str(), missing);
  }
  int count = 0;
  qrd_status status = Check(api_.Init(0), "cuInit");
  if (status == QRD_OK) status = DeviceCount(&count);
  if (status != QRD_OK) {
    const SavedError error;
    return error.Restore(QRD_FAILED_PRECONDITION);
  }
  if (count > 0) return QRD_OK;
  return Fail(QRD_FAILED_PRECONDITION, "%s shows no device to this process",
              library.name().c_str());
}

qrd_status CudaDriver::DeviceUuid(int device, std::string* uuid) {
  cuda::Uuid bytes{};
  const qrd_status status = Check(api_.DeviceGetUuid(&bytes, device), "cuDeviceGetUuid");
  if (status == QRD_OK) *uuid = FormatUuid(reinterpret_cast<const unsigned char*>(bytes.bytes));
  return status;
}

qrd_status CudaDriver::DevicePciAddress(int device, std::string* address) {
  char text[kPciTextBytes] = {};
  const qrd_status status =
      Check(api_.DeviceGetPciBusId(text, sizeof(text) - 1, device), "cuDeviceGetPCIBusId");
  if (status == QRD_OK) *address = text;
  return status;
}

qrd_status CudaDriver::FindPciAddress(const std::string& address, int* device) {
  const int result = api_.DeviceGetByPciBusId(device, address.c_str());
  if (result == cuda::kErrorInvalidValue || result == cuda::kErrorInvalidDevice) {
    return Fail(QRD_NOT_FOUND, "no device of this process has the PCI address %s", address.c_str());
  }
  return Check(result, "cuDeviceGetByPCIBusId");
}

qrd_status CudaDriver::CurrentDevice(int* device) {
  Context context = nullptr;
  if (qrd_status status = Check(api_.CtxGetCurrent(&context), "cuCtxGetCurrent");
      status != QRD_OK) {
    return status;
  }
  if (context == nullptr) {
    return Fail(QRD_FAILED_PRECONDITION,
                "the calling thread has no current CUDA context; call cudaSetDevice (and allocate "
                "something) first, or name the device by its UUID");
  }
  return Check(api_.CtxGetDevice(device), "cuCtxGetDevice");
}

qrd_status CudaDriver::OpenContext(int device, Context* context, bool* retained) {
  Context current = nullptr;
  *retained = false;
  if (api_.CtxGetCurrent(&current) == cuda::kSuccess && current != nullptr) {
    int of_current = -1;
    if (api_.CtxGetDevice(&of_current) != cuda::kSuccess || of_current != device) current = nullptr;
  }
  if (qrd_status status = Check(api_.PrimaryCtxRetain(context, device), "cuDevicePrimaryCtxRetain");
      status != QRD_OK) {
    return status;
  }
  *retained = true;
  // A program that works in a context of its own on this device: its pointers and streams are of
  // that one.
  if (current != nullptr && current != *context) {
    CloseContext(device);
    *retained = false;
    *context = current;
  }
  return QRD_OK;
}

qrd_status CudaDriver::Enter(Context context, Context* previous) {
  if (qrd_status status = Check(api_.CtxGetCurrent(previous), "cuCtxGetCurrent");
      status != QRD_OK || *previous == context) {
    return status;
  }
  return Check(api_.CtxSetCurrent(context), "cuCtxSetCurrent");
}

void CudaDriver::Leave(Context previous) {
  Context current = nullptr;
  if (api_.CtxGetCurrent(&current) != cuda::kSuccess || current == previous) return;
  api_.CtxSetCurrent(previous);
}

bool CudaDriver::RelaxCapture(int* previous) {
  if (api_.ExchangeCaptureMode == nullptr) return false;
  *previous = cuda::kCaptureModeRelaxed;
  return api_.ExchangeCaptureMode(previous) == cuda::kSuccess;
}

bool CudaDriver::HasPointerAttribute(const void* ptr, int attribute, int* value) const {
  // The driver writes 4 bytes for all attributes that are asked for here, but a bool for some: a
  // zeroed int gets either right on a little-endian machine.
  *value = 0;
  return api_.PointerGetAttribute(value, attribute, reinterpret_cast<uintptr_t>(ptr)) ==
         cuda::kSuccess;
}

qrd_status CudaDriver::DescribePointer(const void* ptr, PointerInfo* info) {
  *info = PointerInfo{};
  int value = 0;
  const int result =
      api_.PointerGetAttribute(&value, cuda::kPointerMemoryType, reinterpret_cast<uintptr_t>(ptr));
  // Memory that the driver has never heard of: the host's.
  if (result == cuda::kErrorInvalidValue) return QRD_OK;
  if (result != cuda::kSuccess) return Check(result, "cuPointerGetAttribute");
  int managed = 0;
  if (HasPointerAttribute(ptr, cuda::kPointerIsManaged, &managed) && managed != 0) {
    info->kind = PointerInfo::Kind::kManaged;
    return QRD_OK;
  }
  if (value != cuda::kMemoryTypeDevice) return QRD_OK;
  info->kind = PointerInfo::Kind::kDevice;
  int ordinal = 0;
  if (!HasPointerAttribute(ptr, cuda::kPointerDeviceOrdinal, &ordinal) ||
      api_.DeviceGet(&info->device, ordinal) != cuda::kSuccess) {
    info->device = -1;
  }
  int capable = 0;
  info->ipc_capable =
      HasPointerAttribute(ptr, cuda::kPointerIsLegacyIpcCapable, &capable) && capable != 0;
  return QRD_OK;
}

qrd_status CudaDriver::AllocationOf(DevicePtr ptr, DevicePtr* base, size_t* bytes) {
  cuda::DevicePointer start = 0;
  const qrd_status status =
      Check(api_.MemGetAddressRange(&start, bytes, ptr), "cuMemGetAddressRange");
  if (status == QRD_OK) *base = start;
  return status;
}

qrd_status CudaDriver::ExportHandle(DevicePtr base, char handle[kIpcHandleBytes]) {
  cuda::IpcMemHandle exported{};
  const qrd_status status = Check(api_.IpcGetMemHandle(&exported, base), "cuIpcGetMemHandle");
  if (status == QRD_OK) std::memcpy(handle, exported.reserved, kIpcHandleBytes);
  return status;
}

qrd_status CudaDriver::OpenHandle(const char handle[kIpcHandleBytes], DevicePtr* base) {
  cuda::IpcMemHandle imported{};
  std::memcpy(imported.reserved, handle, kIpcHandleBytes);
  cuda::DevicePointer start = 0;
  const qrd_status status =
      Check(api_.IpcOpenMemHandle(&start, imported, cuda::kIpcLazyEnablePeerAccess),
            "cuIpcOpenMemHandle");
  if (status == QRD_OK) *base = start;
  return status;
}

qrd_status CudaDriver::RegisterHost(void* data, size_t bytes, DevicePtr* address) {
  constexpr unsigned kFlags = cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap;
  if (qrd_status status = Check(api_.MemHostRegister(data, bytes, kFlags), "cuMemHostRegister");
      status != QRD_OK) {
    return status;
  }
  cuda::DevicePointer mapped = 0;
  const qrd_status status =
      Check(api_.MemHostGetDevicePointer(&mapped, data, 0), "cuMemHostGetDevicePointer");
  if (status == QRD_OK) {
    *address = mapped;
  } else {
    api_.MemHostUnregister(data);
  }
  return status;
}

qrd_status CudaDriver::StreamDone(Stream stream, bool* done) {
  const int result = api_.StreamQuery(stream);
  *done = result == cuda::kSuccess;
  return result == cuda::kErrorNotReady ? QRD_OK : Check(result, "cuStreamQuery");
}

bool CudaDriver::IsNonBlocking(Stream stream) {
  // The two default streams have handles of their own.
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  if (handle == 0 || handle == cuda::kStreamLegacy || handle == cuda::kStreamPerThread) {
    return false;
  }
  unsigned flags = 0;
  return api_.StreamGetFlags != nullptr && api_.StreamGetFlags(stream, &flags) == cuda::kSuccess &&
         (flags & cuda::kStreamNonBlocking) != 0;
}

bool CudaDriver::StreamId(Stream stream, uint64_t* id) {
  unsigned long long number = 0;
  if (api_.StreamGetId == nullptr || api_.StreamGetId(stream, &number) != cuda::kSuccess) {
    return false;
  }
  *id = number;
  return true;
}

qrd_status CudaDriver::CaptureState(Stream stream, Capture* capture) {
  int state = 0;
  const qrd_status status = Check(api_.StreamIsCapturing(stream, &state), "cuStreamIsCapturing");
  *capture = state == cuda::kCaptureNone     ? Capture::kNone
             : state == cuda::kCaptureActive ? Capture::kActive
                                             : Capture::kInvalidated;
  return status;
}

qrd_status CudaDriver::LoadGate(int) {
  Context context = nullptr;
  if (qrd_status status = Check(api_.CtxGetCurrent(&context), "cuCtxGetCurrent");
      status != QRD_OK) {
    return status;
  }
  const std::lock_guard<std::mutex> lock(gate_mu_);
  for (const auto& [loaded_in, function] : gates_) {
    if (loaded_in == context) return QRD_OK;
  }
  void* module = nullptr;
  void* function = nullptr;
  qrd_status status =
      Check(api_.ModuleLoadData(&module, kGatePtx), "cuModuleLoadData of the gate kernel");
  if (status == QRD_OK) {
    status = Check(api_.ModuleGetFunction(&function, module, kGateKernelName),
                   "cuModuleGetFunction of the gate kernel");
  }
  if (status == QRD_OK) gates_.emplace_back(context, function);
  return status;
}

qrd_status CudaDriver::PrepareSteps(int device, StepMode mode) {
  const auto missing = [](const char* symbol) {
    return Fail(QRD_UNIMPLEMENTED, "the CUDA driver has no function %s", symbol);
  };
  switch (mode) {
    case StepMode::kBatch:
      return api_.StreamBatchMemOp == nullptr ? missing("cuStreamBatchMemOp_v2") : QRD_OK;
    case StepMode::kMemory:
      if (api_.StreamWriteValue32 == nullptr) return missing("cuStreamWriteValue32_v2");
      return api_.StreamWaitValue32 == nullptr ? missing("cuStreamWaitValue32_v2") : QRD_OK;
    case StepMode::kKernel:
      if (api_.ModuleLoadData == nullptr) return missing("cuModuleLoadData");
      if (api_.ModuleGetFunction == nullptr) return missing("cuModuleGetFunction");
      if (api_.LaunchKernel == nullptr) return missing("cuLaunchKernel");
      return LoadGate(device);
  }
  return Fail(QRD_INTERNAL, "step mode %d", static_cast<int>(mode));
}

qrd_status CudaDriver::EnqueueBatch(Stream stream, std::span<const Step> steps, size_t* queued) {
  cuda::BatchMemOp operations[kStepsMax] = {};
  for (size_t i = 0; i < steps.size(); ++i) {
    operations[i].operation = steps[i].wait ? cuda::kMemOpWait32 : cuda::kMemOpWrite32;
    operations[i].address = steps[i].address;
    operations[i].value = steps[i].value;
    operations[i].flags = steps[i].wait ? cuda::kWaitValueEq : cuda::kWriteValueDefault;
  }
  const qrd_status status =
      Check(api_.StreamBatchMemOp(stream, static_cast<unsigned>(steps.size()), operations, 0),
            "cuStreamBatchMemOp");
  if (status == QRD_OK) *queued = steps.size();
  return status;
}

qrd_status CudaDriver::EnqueueGate(Stream stream, std::span<const Step> steps,
                                   const GateLimits& limits, size_t* queued) {
  Context context = nullptr;
  void* function = nullptr;
  if (qrd_status status = Check(api_.CtxGetCurrent(&context), "cuCtxGetCurrent");
      status != QRD_OK) {
    return status;
  }
  {
    const std::lock_guard<std::mutex> lock(gate_mu_);
    for (const auto& [loaded_in, loaded] : gates_) {
      if (loaded_in == context) function = loaded;
    }
  }
  if (function == nullptr) return Fail(QRD_INTERNAL, "the gate kernel is not loaded");
  GateArgs args = MakeGateArgs(steps, limits);
  void* parameters[] = {&args};
  const qrd_status status =
      Check(api_.LaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
            "cuLaunchKernel of the gate kernel");
  if (status == QRD_OK) *queued = steps.size();
  return status;
}

qrd_status CudaDriver::Enqueue(Stream stream, StepMode mode, std::span<const Step> steps,
                               const GateLimits& limits, size_t* queued) {
  *queued = 0;
  if (steps.size() > kStepsMax) {
    return Fail(QRD_INTERNAL, "%zu steps, at most %u", steps.size(), kStepsMax);
  }
  if (mode == StepMode::kBatch) return EnqueueBatch(stream, steps, queued);
  if (mode == StepMode::kKernel) return EnqueueGate(stream, steps, limits, queued);
  for (const Step& step : steps) {
    const qrd_status status =
        step.wait
            ? Check(api_.StreamWaitValue32(stream, step.address, step.value, cuda::kWaitValueEq),
                    "cuStreamWaitValue32")
            : Check(api_.StreamWriteValue32(stream, step.address, step.value,
                                            cuda::kWriteValueDefault),
                    "cuStreamWriteValue32");
    if (status != QRD_OK) return status;
    ++*queued;
  }
  return QRD_OK;
}

}  // namespace

qrd_status MakeCudaDriver(const Library& library, std::unique_ptr<Driver>* driver) {
  auto made = std::make_unique<CudaDriver>();
  const qrd_status status = made->Load(library);
  if (status == QRD_OK) *driver = std::move(made);
  return status;
}

bool IsCudaDeviceMemory(const Library& library, const void* ptr) {
  const auto query =
      library.FindFunction<decltype(cuda::Api::PointerGetAttribute)>("cuPointerGetAttribute");
  if (query == nullptr) return false;
  const auto address = static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(ptr));
  int type = 0;
  int managed = 0;
  return query(&type, cuda::kPointerMemoryType, address) == cuda::kSuccess &&
         type == cuda::kMemoryTypeDevice &&
         !(query(&managed, cuda::kPointerIsManaged, address) == cuda::kSuccess && managed != 0);
}

}  // namespace qrd::client::gpu
