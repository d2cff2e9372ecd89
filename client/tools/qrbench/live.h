// SPDX-License-Identifier: Apache-2.0
// `qrbench live`: ranks that all-reduce one tensor again and again under whatever policy is in
// force, and a line for each change of the plan. Unlike `all_reduce` it measures no time: it shows
// that a policy change reaches running work at an operation boundary, and that all ranks agree
// throughout.
//
// Thread safety: main thread, before anything else has started threads (it forks).
#pragma once

#include "client/tools/common/args.h"

namespace qrd::tools {

void AddLiveCommand(CommandLine& line);

}  // namespace qrd::tools
