// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/status_convert.h"

#include <string>

namespace qrd {

static_assert(static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT) ==
              static_cast<int>(absl::StatusCode::kInvalidArgument));
static_assert(static_cast<int>(grpc::StatusCode::UNAUTHENTICATED) ==
              static_cast<int>(absl::StatusCode::kUnauthenticated));

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(status.message());
  if (message.size() > kStatusMessageBytesMax) {
    message.resize(kStatusMessageBytesMax - 3);
    message += "...";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

}  // namespace qrd
