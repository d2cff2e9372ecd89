// SPDX-License-Identifier: Apache-2.0
#include "daemon/session/shared_copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace qrd {

void CopyOut(const shm::Descriptor* from, shm::Descriptor* to) {
  static_assert(sizeof(shm::Descriptor) % sizeof(uint64_t) == 0);
  uint64_t words[sizeof(shm::Descriptor) / sizeof(uint64_t)];
  auto* source = reinterpret_cast<uint64_t*>(const_cast<shm::Descriptor*>(from));
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
  }
  std::memcpy(to, words, sizeof(words));
}

void CopyIn(const shm::Completion& from, size_t bytes, shm::Completion* to) {
  constexpr size_t kFirst = offsetof(shm::Completion, status);
  static_assert(kFirst == 4 && sizeof(shm::Completion) % 8 == 0);
  const auto* source = reinterpret_cast<const std::byte*>(&from);
  auto* target = reinterpret_cast<std::byte*>(to);
  uint32_t first;
  std::memcpy(&first, source + kFirst, sizeof(first));
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(target + kFirst))
      .store(first, std::memory_order_relaxed);
  for (size_t at = 8; at < bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, source + at, sizeof(word));
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(target + at))
        .store(word, std::memory_order_relaxed);
  }
}

size_t CompletionBytes(const shm::Completion& completion) {
  const size_t text = strnlen(completion.message, shm::kMessageBytes - 1);
  // The text's first words carry the NUL of an empty one.
  return offsetof(shm::Completion, message) + (text + 1 + 7) / 8 * 8;
}

}  // namespace qrd
