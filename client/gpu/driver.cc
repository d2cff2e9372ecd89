// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/driver.h"

#include <link.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "client/core/error.h"
#include "client/gpu/cuda_driver.h"
#include "client/gpu/hip_driver.h"
#include "client/gpu/library.h"

namespace qrd::client::gpu {
namespace {

// HIP's by the versions of ROCm, newest first.
constexpr const char* kLibraries[] = {"libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6",
                                      "libamdhip64.so"};

constinit std::mutex driver_mu;
constinit Driver* process_driver = nullptr;

const char* DriverOfEnvironment() {
  const char* name = std::getenv("QRD_GPU_DRIVER");
  return name == nullptr || name[0] == '\0' ? nullptr : name;
}

qrd_status MakeDriver(const Library& library, std::unique_ptr<Driver>* driver) {
  if (library.Find("cuInit") != nullptr) return MakeCudaDriver(library, driver);
  if (library.Find("hipInit") != nullptr) return MakeHipDriver(library, driver);
  return Fail(QRD_FAILED_PRECONDITION, "%s exports neither cuInit nor hipInit",
              library.name().c_str());
}

qrd_status LoadDriver(std::unique_ptr<Driver>* driver) {
  std::string why;
  Library library;
  if (const char* name = DriverOfEnvironment(); name != nullptr) {
    if (!library.Open(name, &why)) {
      return Fail(QRD_FAILED_PRECONDITION, "QRD_GPU_DRIVER: %.600s", why.c_str());
    }
    return MakeDriver(library, driver);
  }
  std::string reasons;
  for (const char* name : kLibraries) {
    if (library.Open(name, &why)) {
      if (MakeDriver(library, driver) == QRD_OK) return QRD_OK;
      why = LastError();
    }
    reasons += (reasons.empty() ? "" : "; ") + why;
  }
  return Fail(QRD_FAILED_PRECONDITION, "no GPU that libqrd can use: %.600s", reasons.c_str());
}

// How many shared objects the process has ever loaded: cheaper than looking for one by name.
unsigned long long LoadCount() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

bool FindLoadedLibrary(Library* library) {
  if (const char* name = DriverOfEnvironment(); name != nullptr) return library->OpenLoaded(name);
  for (const char* name : kLibraries) {
    if (library->OpenLoaded(name)) return true;
  }
  return false;
}

}  // namespace

qrd_status GetDriver(Driver** driver) {
  const std::lock_guard<std::mutex> lock(driver_mu);
  if (process_driver == nullptr) {
    std::unique_ptr<Driver> made;
    if (qrd_status status = LoadDriver(&made); status != QRD_OK) return status;
    process_driver = made.release();
  }
  *driver = process_driver;
  return QRD_OK;
}

bool IsDeviceMemory(const void* ptr, const char** library_name) {
  // A GPU library stays once it is there; without one there is no such memory.
  static std::atomic<const Library*> found{nullptr};
  static std::atomic<unsigned long long> count_without_library{0};
  const Library* library = found.load(std::memory_order_acquire);
  if (library == nullptr) {
    const unsigned long long count = LoadCount();
    if (count == count_without_library.load(std::memory_order_relaxed)) return false;
    Library loaded;
    if (!FindLoadedLibrary(&loaded)) {
      count_without_library.store(count, std::memory_order_relaxed);
      return false;
    }
    const Library* const mine = new Library(loaded);
    if (found.compare_exchange_strong(library, mine, std::memory_order_acq_rel)) {
      library = mine;
    } else {
      delete mine;
    }
  }
  *library_name = library->name().c_str();
  return library->Find("cuInit") != nullptr ? IsCudaDeviceMemory(*library, ptr)
                                            : IsHipDeviceMemory(*library, ptr);
}

std::string FormatUuid(const unsigned char bytes[16]) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace qrd::client::gpu
