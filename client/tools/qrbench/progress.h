// SPDX-License-Identifier: Apache-2.0
// One line of progress on stderr that overwrites itself; nothing where stderr is no terminal.
//
// Thread safety: one thread.
#pragma once

#include <string>

namespace qrd::tools {

void Progress(const std::string& text);
void ClearProgress();

}  // namespace qrd::tools
