// SPDX-License-Identifier: Apache-2.0
// Standard input, output and error of both tools: what was printed is out when the program ends. A
// missing one is opened before the program starts, so that no file or socket gets its number; to
// read from it or to print to it fails as if it were still missing.
//
// Thread safety: main thread only.
#pragma once

#include <cstdio>

#include "absl/strings/string_view.h"

namespace qrd::tools {

// Prints to standard output. A failure is reported by FinishOutput.
void Print(absl::string_view text);
// The same at once, to any file.
void PrintNow(std::FILE* out, absl::string_view text);

// True if nobody will get what is printed from now on: printing has failed, or a pipe's reader is
// gone. For long runs, which end then.
bool OutputIsLost();

// Last thing: flushes standard output. If anything of it was lost, says why and returns an exit
// code that is not 0; else `code`.
int FinishOutput(absl::string_view tool, int code);

}  // namespace qrd::tools
