// SPDX-License-Identifier: Apache-2.0
// Where log lines go: always stderr. Under systemd (stderr is the journal) each line begins with
// its syslog priority "<6>" and has no time of its own. Everybody logs with spdlog::info() and so
// on; untrusted text goes through Quoted() of names.h. Thread safety: InitLogging() before threads
// start; logging from any thread.
#pragma once

#include <string>

namespace qrd {

// `level`: trace, debug, info, warning or error (Config.log_level).
void InitLogging(const std::string& level);

// True if stderr is the stream that $JOURNAL_STREAM (DEVICE:INODE) names.
bool StderrIsJournal();

}  // namespace qrd
