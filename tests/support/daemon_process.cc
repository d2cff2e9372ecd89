// SPDX-License-Identifier: Apache-2.0
#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;

int RemainingMs(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

sockaddr_un Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

int BindNotifySocket(const std::string& path) {
  unlink(path.c_str());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_un address = Address(path);
  if (fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool Accepts(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const sockaddr_un address = Address(path);
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

}  // namespace

std::string DaemonProcess::Executable() {
  const char* override_path = std::getenv("QRD_DAEMON_EXECUTABLE");
  return override_path != nullptr ? override_path : QRD_DAEMON_EXECUTABLE;
}

std::string DaemonProcess::Log() const {
  std::ifstream file(directory_ / "daemon.log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string DaemonProcess::Fork(const std::vector<std::string>& arguments,
                                const std::string& notify_path) {
  const std::string log_path = directory_ / "daemon.log";
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return "cannot open " + log_path;
  // Everything that allocates happens before fork.
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> environment = {"NOTIFY_SOCKET=" + notify_path};
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    // What a service manager of the test run itself may have set must not reach the daemon.
    if (entry.starts_with("NOTIFY_SOCKET=") || entry.starts_with("RUNTIME_DIRECTORY=") ||
        entry.starts_with("STATE_DIRECTORY=") || entry.starts_with("WATCHDOG_")) {
      continue;
    }
    environment.push_back(entry);
  }
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);  // the parent died before prctl
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(log);
  if (child < 0) return std::string("fork: ") + strerror(errno);
  pid_ = child;
  return "";
}

std::string DaemonProcess::WaitUntilReady(int notify_fd, Clock::time_point deadline) {
  // A daemon that listens but has not said READY for this long does not speak sd_notify.
  constexpr auto kSilence = std::chrono::seconds(2);
  Clock::time_point listening_since = Clock::time_point::max();
  while (Clock::now() < deadline) {
    if (!IsRunning()) {
      return "the daemon ended before it was ready, " +
             (WIFSIGNALED(last_status_) ? "signal " + std::to_string(WTERMSIG(last_status_))
                                        : "exit code " + std::to_string(WEXITSTATUS(last_status_)));
    }
    pollfd entry{notify_fd, POLLIN, 0};
    poll(&entry, 1, std::min(RemainingMs(deadline), 20));
    char text[1024];
    const ssize_t bytes = recv(notify_fd, text, sizeof(text), MSG_DONTWAIT);
    if (bytes > 0 &&
        std::string(text, static_cast<size_t>(bytes)).find("READY=1") != std::string::npos) {
      return "";
    }
    if (listening_since == Clock::time_point::max() && Accepts(attach_socket())) {
      listening_since = Clock::now();
    }
    if (listening_since != Clock::time_point::max() && Clock::now() - listening_since > kSilence) {
      return "";
    }
  }
  return "the daemon was not ready in time";
}

std::string DaemonProcess::Start(const std::vector<std::string>& flags,
                                 std::chrono::milliseconds timeout) {
  if (pid_ > 0 && IsRunning()) return "the daemon runs already";
  const Clock::time_point deadline = Clock::now() + timeout;
  mkdir(runtime_directory().c_str(), 0750);
  mkdir(state_directory().c_str(), 0750);
  const std::string notify_path = directory_ / "notify";
  const int notify_fd = BindNotifySocket(notify_path);
  if (notify_fd < 0) return "cannot bind " + notify_path;
  std::vector<std::string> arguments = {
      Executable(),      "--runtime-directory", runtime_directory(), "--state-directory",
      state_directory(), "--metrics-address",   "127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::string error = Fork(arguments, notify_path);
  if (error.empty()) error = WaitUntilReady(notify_fd, deadline);
  close(notify_fd);
  if (error.empty()) return "";
  Kill();
  return error + "; " + Executable() + " wrote:\n" + Log();
}

void DaemonProcess::Signal(int signal) const {
  if (pid_ <= 0 || kill(pid_, signal) != 0 || signal != SIGSTOP) return;
  // It stops a moment later, and may take an operation in between.
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

bool DaemonProcess::IsRunning() {
  if (pid_ <= 0) return false;
  if (waitpid(pid_, &last_status_, WNOHANG) != pid_) return true;
  pid_ = -1;
  return false;
}

int DaemonProcess::WaitForExit(std::chrono::milliseconds timeout) {
  if (pid_ <= 0) return -1;
  const Clock::time_point deadline = Clock::now() + timeout;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno == ECHILD)) break;
    if (Clock::now() >= deadline) {
      if (pidfd >= 0) close(pidfd);
      Kill();
      return -1;
    }
    pollfd entry{pidfd, POLLIN, 0};
    poll(&entry, 1, std::min(RemainingMs(deadline), pidfd >= 0 ? 1000 : 5));
  }
  if (pidfd >= 0) close(pidfd);
  pid_ = -1;
  return status;
}

int DaemonProcess::Terminate(std::chrono::milliseconds timeout) {
  Signal(SIGTERM);
  return WaitForExit(timeout);
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace qrd::testing
