// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/gpu.h"

#include <dlfcn.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace qrd::tools {

// CUDA's driver API and HIP have the same functions for this, with the same arguments: a context is
// the only thing that differs. Addresses are integers in one and pointers in the other, of 64 bits
// in both.
#define QRD_GPU_CALLS(CALL)                                                                        \
  CALL(Init, "cuInit", "hipInit", (unsigned))                                                      \
  CALL(GetDeviceCount, "cuDeviceGetCount", "hipGetDeviceCount", (int*))                            \
  CALL(GetDeviceByAddress, "cuDeviceGetByPCIBusId", "hipDeviceGetByPCIBusId", (int*, const char*)) \
  CALL(Allocate, "cuMemAlloc_v2", "hipMalloc", (void**, size_t))                                   \
  CALL(Free, "cuMemFree_v2", "hipFree", (void*))                                                   \
  CALL(CopyIn, "cuMemcpyHtoD_v2", "hipMemcpyHtoD", (void*, const void*, size_t))                   \
  CALL(CopyOut, "cuMemcpyDtoH_v2", "hipMemcpyDtoH", (void*, const void*, size_t))                  \
  CALL(CopyOnDevice, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync",                                 \
       (void*, const void*, size_t, void*))                                                        \
  CALL(StreamCreate, "cuStreamCreate", "hipStreamCreateWithFlags", (void**, unsigned))             \
  CALL(StreamSynchronize, "cuStreamSynchronize", "hipStreamSynchronize", (void*))                  \
  CALL(StreamDestroy, "cuStreamDestroy_v2", "hipStreamDestroy", (void*))                           \
  CALL(EventCreate, "cuEventCreate", "hipEventCreateWithFlags", (void**, unsigned))                \
  CALL(EventRecord, "cuEventRecord", "hipEventRecord", (void*, void*))                             \
  CALL(EventElapsed, "cuEventElapsedTime", "hipEventElapsedTime", (float*, void*, void*))          \
  CALL(EventDestroy, "cuEventDestroy_v2", "hipEventDestroy", (void*))                              \
  CALL(BeginCapture, "cuStreamBeginCapture_v2", "hipStreamBeginCapture", (void*, int))             \
  CALL(EndCapture, "cuStreamEndCapture", "hipStreamEndCapture", (void*, void**))                   \
  CALL(Instantiate, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags",                 \
       (void**, void*, unsigned long long))                                                        \
  CALL(GraphDestroy, "cuGraphDestroy", "hipGraphDestroy", (void*))                                 \
  CALL(GraphLaunch, "cuGraphLaunch", "hipGraphLaunch", (void*, void*))                             \
  CALL(GraphExecDestroy, "cuGraphExecDestroy", "hipGraphExecDestroy", (void*))

struct Gpu::Api {
#define QRD_MEMBER(name, cuda, hip, parameters) int(*name) parameters = nullptr;
  QRD_GPU_CALLS(QRD_MEMBER)
#undef QRD_MEMBER
  // CUDA only.
  int (*RetainContext)(void**, int) = nullptr;
  int (*SetContext)(void*) = nullptr;
  // HIP only.
  int (*SetDevice)(int) = nullptr;
  bool cuda = false;
};

namespace {

constexpr unsigned kNonBlockingStream = 1;  // both APIs
constexpr int kCaptureThreadLocal = 1;      // both APIs
constexpr int kCopies = 9;
constexpr size_t kCopyBytes = size_t{256} << 20;

template <typename Function>
void Find(void* library, const char* name, Function* function, std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing->empty()) *missing = name;
}

}  // namespace

Gpu::Gpu() : api_(std::make_unique<Api>()) {}

Gpu::~Gpu() {
  if (stream_ != nullptr) (void)api_->StreamSynchronize(stream_);
  DropGraph();
  for (void* mark : marks_) (void)api_->EventDestroy(mark);
  for (void* memory : allocations_) (void)api_->Free(memory);
  if (stream_ != nullptr) (void)api_->StreamDestroy(stream_);
}

void Gpu::DropGraph() {
  if (graph_ != nullptr) (void)api_->GraphExecDestroy(graph_);
  graph_ = nullptr;
}

absl::Status Gpu::Check(int result, const char* what) const {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", api_->cuda ? "CUDA" : "HIP", " error ", result));
}

absl::Status Gpu::Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  api_->cuda = library != nullptr;
  for (const char* name : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        "--backend gpu: neither libcuda.so.1 nor libamdhip64.so can be loaded; install the GPU's "
        "driver, or use --backend host");
  }
  std::string missing;
#define QRD_FIND(name, cuda_name, hip_name, parameters) \
  Find(library, api_->cuda ? cuda_name : hip_name, &api_->name, &missing);
  QRD_GPU_CALLS(QRD_FIND)
