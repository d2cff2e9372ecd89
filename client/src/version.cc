// SPDX-License-Identifier: Apache-2.0
#include "client/src/version.h"

#include "qrd/qrd.h"

#define QRD_TEXT_OF(x) #x
#define QRD_TEXT(x) QRD_TEXT_OF(x)

namespace qrd::client {

const char* Version() {
  return QRD_TEXT(QRD_VERSION_MAJOR) "." QRD_TEXT(QRD_VERSION_MINOR) "." QRD_TEXT(
      QRD_VERSION_PATCH);
}

}  // namespace qrd::client
