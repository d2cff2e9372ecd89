// SPDX-License-Identifier: Apache-2.0
// Flags, configuration, signals. Everything else is App.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/app.h"
#include "daemon/base/config.h"
#include "daemon/base/file.h"
#include "daemon/base/flags.h"
#include "daemon/base/log.h"
#include "daemon/base/systemd.h"
#include "daemon/base/text_format.h"
#include "daemon/base/unique_fd.h"
#include "daemon/base/version.h"
#include "daemon/policy/policy.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// What a drain may take beyond drain_timeout_ms: streams, threads, files.
constexpr absl::Duration kStopMargin = absl::Seconds(5);

// SIGTERM, SIGINT and SIGHUP as a descriptor. Block before any thread starts: threads inherit the
// mask.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    fd_.reset(signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  bool valid() const { return fd_.valid(); }

  // Waits for a signal to end; true if there was one. SIGHUP is only logged.
  bool WaitForEnd(absl::Duration timeout) const {
    pollfd entry = {fd_.get(), POLLIN, 0};
    const int timeout_ms =
        timeout == absl::InfiniteDuration()
            ? -1
            : static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 60'000));
    if (poll(&entry, 1, timeout_ms) <= 0) return false;
    signalfd_siginfo info;
    if (read(fd_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return false;
    if (info.ssi_signo == SIGHUP) {
      spdlog::warn(
          "SIGHUP is ignored: the policy changes with `qrctl policy set`, everything else "
          "needs a restart");
      return false;
    }
    spdlog::info("signal {} from pid {}", strsignal(static_cast<int>(info.ssi_signo)),
                 info.ssi_pid);
    return true;
  }

 private:
  sigset_t set_;
  UniqueFd fd_;
};

absl::StatusOr<Config> LoadConfig(const CommandLine& line) {
  v1::Config proto;
  if (!line.config_file.empty()) {
    const absl::StatusOr<std::string> text = ReadFile(line.config_file, kTextFileBytesMax);
    if (!text.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("--config: ", std::string(text.status().message())));
    absl::StatusOr<v1::Config> parsed = ParseConfigText(*text, line.config_file);
    if (!parsed.ok()) return parsed.status();
    proto = *std::move(parsed);
  }
  proto.MergeFrom(line.overrides);
  absl::StatusOr<Config> config = ResolveConfig(proto);
  if (!config.ok() && !line.config_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(line.config_file, " and flags: ", std::string(config.status().message())));
  }
  return config;
}

// Pings the watchdog while the engine is alive; returns when a signal says so.
void ServeUntilSignal(const Signals& signals, const App& app) {
  const absl::Duration period = WatchdogPeriod();
  bool was_live = true;
  while (!signals.WaitForEnd(period)) {
    if (period == absl::InfiniteDuration()) continue;
    const std::string error = app.LiveError();
    if (error.empty()) NotifyWatchdog();
    if (!error.empty() && was_live) spdlog::error("no watchdog ping: {}", error);
    was_live = error.empty();
  }
}

int Serve(Config config) {
  const Signals signals;
  if (!signals.valid()) {
    spdlog::error("cannot create a signalfd: {}", strerror(errno));
    return kExitFailed;
  }
  const absl::Duration drain_limit = absl::Milliseconds(config.drain_timeout_ms) + kStopMargin;
  absl::StatusOr<Backends> backends = Backends::Make(config.gpu, config.collective_library);
  if (!backends.ok()) {
    spdlog::error("{}", std::string(backends.status().message()));
    return kExitFailed;
  }
  App app(std::move(config), *std::move(backends));
  if (absl::Status status = app.Start(); !status.ok()) {
    spdlog::error("qrd cannot start: {}", std::string(status.message()));
    NotifyStatus(absl::StrCat("Cannot start: ", std::string(status.message())));
    return kExitFailed;
  }
  NotifyReady(absl::StrCat("Serving; metrics: ",
                           app.metrics_address().empty() ? "off" : app.metrics_address()));
  ServeUntilSignal(signals, app);
  NotifyStopping(drain_limit);
  const bool done = app.Drain([&signals, &app] {
    if (app.LiveError().empty()) NotifyWatchdog();
    return signals.WaitForEnd(absl::ZeroDuration());
  });
  NotifyWatchdog();
  app.Stop();
  spdlog::info("qrd ends{}", done ? "" : "; some operations were failed");
  return kExitOk;
}

// A descriptor that is missing among the first three would be the next file that is opened, and get
// the log: opened before the constructors of libraries, since libgrpc's open one. Input and output
// the wrong way round, so that using them fails. The sanitizers are not set up yet.
__attribute__((no_sanitize("address", "thread", "undefined"))) void OpenMissingStreams(int, char**,
                                                                                       char**) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (syscall(SYS_fcntl, fd, F_GETFD) != -1) continue;
    const int flags = fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY;
    if (syscall(SYS_openat, AT_FDCWD, "/dev/null", flags) != fd) _exit(kExitFailed);
  }
}
__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeLibraries)(int, char**, char**) = &OpenMissingStreams;

// What was asked for, on standard output.
int Print(const std::string& text) {
  if (fputs(text.c_str(), stdout) >= 0 && fflush(stdout) == 0) return kExitOk;
  fprintf(stderr, "qrd: cannot write to standard output: %s\n", strerror(errno));
  return kExitFailed;
}

int Main(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  if (!line.ok()) {
    fprintf(stderr, "qrd: %s\n", std::string(line.status().message()).c_str());
    return kExitUsage;
  }
  if (line->action == CommandLine::Action::kHelp) {
    return Print(HelpText());
  }
  if (line->action == CommandLine::Action::kVersion) {
    return Print(absl::StrCat("qrd ", kVersion, " (", kCompiler, ", ", kBuildType, ")\n"));
  }
  absl::StatusOr<Config> config = LoadConfig(*line);
  if (config.ok()) {
    // The policy has bounds of its own.
    const auto policy = CompiledPolicy::Compile(config->initial_policy, *MakeHostBackend(), 1);
    if (!policy.ok()) {
      config = absl::InvalidArgumentError(
          absl::StrCat("initial_policy: ", std::string(policy.status().message())));
    }
  }
  if (!config.ok()) {
    fprintf(stderr, "qrd: %s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  if (line->action == CommandLine::Action::kPrintConfig) {
    return Print(PrintText(ConfigToProto(*config)));
  }
  if (line->action == CommandLine::Action::kCheckConfig) {
    return Print("qrd: the configuration is good\n");
  }
  InitLogging(config->log_level);
  return Serve(*std::move(config));
}

}  // namespace
}  // namespace qrd

int main(int argc, char** argv) { return qrd::Main({argv + std::min(argc, 1), argv + argc}); }
