// SPDX-License-Identifier: Apache-2.0
#include "client/src/completion.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace qrd::client {

Result ReadResult(const shm::Completion& completion, uint64_t sequence) {
  Result result;
  const uint32_t status = static_cast<uint32_t>(completion.status);
  if (completion.sequence != sequence) {
    std::snprintf(result.message, sizeof(result.message),
                  "the daemon completed operation %" PRIu64 " in the place of this one",
                  completion.sequence);
  } else if (status >= QRD_IN_PROGRESS) {
    std::snprintf(result.message, sizeof(result.message),
                  "the daemon's completion has status %u, want 0 to %d", status, QRD_INTERNAL);
  } else {
    result.status = static_cast<qrd_status>(status);
    std::memcpy(result.message, completion.message, sizeof(result.message));
    result.message[sizeof(result.message) - 1] = '\0';
  }
  return result;
}

void CopyStats(const shm::Completion& completion, qrd_op_stats* stats) {
  stats->codec =
      completion.codec <= QRD_CODEC_LP2 ? static_cast<qrd_codec>(completion.codec) : QRD_CODEC_NONE;
  const bool known =
      completion.algorithm >= QRD_ONE_SHOT && completion.algorithm <= QRD_ALGORITHM_LIBRARY;
  stats->algorithm = known ? static_cast<qrd_algorithm>(completion.algorithm) : QRD_TWO_SHOT;
  stats->wire_bytes = completion.wire_bytes;
  stats->policy_generation = completion.policy_generation;
  stats->first_post_ns = completion.first_post_ns;
  stats->ready_ns = completion.ready_ns;
  stats->start_ns = completion.start_ns;
  stats->end_ns = completion.end_ns;
  stats->nonfinite_count = completion.nonfinite_count;
  stats->rank_mask = completion.rank_mask;
}

std::string ResultText(const Result& result, uint64_t sequence) {
  // Most texts of the daemon name the operation themselves.
  if (std::strncmp(result.message, "operation ", 10) == 0) return result.message;
  return "operation " + std::to_string(sequence) + ": " +
         (result.message[0] != '\0' ? result.message : "failed");
}

}  // namespace qrd::client
