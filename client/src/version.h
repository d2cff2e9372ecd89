// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace qrd::client {

// "0.1.0", from the macros of qrd.h. Static storage.
const char* Version();

}  // namespace qrd::client
