// SPDX-License-Identifier: Apache-2.0
// `qrbench golden DIR`: every case of a folder of golden vectors, in process or through a daemon.
//
// Thread safety: main thread, before anything else has started threads.
#pragma once

#include <string>

#include "client/tools/common/channel.h"

namespace qrd::tools {

struct GoldenSettings {
  std::string directory;
  std::string backend = "host";
  bool in_process = false;  // what happens without `served` anyway
  bool served = false;      // all-reduces run through a daemon by real rank processes
  bool verbose = false;     // all failures, not only the first ones
  bool start_daemon = false;
  std::string daemon_program;
  ConnectionFlags connection;
};

// An exit code. The last line on stdout is "N passed, N failed".
int RunGolden(const GoldenSettings& settings);

}  // namespace qrd::tools
