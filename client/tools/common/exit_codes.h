// SPDX-License-Identifier: Apache-2.0
// Exit codes of qrctl and qrbench, and the paragraph of --help that documents them.
#pragma once

namespace qrd::tools {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // refused by the daemon, a wrong result, a file that cannot be used
  kExitUsage = 2,        // wrong arguments; nothing was done
  kExitUnreachable = 3,  // no daemon answers
  kExitInterrupted = 130,
};

inline constexpr char kExitCodeHelp[] =
    "Exit codes: 0 done, 1 refused or failed, 2 wrong arguments, 3 no daemon answers, 130 "
    "interrupted.";

}  // namespace qrd::tools
