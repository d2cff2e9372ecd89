// SPDX-License-Identifier: Apache-2.0
// Runs a program to its end, with what it printed.
//
// Thread safety: pure functions. Nothing that is started outlives the call (SIGKILL after the
// timeout).
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace qrd::testing {

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal or by the timeout
  int signal = 0;
  bool timed_out = false;
  std::string out, err;
};

struct ProgramOptions {
  std::string input;                     // standard input
  std::vector<std::string> environment;  // NAME=VALUE, added; NAME alone is taken away
  std::chrono::milliseconds timeout = std::chrono::seconds(100);
  // Called with the process id whenever there is new output (and at least every 20 ms).
  std::function<void(int pid, const ProgramResult& so_far)> watch;
};

ProgramResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                         const ProgramOptions& options = {});

// The programs of this build.
std::string Qrctl();
std::string Qrbench();

}  // namespace qrd::testing
