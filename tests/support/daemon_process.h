// SPDX-License-Identifier: Apache-2.0
// A real qrd daemon as a child process, on its own runtime and state directory, with metrics on a
// port of the kernel's choice.
//
//   DaemonProcess daemon;
//   ASSERT_EQ(daemon.Start(), "");                 // returns once it is ready
//   config.runtime_directory = daemon.runtime_directory().c_str();
//   daemon.Kill();                                 // SIGKILL
//   ASSERT_EQ(daemon.Start(), "");                 // again on the same directories
//
// Thread safety: none. Start from the main thread: the child is killed when the thread that started
// it ends, so that no test run leaves a daemon behind. Ownership: the destructor kills the daemon
// and removes the directories. A forked child (RankProcesses) must not run it; leave by _exit, as
// RankProcesses does.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"

namespace qrd::testing {

class DaemonProcess {
 public:
  DaemonProcess() = default;
  ~DaemonProcess() { Kill(); }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // The executable: $QRD_DAEMON_EXECUTABLE, else the one of this build.
  static std::string Executable();

  // Starts the daemon and waits until it has said READY=1 (or, should it not speak to
  // NOTIFY_SOCKET, until it listens at attach.sock). Returns "" or what went wrong with the
  // daemon's log. `flags` go behind --runtime-directory, --state-directory, --metrics-address
  // 127.0.0.1:0.
  std::string Start(const std::vector<std::string>& flags = {},
                    std::chrono::milliseconds timeout = std::chrono::seconds(30));

  // SIGTERM, then waits. Returns the wait status (see WIFEXITED), or -1 if it did not end in time
  // (it is killed then).
  int Terminate(std::chrono::milliseconds timeout = std::chrono::seconds(30));
  // SIGKILL and reaps. Does nothing if it does not run.
  void Kill();
  void Signal(int signal) const;
  // Waits for the end without a signal. As Terminate.
  int WaitForExit(std::chrono::milliseconds timeout);
  // False once it has ended (then reaped).
  bool IsRunning();

  pid_t pid() const { return pid_; }
  std::string runtime_directory() const { return directory_ / "run"; }
  std::string state_directory() const { return directory_ / "state"; }
  std::string attach_socket() const { return runtime_directory() + "/attach.sock"; }
  std::string control_socket() const { return runtime_directory() + "/control.sock"; }
  // A file name in the test's own directory, for configurations and the like.
  std::string File(const std::string& name) const { return directory_ / name; }
  // What all starts have written to stdout and stderr.
  std::string Log() const;

 private:
  std::string Fork(const std::vector<std::string>& arguments, const std::string& notify_path);
  std::string WaitUntilReady(int notify_fd, std::chrono::steady_clock::time_point deadline);

  TempDirectory directory_;
  pid_t pid_ = -1;
  int last_status_ = 0;  // of the last end that IsRunning saw
};

}  // namespace qrd::testing
