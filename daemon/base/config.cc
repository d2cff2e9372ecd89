// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/config.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/base/groups.h"
#include "daemon/base/host_port.h"
#include "daemon/base/names.h"
#include "daemon/base/number_bounds.h"
#include "daemon/base/text_format.h"
#include "kernels/types.h"

namespace qrd {
namespace {

constexpr size_t kRuntimeDirectoryBytesMax = 90;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// The first of a ':' separated list: systemd may put several directories there.
std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return "";
  return std::string(value).substr(0, std::string(value).find(':'));
}

std::string DefaultRuntimeDirectory() {
  if (const std::string set = FromEnvironment("RUNTIME_DIRECTORY"); !set.empty()) return set;
  if (geteuid() == 0 || access("/run/qrd", W_OK) == 0) return "/run/qrd";
  const std::string xdg = FromEnvironment("XDG_RUNTIME_DIR");
  return xdg.empty() ? "" : xdg + "/qrd";
}

std::string DefaultStateDirectory() {
  if (const std::string set = FromEnvironment("STATE_DIRECTORY"); !set.empty()) return set;
  if (geteuid() == 0) return "/var/lib/qrd";
  if (const std::string xdg = FromEnvironment("XDG_STATE_HOME"); !xdg.empty()) return xdg + "/qrd";
  const std::string home = FromEnvironment("HOME");
  return home.empty() ? "" : home + "/.local/state/qrd";
}

absl::Status ReadDirectory(const char* field, const std::string& value, const char* instead,
                           std::string* out) {
  if (value.empty()) {
    return Invalid(field, " is empty and there is no default here; give ", instead);
  }
  if (value.find('\0') != std::string::npos) return Invalid(field, " has a NUL byte");
  std::error_code error;
  *out = std::filesystem::absolute(value, error).lexically_normal().string();
  if (error) return Invalid(field, " is ", Quoted(value), ": ", error.message());
  while (out->size() > 1 && out->back() == '/') out->pop_back();
  return absl::OkStatus();
}

absl::Status ReadDirectories(const v1::Config& proto, Config* config) {
  absl::Status status = ReadDirectory(
      "runtime_directory",
      proto.has_runtime_directory() ? proto.runtime_directory() : DefaultRuntimeDirectory(),
      "--runtime-directory, or set $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR",
      &config->runtime_directory);
  if (!status.ok()) return status;
  if (config->runtime_directory.size() > kRuntimeDirectoryBytesMax) {
    return Invalid("runtime_directory is ", Quoted(config->runtime_directory, 40), ", ",
                   config->runtime_directory.size(), " bytes; at most ", kRuntimeDirectoryBytesMax,
                   " (the sockets in it have a path of at most 107 bytes)");
  }
  return ReadDirectory(
      "state_directory",
      proto.has_state_directory() ? proto.state_directory() : DefaultStateDirectory(),
      "--state-directory, or set $STATE_DIRECTORY, $XDG_STATE_HOME or $HOME",
      &config->state_directory);
}

template <typename T>
absl::Status ReadNumber(const char* field, bool is_set, T value, T* out) {
  if (!is_set) return absl::OkStatus();
  const std::optional<NumberBounds> bounds = BoundsOf(field);
  if (!bounds.has_value()) return absl::InternalError(absl::StrCat(field, " has no bounds"));
  if (value < bounds->min || value > bounds->max) {
    return Invalid(field, " is ", value, "; want ", bounds->min, " to ", bounds->max);
  }
  *out = value;
  return absl::OkStatus();
}

#define QRD_READ(field) \
  ReadNumber<decltype(config->field)>(#field, proto.has_##field(), proto.field(), &config->field)

absl::Status ReadNumbers(const v1::Config& proto, Config* config) {
  for (const absl::Status& status : {
           QRD_READ(communicators_max),
           QRD_READ(sessions_max),
           QRD_READ(operations_in_flight_max),
           QRD_READ(arenas_per_session_max),
           QRD_READ(arena_bytes_per_session_max),
           QRD_READ(arena_bytes_max),
           QRD_READ(stream_entries_per_session),
           QRD_READ(device_arena_bytes_max),
           QRD_READ(worker_threads),
           QRD_READ(spin_us_max),
           QRD_READ(operation_timeout_ms),
           QRD_READ(attach_timeout_ms),
           QRD_READ(drain_timeout_ms),
       }) {
    if (!status.ok()) return status;
  }
  if ((config->operations_in_flight_max & (config->operations_in_flight_max - 1)) != 0) {
    return Invalid("operations_in_flight_max is ", config->operations_in_flight_max,
                   "; want a power of two, ", shm::kSlotsMin, " to ", shm::kSlotsMax);
  }
  if (proto.has_create_on_attach()) config->create_on_attach = proto.create_on_attach();
  return absl::OkStatus();
}
#undef QRD_READ

// What depends on the machine.
void ResolveMachine(Config* config) {
  if (config->arena_bytes_max == 0) {
    const NumberBounds bounds = BoundsOf("arena_bytes_max").value();
    const auto pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
    const auto page_bytes = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
    config->arena_bytes_max = std::clamp(pages * page_bytes / 10 * 8, bounds.min, bounds.max);
  }
  if (config->worker_threads == 0) {
    cpu_set_t cpus;
    const int count = sched_getaffinity(0, sizeof(cpus), &cpus) == 0
                          ? CPU_COUNT(&cpus)
                          : static_cast<int>(std::thread::hardware_concurrency());
    config->worker_threads = static_cast<uint32_t>(std::clamp(count, 1, 256));
  }
}

absl::Status ReadTexts(const v1::Config& proto, Config* config) {
  if (proto.has_attach_group()) config->attach_group = proto.attach_group();
  if (proto.has_admin_group()) config->admin_group = proto.admin_group();
  for (const auto& [field, name] : {std::pair{"attach_group", config->attach_group},
                                    std::pair{"admin_group", config->admin_group}}) {
    if (name.empty()) continue;
    if (absl::Status status = FindGroup(name).status(); !status.ok()) {
      return Invalid(field, ": ", std::string(status.message()));
    }
  }
  if (proto.has_metrics_address()) config->metrics_address = proto.metrics_address();
  if (!config->metrics_address.empty()) {
    if (auto parsed = ParseHostPort(config->metrics_address); !parsed.ok()) {
      return Invalid("metrics_address ", std::string(parsed.status().message()));
    }
  }
  if (proto.has_log_level()) config->log_level = proto.log_level();
  static constexpr const char* kLevels[] = {"trace", "debug", "info", "warning", "error"};
  if (std::find(std::begin(kLevels), std::end(kLevels), config->log_level) == std::end(kLevels)) {
    return Invalid("log_level is ", Quoted(config->log_level), "; want one of ",
                   absl::StrJoin(kLevels, ", "));
  }
  if (proto.has_gpu()) config->gpu = proto.gpu();
  if (config->gpu != "auto" && config->gpu != "off" && config->gpu != "required") {
    return Invalid("gpu is ", Quoted(config->gpu), "; want auto, off or required");
  }
  if (proto.has_collective_library()) config->collective_library = proto.collective_library();
  const std::string& library = config->collective_library;
  if (library != "auto" && library != "off" && !absl::StartsWith(library, "/")) {
    return Invalid("collective_library is ", Quoted(library),
                   "; want auto, off or an absolute path");
  }
  return absl::OkStatus();
}

absl::Status CheckCommunicator(const std::string& field, const v1::Communicator& c) {
  if (const std::string error = NameError(c.name()); !error.empty()) {
    return Invalid(field, ".name ", error);
  }
  if (c.world_size() < 1 || c.world_size() > kWorldSizeMax) {
    return Invalid(field, ".world_size is ", c.world_size(), "; want 1 to ", kWorldSizeMax);
  }
  if (!v1::Backend_IsValid(c.backend())) {
    return Invalid(field, ".backend is ", static_cast<int>(c.backend()),
                   "; want BACKEND_HOST (1) or BACKEND_GPU (2)");
  }
  v1::Communicator settings;
  settings.set_name(c.name());
  settings.set_world_size(c.world_size());
  settings.set_backend(c.backend());
  if (settings.ByteSizeLong() != c.ByteSizeLong()) {
    return Invalid(field,
                   ": only name, world_size and backend can be set; the rest is output only");
  }
  return absl::OkStatus();
}

absl::Status ReadCommunicators(const v1::Config& proto, Config* config) {
  if (static_cast<uint32_t>(proto.communicators_size()) > config->communicators_max) {
    return Invalid("communicators: ", proto.communicators_size(),
                   " of them; at most communicators_max = ", config->communicators_max);
  }
  std::set<std::string> names;
  for (int i = 0; i < proto.communicators_size(); ++i) {
    const std::string field = absl::StrCat("communicators[", i, "]");
    const v1::Communicator& communicator = proto.communicators(i);
    if (absl::Status status = CheckCommunicator(field, communicator); !status.ok()) return status;
    if (!names.insert(communicator.name()).second) {
      return Invalid(field, ".name ", Quoted(communicator.name()), " is there twice");
    }
    config->communicators.push_back(communicator);
  }
  for (const auto& [name, weight] : proto.communicator_weights()) {
    if (const std::string error = NameError(name); !error.empty()) {
      return Invalid("communicator_weights: key ", error);
    }
    if (weight < 1 || weight > 100) {
      return Invalid("communicator_weights[", Quoted(name), "] is ", weight, "; want 1 to 100");
    }
    config->communicator_weights[name] = weight;
  }
  config->initial_policy = proto.initial_policy();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Config> ParseConfigText(const std::string& text, const std::string& file_name) {
  v1::Config config;
  if (absl::Status status = ParseText(text, file_name, &config); !status.ok()) return status;
  return config;
}

absl::StatusOr<Config> ResolveConfig(const v1::Config& proto) {
  Config config;
  for (const auto read : {ReadDirectories, ReadNumbers, ReadTexts, ReadCommunicators}) {
    if (absl::Status status = read(proto, &config); !status.ok()) return status;
  }
  ResolveMachine(&config);
  return config;
}

v1::Config ConfigToProto(const Config& config) {
  v1::Config proto;
  proto.set_runtime_directory(config.runtime_directory);
  proto.set_state_directory(config.state_directory);
  if (!config.attach_group.empty()) proto.set_attach_group(config.attach_group);
  if (!config.admin_group.empty()) proto.set_admin_group(config.admin_group);
  proto.set_metrics_address(config.metrics_address);
  proto.set_log_level(config.log_level);
  proto.set_create_on_attach(config.create_on_attach);
  proto.set_communicators_max(config.communicators_max);
  proto.set_sessions_max(config.sessions_max);
  proto.set_operations_in_flight_max(config.operations_in_flight_max);
  proto.set_arenas_per_session_max(config.arenas_per_session_max);
  proto.set_arena_bytes_per_session_max(config.arena_bytes_per_session_max);
  proto.set_arena_bytes_max(config.arena_bytes_max);
  proto.set_gpu(config.gpu);
  proto.set_collective_library(config.collective_library);
  proto.set_stream_entries_per_session(config.stream_entries_per_session);
  if (config.device_arena_bytes_max != 0) {
    proto.set_device_arena_bytes_max(config.device_arena_bytes_max);
  }
  proto.set_worker_threads(config.worker_threads);
  proto.set_spin_us_max(config.spin_us_max);
  proto.set_operation_timeout_ms(config.operation_timeout_ms);
  proto.set_attach_timeout_ms(config.attach_timeout_ms);
  proto.set_drain_timeout_ms(config.drain_timeout_ms);
  for (const v1::Communicator& communicator : config.communicators) {
    *proto.add_communicators() = communicator;
  }
  *proto.mutable_initial_policy() = config.initial_policy;
  for (const auto& [name, weight] : config.communicator_weights) {
    (*proto.mutable_communicator_weights())[name] = weight;
  }
  return proto;
}

}  // namespace qrd
