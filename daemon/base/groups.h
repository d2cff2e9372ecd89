// SPDX-License-Identifier: Apache-2.0
// Unix groups by name.
// Thread safety: any thread. May block on the name service.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace qrd {

// NOT_FOUND if there is no such group. A name of digits only is taken as a number.
absl::StatusOr<gid_t> FindGroup(const std::string& name);

}  // namespace qrd
