// SPDX-License-Identifier: Apache-2.0
#include "daemon/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "daemon/base/version.h"
#include "prometheus/text_serializer.h"

namespace qrd {
namespace {

using ::testing::HasSubstr;

std::string Text(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.Collect());
}

OperationRecord Success() {
  OperationRecord record;
  record.planned = true;
  record.codec = Codec::kInt4;
  record.algorithm = Algorithm::kTwoShot;
  record.payload_bytes = 4096;
  record.wire_bytes = 2304;
  record.first_post_ns = 1'000'000;
  record.ready_ns = 1'004'000;  // 4 us
  record.start_ns = 1'104'000;  // 100 us
  record.end_ns = 3'104'000;    // 2 ms
  record.nonfinite_count = 3;
  return record;
}

TEST(Metrics, CountsASuccessfulOperation) {
  Metrics metrics({});
  metrics.RecordOperation(Success());
  metrics.RecordOperation(Success());
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("qrd_operations_total{algorithm=\"two_shot\",codec=\"int4\","
                              "result=\"ok\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("qrd_payload_bytes_total{codec=\"int4\"} 8192\n"));
  EXPECT_THAT(text, HasSubstr("qrd_wire_bytes_total{codec=\"int4\"} 4608\n"));
  EXPECT_THAT(text, HasSubstr("qrd_nonfinite_elements_total 6\n"));
  EXPECT_THAT(text, HasSubstr("{stage=\"waiting_for_ranks\",le=\"5e-06\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{stage=\"queued\",le=\"5e-05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("{stage=\"queued\",le=\"0.00025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{stage=\"executing\",le=\"0.001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("{stage=\"executing\",le=\"0.0025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("qrd_operation_duration_seconds_count{stage=\"executing\"} 2\n"));
  EXPECT_EQ(metrics.operations_total(), 2u);
  EXPECT_EQ(metrics.operations_failed_total(), 0u);
}

TEST(Metrics, CountsAFailureButNotItsBytes) {
  Metrics metrics({});
  OperationRecord record = Success();
  record.status = shm::Status::kPeerLost;
  metrics.RecordOperation(record);
  record.planned = false;
  record.status = shm::Status::kTimeout;
  metrics.RecordOperation(record);
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("qrd_operations_total{algorithm=\"two_shot\",codec=\"int4\","
                              "result=\"peer_lost\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("qrd_operations_total{algorithm=\"unplanned\",codec=\"unplanned\","
                              "result=\"timeout\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("qrd_payload_bytes_total{codec=\"int4\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("qrd_operation_duration_seconds_count{stage=\"executing\"} 0\n"));
  EXPECT_EQ(metrics.operations_failed_total(), 2u);
}

TEST(Metrics, CountsEventsOfEachKind) {
  Metrics metrics({});
  metrics.RecordRingFull(5);
  metrics.RecordAttach(shm::Status::kOk);
  metrics.RecordAttach(shm::Status::kTimeout);
  metrics.RecordSessionEnd("lost");
  metrics.RecordSessionEnd("never heard of");
  metrics.RecordInvalidSubmission();
  metrics.RecordPermissionDenied();
  metrics.RecordPolicySet(true);
  metrics.RecordPolicySet(false);
  const std::string text = Text(metrics);
  for (const char* line :
       {"qrd_ring_full_total 5\n", "qrd_attaches_total{result=\"ok\"} 1\n",
        "qrd_attaches_total{result=\"timeout\"} 1\n",
        "qrd_sessions_ended_total{reason=\"lost\"} 1\n",
        "qrd_sessions_ended_total{reason=\"other\"} 1\n", "qrd_invalid_submissions_total 1\n",
        "qrd_permission_denied_total 1\n", "qrd_policy_sets_total{result=\"accepted\"} 1\n",
        "qrd_policy_sets_total{result=\"refused\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, ReadsGaugesAtScrapeTime) {
  uint64_t value = 0;
  GaugeSources sources;
  sources.sessions = [&value] { return value; };
  sources.communicators = [] { return 2; };
  sources.arena_bytes = [] { return uint64_t{1} << 40; };
  sources.policy_generation = [] { return 17; };
  Metrics metrics(std::move(sources));
  EXPECT_THAT(Text(metrics), HasSubstr("qrd_sessions 0\n"));
  value = 4;
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("qrd_sessions 4\n"));
  EXPECT_THAT(text, HasSubstr("qrd_communicators 2\n"));
  EXPECT_THAT(text, HasSubstr("qrd_arena_bytes 1099511627776\n"));
  EXPECT_THAT(text, HasSubstr("qrd_policy_generation 17\n"));
  EXPECT_THAT(text, HasSubstr(std::string("version=\"") + kVersion + "\"} 1\n"));
}

// Whatever is recorded, the label sets stay those of the start.
TEST(Metrics, HaveABoundedNumberOfSeries) {
  Metrics metrics({});
  const std::string before = Text(metrics);
  for (uint32_t status = 0; status < 40; ++status) {
    for (int codec = 0; codec < 300; codec += 7) {
      OperationRecord record = Success();
      record.status = static_cast<shm::Status>(status);
      record.codec = static_cast<Codec>(codec);
      record.planned = codec % 2 == 0;
      metrics.RecordOperation(record);
      metrics.RecordAttach(record.status);
    }
    metrics.RecordSessionEnd(std::to_string(status));
  }
  const std::string after = Text(metrics);
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'),
            std::count(after.begin(), after.end(), '\n'));
  EXPECT_LT(std::count(after.begin(), after.end(), '\n'), 800);
}

TEST(Metrics, CountExactlyFromManyThreads) {
  Metrics metrics({});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics] {
      for (int i = 0; i < 1000; ++i) metrics.RecordOperation(Success());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.operations_total(), 4000u);
  EXPECT_THAT(Text(metrics), HasSubstr("qrd_wire_bytes_total{codec=\"int4\"} 9216000\n"));
}

}  // namespace
}  // namespace qrd
