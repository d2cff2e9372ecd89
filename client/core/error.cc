// SPDX-License-Identifier: Apache-2.0
#include "client/core/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace qrd::client {
namespace {

thread_local char last_error[kErrorBytes];

}  // namespace

qrd_status Fail(qrd_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

const char* LastError() { return last_error; }

SavedError::SavedError() { std::memcpy(text_, last_error, sizeof(text_)); }

const char* StatusName(qrd_status status) {
  switch (status) {
    case QRD_OK:
      return "OK";
    case QRD_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case QRD_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case QRD_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case QRD_UNAVAILABLE:
      return "UNAVAILABLE";
    case QRD_TIMEOUT:
      return "TIMEOUT";
    case QRD_MISMATCH:
      return "MISMATCH";
    case QRD_PEER_LOST:
      return "PEER_LOST";
    case QRD_DAEMON_LOST:
      return "DAEMON_LOST";
    case QRD_ABORTED:
      return "ABORTED";
    case QRD_PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case QRD_NOT_FOUND:
      return "NOT_FOUND";
    case QRD_ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case QRD_UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case QRD_INTERNAL:
      return "INTERNAL";
    case QRD_IN_PROGRESS:
      return "IN_PROGRESS";
  }
  return "UNKNOWN";
}

}  // namespace qrd::client
