// SPDX-License-Identifier: Apache-2.0
// absl::Status -> the status numbers that clients see (proto/shm/layout.h). The only conversion.
#pragma once

#include "absl/status/status.h"
#include "proto/shm/layout.h"

namespace qrd {

inline shm::Status ToShmStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return shm::Status::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return shm::Status::kInvalidArgument;
    case absl::StatusCode::kFailedPrecondition:
      return shm::Status::kFailedPrecondition;
    case absl::StatusCode::kResourceExhausted:
      return shm::Status::kResourceExhausted;
    case absl::StatusCode::kUnavailable:
      return shm::Status::kUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return shm::Status::kTimeout;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return shm::Status::kAborted;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return shm::Status::kPermissionDenied;
    case absl::StatusCode::kNotFound:
      return shm::Status::kNotFound;
    case absl::StatusCode::kAlreadyExists:
      return shm::Status::kAlreadyExists;
    case absl::StatusCode::kUnimplemented:
      return shm::Status::kUnimplemented;
    default:
      return shm::Status::kInternal;
  }
}

}  // namespace qrd
