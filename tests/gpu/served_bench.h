// SPDX-License-Identifier: Apache-2.0
// The parts of gpu_served_bench.
#pragma once

#include <cstdint>

namespace qrd::testing {

// Prints a table; 0, 1 if something failed, 77 without a GPU. `library`: the separate all-reduce is
// the vendor's library's.
int BenchServedEpilogue(uint32_t ranks, bool library);

}  // namespace qrd::testing
