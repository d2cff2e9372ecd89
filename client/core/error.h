// SPDX-License-Identifier: Apache-2.0
// The text of a thread's last failure. Every failing function of the client ends in Fail(), which keeps
// the text and returns the status, so that an error reads: return Fail(QRD_X, "argument: %u, ...", v).
//
// Thread safety: the text is per thread. Ownership: a fixed buffer per thread; nothing is allocated, so
// a failed allocation can be reported too.
#pragma once

#include "qrd/qrd.h"

namespace qrd::client {

// Keeps the text (cut to what fits) as this thread's last error and returns `status`.
qrd_status Fail(qrd_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// "" before the first failure.
const char* LastError();

// "MISMATCH" and so on; "UNKNOWN" for other numbers.
const char* StatusName(qrd_status status);

}  // namespace qrd::client
