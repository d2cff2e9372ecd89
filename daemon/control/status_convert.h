// SPDX-License-Identifier: Apache-2.0
// absl::Status -> grpc::Status. The only place; the codes have the same numbers.
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace qrd {

// gRPC sends the message as a header and refuses headers above 8 KiB; longer texts are cut.
inline constexpr size_t kStatusMessageBytesMax = 2048;

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace qrd
