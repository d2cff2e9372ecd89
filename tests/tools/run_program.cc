// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace qrd::testing {
namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) abort();
  }
  int ends[2];
};

[[noreturn]] void Exec(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) unsetenv(entry.c_str());
    if (equals != std::string::npos) {
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  _exit(127);
}

// Appends what is there; false at the end of the file.
bool Drain(int fd, std::string& to) {
  char buffer[4096];
  const ssize_t got = read(fd, buffer, sizeof(buffer));
  if (got > 0) to.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

}  // namespace

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const ProgramOptions& options) {
  ProgramResult result;
  Pipe in, out, err;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in.ends[0], 0);
    dup2(out.ends[1], 1);
    dup2(err.ends[1], 2);
    Exec(program, arguments, options.environment);
  }
  close(in.ends[0]);
  close(out.ends[1]);
  close(err.ends[1]);
  // Inputs of tests fit into a pipe.
  if (!options.input.empty() && write(in.ends[1], options.input.data(), options.input.size()) < 0) {
    result.err = "(its input could not be written)";
  }
  close(in.ends[1]);
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  pollfd files[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      result.timed_out = true;
      kill(pid, SIGKILL);
    }
    poll(files, 2, 20);
    if (files[0].revents != 0 && !Drain(files[0].fd, result.out)) files[0].fd = -1;
    if (files[1].revents != 0 && !Drain(files[1].fd, result.err)) files[1].fd = -1;
    if (options.watch) options.watch(pid, result);
  }
  close(out.ends[0]);
  close(err.ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string Qrctl() { return QRD_QRCTL; }
std::string Qrbench() { return QRD_QRBENCH; }

}  // namespace qrd::testing
