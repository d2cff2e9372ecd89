// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace qrd {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;  // Linux 6.3; Debian 12's headers are older
#endif

class MemfdArena final : public Arena {
 public:
  MemfdArena(int fd, std::byte* data, uint64_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}
  ~MemfdArena() override {
    munmap(data_, bytes_);
    CloseFd();
  }
  MemfdArena(const MemfdArena&) = delete;
  MemfdArena& operator=(const MemfdArena&) = delete;

  std::byte* data() override { return data_; }
  uint64_t bytes() const override { return bytes_; }
  int fd() const override { return fd_; }
  void CloseFd() override {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  std::byte* const data_;
  const uint64_t bytes_;
};

absl::Status SystemError(const char* call, uint64_t bytes, int error) {
  const std::string text = absl::StrCat("arena bytes = ", bytes, ": ", call, ": ",
                                        std::generic_category().message(error));
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

int CreateMemfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create("qrd-arena", kFlags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create("qrd-arena", kFlags);
}

// fallocate, again after a signal: it starts from the beginning, but finds pages that are there.
int Reserve(int fd, uint64_t bytes) {
  constexpr int kAttemptsMax = 100;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return 0;
    if (errno != EINTR) break;
  }
  return errno;
}

// The number after `key` in a file of "Key:   number kB" lines; `otherwise` if it is not there.
uint64_t MeminfoBytes(std::string_view key, uint64_t otherwise) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  uint64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == key) return kilobytes * 1024;
  }
  return otherwise;
}

// A control file with one number; `otherwise` if it is missing or says "max".
uint64_t NumberInFile(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  return file >> word && absl::SimpleAtoi(word, &value) ? value : otherwise;
}

// The least that this process's control group and those above it leave.
uint64_t ControlGroupRoomBytes() {
  constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  std::string path;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  uint64_t room = kNoLimit;
  while (!path.empty()) {
    const std::string folder = absl::StrCat("/sys/fs/cgroup", path);
    const uint64_t limit = NumberInFile(folder + "/memory.max", kNoLimit);
    const uint64_t used = NumberInFile(folder + "/memory.current", 0);
    if (limit != kNoLimit) room = std::min(room, limit > used ? limit - used : 0);
    if (path == "/") break;
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
  return room;
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  return std::min(MeminfoBytes("MemAvailable:", std::numeric_limits<uint64_t>::max()),
                  ControlGroupRoomBytes());
}

uint64_t TotalMemoryBytes() { return MeminfoBytes("MemTotal:", 0); }

std::string CpuDescription() {
  std::string model;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; model.empty() && std::getline(file, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      model = line.substr(line.find(": ") + 2);
    }
  }
  if (model.empty()) {
    utsname name{};
    model = uname(&name) == 0 ? name.machine : "unknown CPU";
  }
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  return absl::StrCat(model, ", ", cores, cores == 1 ? " core" : " cores");
}

absl::StatusOr<std::unique_ptr<Arena>> AllocateSealedArena(uint64_t bytes) {
  if (bytes == 0 || bytes > kArenaBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("arena bytes = ", bytes, ": want 1 to ", kArenaBytesMax));
  }
  const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t mapped_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  if (const uint64_t available = AvailableMemoryBytes(); mapped_bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("arena bytes = ", bytes, ": the machine has ", available, " bytes available"));
  }
  const int fd = CreateMemfd();
  if (fd < 0) return SystemError("memfd_create", bytes, errno);
  const auto fail = [&](const char* call, int error) {
    close(fd);
    return SystemError(call, bytes, error);
  };
  if (ftruncate(fd, static_cast<off_t>(mapped_bytes)) != 0) return fail("ftruncate", errno);
  if (const int error = Reserve(fd, mapped_bytes); error != 0) return fail("fallocate", error);
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail("F_ADD_SEALS", errno);
  }
  // MAP_POPULATE: the page tables are made here, not by the first operation.
  void* data =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return fail("mmap", errno);
  return std::make_unique<MemfdArena>(fd, static_cast<std::byte*>(data), mapped_bytes);
}

}  // namespace qrd
