// SPDX-License-Identifier: Apache-2.0
// The text of a thread's last failure. Every failing function of the client ends in Fail(), which
// keeps the text and returns the status, so that an error reads: return Fail(QRD_X, "argument: %u,
// ...", v).
//
// Thread safety: the text is per thread. Ownership: a fixed buffer per thread; nothing is
// allocated, so a failed allocation can be reported too.
#pragma once

#include <cstddef>

#include "qrd/qrd.h"

namespace qrd::client {

// Keeps the text (cut to what fits) as this thread's last error and returns `status`.
qrd_status Fail(qrd_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// "" before the first failure.
const char* LastError();

inline constexpr size_t kErrorBytes = 768;  // longer texts are cut

// Keeps this thread's last error over a clean-up that may fail too. Allocates nothing.
class SavedError {
 public:
  SavedError();
  // Makes the kept text the last error again and returns `status`.
  qrd_status Restore(qrd_status status) const { return Fail(status, "%s", text_); }

 private:
  char text_[kErrorBytes];
};

// "MISMATCH" and so on; "UNKNOWN" for other numbers.
const char* StatusName(qrd_status status);

}  // namespace qrd::client
