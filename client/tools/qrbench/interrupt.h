// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM as a flag, so that a run can put the policy back before it ends. SIGPIPE is
// ignored for the same reason: `qrbench ... | head` must not leave a rule behind.
//
// Thread safety: Interrupted() may be called anywhere; install from the main thread.
#pragma once

namespace qrd::tools {

void InstallInterruptHandlers();
// For forked ranks: SIGINT is the parent's business, SIGTERM ends the process.
void InstallRankSignals();
bool Interrupted();

}  // namespace qrd::tools