#undef QRD_FIND
  if (api_->cuda) {
    Find(library, "cuDevicePrimaryCtxRetain", &api_->RetainContext, &missing);
    Find(library, "cuCtxSetCurrent", &api_->SetContext, &missing);
  } else {
    Find(library, "hipSetDevice", &api_->SetDevice, &missing);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--backend gpu: the driver has no function ", missing, ", it is too old"));
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(const std::string& address, uint32_t rank) {
  std::unique_ptr<Gpu> gpu(new Gpu());
  if (absl::Status status = gpu->Load(); !status.ok()) return status;
  Api& api = *gpu->api_;
  if (api.Init(0) != 0 || api.GetDeviceCount(&gpu->device_count_) != 0 || gpu->device_count_ == 0) {
    return absl::FailedPreconditionError("--backend gpu: this process sees no GPU");
  }
  int device = static_cast<int>(rank) % gpu->device_count_;
  if (!address.empty() && api.GetDeviceByAddress(&device, address.c_str()) != 0) {
    return absl::NotFoundError(absl::StrCat("--devices: no GPU at PCI address '", address,
                                            "'; qrctl capabilities lists those of the daemon"));
  }
  absl::Status status;
  if (api.cuda) {
    void* context = nullptr;
    status = gpu->Check(api.RetainContext(&context, device), "cuDevicePrimaryCtxRetain");
    if (status.ok()) status = gpu->Check(api.SetContext(context), "cuCtxSetCurrent");
  } else {
    status = gpu->Check(api.SetDevice(device), "hipSetDevice");
  }
  if (status.ok()) {
    status = gpu->Check(api.StreamCreate(&gpu->stream_, kNonBlockingStream), "stream");
  }
  if (!status.ok()) return status;
  return gpu;
}

absl::StatusOr<void*> Gpu::Allocate(size_t bytes) {
  void* memory = nullptr;
  if (absl::Status status = Check(api_->Allocate(&memory, bytes), "allocation"); !status.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory of ", bytes, " bytes: ", status.message()));
  }
  allocations_.push_back(memory);
  return memory;
}

absl::Status Gpu::CopyIn(void* device, const void* host, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const absl::Status status = Check(api_->CopyIn(device, host, bytes), "copy to device");
  // From pageable memory the call may return before the data is there; it is on the default stream.
  return status.ok() ? Check(api_->StreamSynchronize(nullptr), "copy to device") : status;
}

absl::Status Gpu::CopyOut(void* host, const void* device, size_t bytes) {
  return bytes == 0 ? absl::OkStatus()
                    : Check(api_->CopyOut(host, device, bytes), "copy from device");
}

absl::Status Gpu::CopyOnDevice(void* to, const void* from, size_t bytes) {
  return bytes == 0 ? absl::OkStatus()
                    : Check(api_->CopyOnDevice(to, from, bytes, stream_), "copy on device");
}

absl::Status Gpu::Synchronize() { return Check(api_->StreamSynchronize(stream_), "stream"); }

absl::Status Gpu::Mark(size_t index) {
  while (marks_.size() <= index) {
    void* mark = nullptr;
    if (absl::Status status = Check(api_->EventCreate(&mark, 0), "event"); !status.ok()) {
      return status;
    }
    marks_.push_back(mark);
  }
  return Check(api_->EventRecord(marks_[index], stream_), "event");
}

absl::StatusOr<uint64_t> Gpu::ElapsedNs(size_t from, size_t to) {
  float ms = 0;
  if (absl::Status status = Check(api_->EventElapsed(&ms, marks_[from], marks_[to]), "event");
      !status.ok()) {
    return status;
  }
  return static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
}

absl::Status Gpu::Capture(const std::function<absl::Status()>& record) {
  DropGraph();
  absl::Status status = Check(api_->BeginCapture(stream_, kCaptureThreadLocal), "capture");
  if (!status.ok()) return status;
  const absl::Status recorded = record();
  void* graph = nullptr;
  status = Check(api_->EndCapture(stream_, &graph), "capture");
  if (!recorded.ok()) status = recorded;
  if (status.ok()) status = Check(api_->Instantiate(&graph_, graph, 0), "graph");
  if (graph != nullptr) (void)api_->GraphDestroy(graph);
  return status;
}

absl::Status Gpu::LaunchGraph() { return Check(api_->GraphLaunch(graph_, stream_), "graph"); }

absl::StatusOr<double> Gpu::CopyBytesPerSecond() {
  void* from = nullptr;
  void* to = nullptr;
  const auto free = absl::MakeCleanup([&] {
    if (from != nullptr) (void)api_->Free(from);
    if (to != nullptr) (void)api_->Free(to);
  });
  if (api_->Allocate(&from, kCopyBytes) != 0 || api_->Allocate(&to, kCopyBytes) != 0) {
    return absl::ResourceExhaustedError("no device memory to measure a copy with");
  }
  std::vector<uint64_t> times;
  for (int i = 0; i < kCopies + 2; ++i) {
    absl::Status status = Mark(0);
    if (status.ok()) status = CopyOnDevice(to, from, kCopyBytes);
    if (status.ok()) status = Mark(1);
    if (status.ok()) status = Synchronize();
    if (!status.ok()) return status;
    const absl::StatusOr<uint64_t> ns = ElapsedNs(0, 1);
    if (!ns.ok()) return ns.status();
    if (i >= 2) times.push_back(*ns);
  }
  std::nth_element(times.begin(), times.begin() + kCopies / 2, times.end());
  return 2.0 * kCopyBytes / static_cast<double>(std::max<uint64_t>(times[kCopies / 2], 1)) * 1e9;
}

}  // namespace qrd::tools
