// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/systemd.h"

#include <systemd/sd-daemon.h>

#include "absl/strings/str_cat.h"

namespace qrd {

void NotifyReady(const std::string& status) {
  sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str());
}

void NotifyStatus(const std::string& status) {
  sd_notify(0, absl::StrCat("STATUS=", status).c_str());
}

void NotifyStopping(absl::Duration limit) {
  sd_notify(0, absl::StrCat("STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC=",
                            absl::ToInt64Microseconds(limit))
                   .c_str());
}

void NotifyWatchdog() { sd_notify(0, "WATCHDOG=1"); }

absl::Duration WatchdogPeriod() {
  uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) <= 0) return absl::InfiniteDuration();
  return absl::Microseconds(static_cast<int64_t>(watchdog_us / 2));
}

}  // namespace qrd
