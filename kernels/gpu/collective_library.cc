// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu/collective_library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/gpu/runtime_support.h"

namespace qrd::gpu {
namespace {

#if defined(QRD_GPU_CUDA)
constexpr const char* kName = "NCCL";
constexpr const char* kFiles[] = {"libnccl.so.2"};
#else
constexpr const char* kName = "RCCL";
constexpr const char* kFiles[] = {"librccl.so.1", "librccl.so"};
#endif

// ncclAvg came with 2.10.
constexpr int kVersionMin = 21000;

// Values of ncclDataType_t and ncclRedOp_t.
int LibraryDtype(Dtype dtype) { return dtype == Dtype::kFp16 ? 6 : dtype == Dtype::kFp32 ? 7 : 9; }
int LibraryOp(ReduceOp op) { return op == ReduceOp::kAvg ? 4 : 0; }

template <typename Function>
void Find(void* library, const char* name, Function* function, std::vector<std::string>* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) missing->push_back(name);
}

absl::StatusOr<void*> OpenFile(std::string_view which) {
  std::vector<std::string> names;
  if (which == "auto") {
    for (const char* file : kFiles) names.push_back(file);
  } else {
    names.push_back(std::string(which));
  }
  std::vector<std::string> errors;
  for (const std::string& name : names) {
    // Local: a serving process's own copy must not be taken for this one.
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    errors.push_back(dlerror());
  }
  return absl::NotFoundError(absl::StrJoin(errors, "; "));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CollectiveLibrary>> CollectiveLibrary::Load(std::string_view which) {
  if (which == "off") {
    return absl::FailedPreconditionError("collective_library is off in the configuration");
  }
  const absl::StatusOr<void*> file = OpenFile(which);
  if (!file.ok()) return file.status();
  std::unique_ptr<CollectiveLibrary> library(new CollectiveLibrary());
  std::vector<std::string> missing;
  Find(*file, "ncclGetVersion", &library->get_version_, &missing);
  Find(*file, "ncclCommInitAll", &library->init_all_, &missing);
  Find(*file, "ncclCommDestroy", &library->destroy_, &missing);
  Find(*file, "ncclCommAbort", &library->abort_, &missing);
  Find(*file, "ncclGroupStart", &library->group_start_, &missing);
  Find(*file, "ncclGroupEnd", &library->group_end_, &missing);
  Find(*file, "ncclAllReduce", &library->all_reduce_, &missing);
  Find(*file, "ncclGetErrorString", &library->error_string_, &missing);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the collective library has no function ", absl::StrJoin(missing, ", ")));
  }
  int version = 0;
  if (absl::Status status = library->Check(library->get_version_(&version), "ncclGetVersion");
      !status.ok()) {
    return status;
  }
  if (version < kVersionMin) {
    return absl::FailedPreconditionError(absl::StrCat(kName, " is of version number ", version,
                                                      ": want ", kVersionMin, " (2.10) or later"));
  }
  library->version_ =
      absl::StrCat(kName, " ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  return library;
}

absl::Status CollectiveLibrary::Check(int result, const char* call) const {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, ": ", error_string_ != nullptr ? error_string_(result) : "failed"));
}

absl::StatusOr<std::unique_ptr<LibraryCommunicator>> LibraryCommunicator::Create(
    const CollectiveLibrary* library, std::vector<int> devices) {
  std::unique_ptr<LibraryCommunicator> made(new LibraryCommunicator(library, std::move(devices)));
  const ScopedDevice keep(made->devices_[0]);  // the library leaves another one current
  QRD_RETURN_IF_RUNTIME_ERROR(keep.error());
  const absl::Status status =
      library->Check(library->init_all_(made->ranks_.data(), static_cast<int>(made->ranks_.size()),
                                        made->devices_.data()),
                     "ncclCommInitAll");
  if (!status.ok()) {
    made->ranks_.clear();
    return status;
  }
  return made;
}

LibraryCommunicator::~LibraryCommunicator() {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const ScopedDevice device(devices_[r]);
    (void)(failed_ ? library_->abort_ : library_->destroy_)(ranks_[r]);
  }
}

absl::Status LibraryCommunicator::AllReduce(const LaunchParams& params,
                                            std::span<const hipStream_t> streams) {
  if (params.count == 0) return absl::OkStatus();
  absl::Status status = library_->Check(library_->group_start_(), "ncclGroupStart");
  for (size_t r = 0; status.ok() && r < ranks_.size(); ++r) {
    const ScopedDevice device(devices_[r]);
    status = library_->Check(library_->all_reduce_(params.inputs[r], params.outputs[r],
                                                   params.count, LibraryDtype(params.dtype),
                                                   LibraryOp(params.op), ranks_[r], streams[r]),
                             "ncclAllReduce");
  }
  // Always: a group that was begun must end.
  const absl::Status end = library_->Check(library_->group_end_(), "ncclGroupEnd");
  if (status.ok()) status = end;
  failed_ |= !status.ok();
  return status;
}

}  // namespace qrd::gpu
