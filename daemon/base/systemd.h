// SPDX-License-Identifier: Apache-2.0
// What a Type=notify service tells its manager. Without one ($NOTIFY_SOCKET) every function does
// nothing. Thread safety: any thread.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace qrd {

void NotifyReady(const std::string& status);
void NotifyStatus(const std::string& status);
// At the begin of a drain; `limit`: how long it may take at most.
void NotifyStopping(absl::Duration limit);
void NotifyWatchdog();

// How often NotifyWatchdog() is due: half of WatchdogSec, or infinite if there is no watchdog.
absl::Duration WatchdogPeriod();

}  // namespace qrd
