// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/private_daemon.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/tools/common/policy_text.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/interrupt.h"
#include "qrd/v1/config.pb.h"

namespace qrd::tools {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

absl::StatusOr<std::string> FindProgram(const std::string& program) {
  if (!program.empty()) {
    if (access(program.c_str(), X_OK) == 0) return program;
    return absl::NotFoundError(absl::StrCat("--daemon ", program, ": ", std::strerror(errno)));
  }
  std::vector<std::string> candidates;
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  candidates.push_back((self / "qrd").string());
  candidates.push_back((self / "../../daemon/qrd").lexically_normal().string());
  if (const char* path = getenv("PATH"); path != nullptr) {
    for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      candidates.push_back(absl::StrCat(directory, "/qrd"));
    }
  }
  for (const std::string& candidate : candidates) {
    if (fs::is_regular_file(candidate, ignored) && access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return absl::NotFoundError(absl::StrCat("no program qrd beside this one (", candidates[0],
                                          ") or in $PATH; name it with --daemon PATH"));
}

// In the forked child; only functions that are safe there.
[[noreturn]] void BecomeDaemon(pid_t parent, const char* log, char** argv, int failure_fd) {
  // Its own process group: Ctrl-C is for the benchmark, which then stops the daemon in order.
  setpgid(0, 0);
  // A benchmark that is killed takes its daemon along, also if that was before this line.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_RDWR);
  const int log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (getppid() == parent && null >= 0 && log_fd >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
      dup2(null, STDOUT_FILENO) >= 0 && dup2(log_fd, STDERR_FILENO) >= 0) {
    if (null > STDERR_FILENO) close(null);
    if (log_fd > STDERR_FILENO) close(log_fd);
    execv(argv[0], argv);
  }
  const int error = errno;
  if (write(failure_fd, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

std::string HowItEnded(int status) {
  return WIFSIGNALED(status) ? absl::StrCat("by signal ", WTERMSIG(status))
                             : absl::StrCat("with exit status ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(const std::string& program) {
  absl::StatusOr<std::string> found = FindProgram(program);
  if (!found.ok()) return found.status();
  const char* parent = getenv("TMPDIR");
  std::string directory =
      absl::StrCat(parent != nullptr && *parent != '\0' ? parent : "/tmp", "/qrbench-XXXXXX");
  if (mkdtemp(directory.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat(directory, ": ", std::strerror(errno)));
  }
  std::unique_ptr<PrivateDaemon> daemon(new PrivateDaemon(directory));
  if (absl::Status status = daemon->Spawn(*found); !status.ok()) return status;
  if (absl::Status status = daemon->WaitUntilReady(); !status.ok()) return status;
  return daemon;
}

absl::Status PrivateDaemon::Spawn(const std::string& program) {
  v1::Config config;
  config.set_runtime_directory(directory_);
  config.set_state_directory(absl::StrCat(directory_, "/state"));
  config.set_metrics_address("");
  config.set_log_level("info");
  const std::string file = absl::StrCat(directory_, "/qrd.textproto");
  if (absl::Status status = WriteFile(file, MessageToText(config)); !status.ok()) return status;
  const std::string log = absl::StrCat(directory_, "/log");
  std::string config_flag = "--config";
  char* argv[] = {const_cast<char*>(program.c_str()), config_flag.data(),
                  const_cast<char*>(file.c_str()), nullptr};
  int failure[2];  // the child's errno if it cannot become the daemon; closed by exec
  if (pipe2(failure, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  const pid_t self = getpid();
  pid_ = fork();
  if (pid_ == 0) BecomeDaemon(self, log.c_str(), argv, failure[1]);
  const int fork_error = errno;
  close(failure[1]);
  int error = 0;
  if (pid_ < 0) {
    error = fork_error;
  } else if (read(failure[0], &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  close(failure[0]);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot start ", program, ": ", std::strerror(error)));
}

absl::Status PrivateDaemon::WaitUntilReady() {
  const auto deadline = Clock::now() + std::chrono::seconds(15);
  while (Clock::now() < deadline && !Interrupted()) {
    const absl::StatusOr<int> fd = ConnectControlSocket(directory_);
    if (fd.ok()) {
      close(*fd);
      return absl::OkStatus();
    }
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return absl::UnavailableError(
          absl::StrCat("the private daemon ended at once, ", HowItEnded(status), LogTail()));
    }
    usleep(2'000);
  }
  if (Interrupted()) return absl::CancelledError("interrupted");
  return absl::UnavailableError(
      absl::StrCat("the private daemon was not ready within 15 s", LogTail()));
}

std::string PrivateDaemon::LogTail() const {
  const absl::StatusOr<std::string> log = ReadFile(absl::StrCat(directory_, "/log"));
  if (!log.ok() || log->empty()) return "";
  constexpr size_t kTailBytes = 1500;
  return absl::StrCat("; the end of its log:\n",
                      log->size() > kTailBytes ? log->substr(log->size() - kTailBytes) : *log);
}

PrivateDaemon::~PrivateDaemon() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    const auto deadline = Clock::now() + std::chrono::seconds(15);
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (Clock::now() > deadline) kill(pid_, SIGKILL);
      usleep(2'000);
    }
  }
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

}  // namespace qrd::tools
