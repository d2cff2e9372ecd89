// SPDX-License-Identifier: Apache-2.0
#include "client/src/arguments.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "client/core/error.h"
#include "proto/shm/layout.h"

namespace qrd::client {
namespace {

static_assert(QRD_WORLD_SIZE_MAX == shm::kWorldSizeMax);

// Sizes of the structs in the first version of the library. Fields are only added behind these.
constexpr size_t kConfigBytesMin = offsetof(qrd_comm_config, create_if_absent) + sizeof(int);
constexpr size_t kStatsBytesMin = offsetof(qrd_op_stats, staged) + sizeof(int);
static_assert(kConfigBytesMin == 48 && kStatsBytesMin == 104);
constexpr size_t kConfigBytesWithDevice = offsetof(qrd_comm_config, device) + sizeof(const char*);
// A struct of a later version may be larger, within reason.
constexpr size_t kStructBytesMax = 4096;

constexpr size_t kNameBytesMax = 64;
constexpr size_t kReasonBytesMax = 128;
constexpr size_t kDeviceBytesMax = 64;
constexpr uint32_t kTimeoutMsMax = 3'600'000;  // of an attach, as the daemon has it

qrd_status CheckStructBytes(const char* name, size_t bytes, size_t bytes_min) {
  if (bytes >= bytes_min && bytes <= kStructBytesMax) return QRD_OK;
  return Fail(QRD_INVALID_ARGUMENT,
              "%s.struct_bytes: %zu, want sizeof(the struct), %zu to %zu (use the _INIT macro)",
              name, bytes, bytes_min, kStructBytesMax);
}

bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsNameCharacter(char c) { return IsNameStart(c) || c == '.' || c == '_' || c == '-'; }

qrd_status CheckName(const char* field, const char* name) {
  const size_t bytes = strnlen(name, kNameBytesMax + 1);
  if (bytes == 0 || bytes > kNameBytesMax) {
    return Fail(QRD_INVALID_ARGUMENT, "config.%s: \"%.64s%s\" has %s%zu characters, want 1 to %zu",
                field, name, bytes > kNameBytesMax ? "..." : "",
                bytes > kNameBytesMax ? "more than " : "",
                bytes > kNameBytesMax ? bytes - 1 : bytes, kNameBytesMax);
  }
  for (size_t i = 0; i < bytes; ++i) {
    if (i == 0 ? IsNameStart(name[i]) : IsNameCharacter(name[i])) continue;
    return Fail(QRD_INVALID_ARGUMENT,
                "config.%s: the character at position %zu of \"%s\" (0x%02x) is not allowed, want "
                "[a-z0-9._-], the first one a letter or digit",
                field, i + 1, name, static_cast<unsigned char>(name[i]));
  }
  return QRD_OK;
}

bool IsSocket(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

qrd_status FindAttachSocket(const char* runtime_directory, std::string* path) {
  constexpr std::string_view kSocket = "/attach.sock";
  if (runtime_directory != nullptr && runtime_directory[0] == '\0') {
    return Fail(QRD_INVALID_ARGUMENT, "config.runtime_directory: empty, want a directory or NULL");
  }
  const char* directory = runtime_directory;
  if (directory == nullptr) {
    directory = std::getenv("QRD_RUNTIME_DIRECTORY");
    if (directory != nullptr && directory[0] == '\0') directory = nullptr;
  }
  if (directory != nullptr) {
    *path = std::string(directory).append(kSocket);
    return QRD_OK;
  }
  *path = std::string("/run/qrd").append(kSocket);
  if (IsSocket(*path)) return QRD_OK;
  const char* user = std::getenv("XDG_RUNTIME_DIR");
  if (user != nullptr && user[0] != '\0') {
    *path = std::string(user).append("/qrd").append(kSocket);
    return QRD_OK;
  }
  return Fail(QRD_UNAVAILABLE,
              "no qrd daemon: %s is not a socket, and neither config.runtime_directory, "
              "$QRD_RUNTIME_DIRECTORY nor $XDG_RUNTIME_DIR is set",
              path->c_str());
}

qrd_status CheckElementPointer(const char* name, const void* ptr, size_t bytes,
                               size_t element_bytes) {
  if (qrd_status status = CheckRange(name, ptr, bytes); status != QRD_OK) return status;
  const uintptr_t address = reinterpret_cast<uintptr_t>(ptr);
  if (address % element_bytes == 0) return QRD_OK;
  return Fail(QRD_INVALID_ARGUMENT,
              "%s: %p is not aligned to the element, want a multiple of %zu bytes", name, ptr,
              element_bytes);
}

// Length of the UTF-8 sequence at text[i], 0 if it is not one. Overlong forms, surrogates and
// values past U+10FFFF are not.
size_t Utf8SequenceBytes(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> unsigned {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u;
  };
  const unsigned lead = byte(i);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  for (size_t k = 1; k < bytes; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(i + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return bytes;
}

}  // namespace

qrd_status CheckConfig(const qrd_comm_config* config, AttachOptions* options) {
  if (config == nullptr) return Fail(QRD_INVALID_ARGUMENT, "config: NULL");
  if (qrd_status checked = CheckStruct("config", config, config->struct_bytes, kConfigBytesMin,
                                       sizeof(qrd_comm_config));
      checked != QRD_OK) {
    return checked;
  }
  if (config->communicator == nullptr) {
    return Fail(QRD_INVALID_ARGUMENT, "config.communicator: NULL, want a name");
  }
  const char* group = config->group == nullptr ? "default" : config->group;
  qrd_status status = CheckName("communicator", config->communicator);
  if (status == QRD_OK) status = CheckName("group", group);
  if (status != QRD_OK) return status;
  if (config->world_size < 1 || config->world_size > QRD_WORLD_SIZE_MAX) {
    return Fail(QRD_INVALID_ARGUMENT, "config.world_size: %u, want 1 to %d", config->world_size,
                QRD_WORLD_SIZE_MAX);
  }
  if (config->rank >= config->world_size) {
    return Fail(QRD_INVALID_ARGUMENT, "config.rank: %u, want 0 to %u (world_size is %u)",
                config->rank, config->world_size - 1, config->world_size);
  }
  if (config->timeout_ms > kTimeoutMsMax) {
    return Fail(QRD_INVALID_ARGUMENT, "config.timeout_ms: %u, want 0 to %u", config->timeout_ms,
                kTimeoutMsMax);
  }
  options->communicator = config->communicator;
  options->group = group;
  options->rank = config->rank;
  options->world_size = config->world_size;
  options->timeout_ms = config->timeout_ms;
  options->create_if_absent = config->create_if_absent != 0;
  if (config->struct_bytes >= kConfigBytesWithDevice && config->device != nullptr) {
    const size_t bytes = strnlen(config->device, kDeviceBytesMax + 1);
    if (bytes == 0 || bytes > kDeviceBytesMax) {
      return Fail(QRD_INVALID_ARGUMENT,
                  "config.device: \"%.64s%s\", want \"current\", a UUID, a PCI address (1 to %zu "
                  "characters), or NULL for host memory",
                  config->device, bytes > kDeviceBytesMax ? "..." : "", kDeviceBytesMax);
    }
    options->device = config->device;
  }
  return FindAttachSocket(config->runtime_directory, &options->attach_path);
}

qrd_status CheckStruct(const char* name, const void* data, size_t struct_bytes, size_t bytes_min,
                       size_t bytes_known) {
  if (qrd_status status = CheckStructBytes(name, struct_bytes, bytes_min); status != QRD_OK) {
    return status;
  }
  // Fields that this library does not know must be unset: better refused than ignored.
  const unsigned char* raw = static_cast<const unsigned char*>(data);
  for (size_t i = bytes_known; i < struct_bytes; ++i) {
    if (raw[i] == 0) continue;
    return Fail(QRD_INVALID_ARGUMENT,
                "%s: byte %zu is set, but this library (%d.%d.%d) knows %zu bytes of the struct",
                name, i, QRD_VERSION_MAJOR, QRD_VERSION_MINOR, QRD_VERSION_PATCH, bytes_known);
  }
  return QRD_OK;
}

qrd_status CheckRange(const char* name, const void* ptr, size_t bytes) {
  if (ptr == nullptr) return Fail(QRD_INVALID_ARGUMENT, "%s: NULL", name);
  if (bytes == 0) return Fail(QRD_INVALID_ARGUMENT, "%s: 0 bytes, want 1 or more", name);
  const uintptr_t address = reinterpret_cast<uintptr_t>(ptr);
  if (bytes - 1 > std::numeric_limits<uintptr_t>::max() - address) {
    return Fail(QRD_INVALID_ARGUMENT, "%s: %zu bytes from %p pass the end of the address space",
                name, bytes, ptr);
  }
  return QRD_OK;
}

qrd_status CheckAllReduce(const AllReduceCall& call, size_t* bytes) {
  if (call.dtype != QRD_FP16 && call.dtype != QRD_BF16 && call.dtype != QRD_FP32) {
    return Fail(QRD_INVALID_ARGUMENT, "dtype: %d, want QRD_FP16 (1), QRD_BF16 (2) or QRD_FP32 (3)",
                static_cast<int>(call.dtype));
  }
  if (call.op != QRD_SUM && call.op != QRD_AVG) {
    return Fail(QRD_INVALID_ARGUMENT, "op: %d, want QRD_SUM (1) or QRD_AVG (2)",
                static_cast<int>(call.op));
  }
  const size_t element_bytes = call.dtype == QRD_FP32 ? 4 : 2;
  if (call.count > std::numeric_limits<size_t>::max() / element_bytes) {
    return Fail(QRD_INVALID_ARGUMENT,
                "count: %zu elements of %zu bytes overflow size_t, want at most %zu", call.count,
                element_bytes, std::numeric_limits<size_t>::max() / element_bytes);
  }
  *bytes = call.count * element_bytes;
  if (*bytes == 0) return QRD_OK;
  qrd_status status = CheckElementPointer("input", call.input, *bytes, element_bytes);
  if (status == QRD_OK) status = CheckElementPointer("output", call.output, *bytes, element_bytes);
  if (status != QRD_OK) return status;
  const uintptr_t input = reinterpret_cast<uintptr_t>(call.input);
  const uintptr_t output = reinterpret_cast<uintptr_t>(call.output);
  const uintptr_t distance = input > output ? input - output : output - input;
  if (distance != 0 && distance < *bytes) {
    return Fail(QRD_INVALID_ARGUMENT,
                "output: %p overlaps input %p by %zu of %zu bytes, want the same pointer or none "
                "in common",
                call.output, call.input, static_cast<size_t>(*bytes - distance), *bytes);
  }
  return QRD_OK;
}

qrd_status CheckStats(const qrd_op_stats* stats) {
  return stats == nullptr ? QRD_OK : CheckStructBytes("stats", stats->struct_bytes, kStatsBytesMin);
}

qrd_status CheckReason(const char* reason, std::string* text) {
  text->clear();
  if (reason == nullptr) return QRD_OK;
  const size_t bytes = strnlen(reason, kReasonBytesMax + 1);
  if (bytes > kReasonBytesMax) {
    return Fail(QRD_INVALID_ARGUMENT, "reason: more than %zu bytes", kReasonBytesMax);
  }
  const std::string_view view(reason, bytes);
  for (size_t i = 0; i < bytes;) {
    const size_t length = Utf8SequenceBytes(view, i);
    if (length == 0) {
      text->push_back('?');
      ++i;
    } else {
      text->append(view.substr(i, length));
      i += length;
    }
  }
  return QRD_OK;
}

}  // namespace qrd::client
