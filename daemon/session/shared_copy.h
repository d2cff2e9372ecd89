// SPDX-License-Identifier: Apache-2.0
// Copies between the daemon and memory that the other side may write at any time: word by word,
// relaxed, each word once.
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "proto/shm/layout.h"

namespace qrd {

void CopyOut(const shm::Descriptor* from, shm::Descriptor* to);
// The first `bytes` of a completion (a multiple of 8) but its state.
void CopyIn(const shm::Completion& from, size_t bytes, shm::Completion* to);
// How many bytes of it matter: up to the end of its text.
size_t CompletionBytes(const shm::Completion& completion);

}  // namespace qrd
