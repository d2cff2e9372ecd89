// SPDX-License-Identifier: Apache-2.0
#include "daemon/telemetry/metrics.h"

#include <array>
#include <atomic>
#include <map>
#include <utility>

#include "daemon/base/version.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace qrd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

// Label values of shm::Status, in its order. kInProgress is no result.
constexpr std::array<const char*, 15> kResults = {"ok",
                                                  "invalid_argument",
                                                  "failed_precondition",
                                                  "resource_exhausted",
                                                  "unavailable",
                                                  "timeout",
                                                  "mismatch",
                                                  "peer_lost",
                                                  "daemon_lost",
                                                  "aborted",
                                                  "permission_denied",
                                                  "not_found",
                                                  "already_exists",
                                                  "unimplemented",
                                                  "internal"};
constexpr size_t kOk = 0, kInternal = 14;
static_assert(static_cast<size_t>(shm::Status::kInternal) == kInternal);

constexpr std::array<const char*, 6> kReasons = {"closed",  "lost",    "protocol_error",
                                                 "drained", "deleted", "other"};
constexpr std::array<const char*, 3> kStages = {"waiting_for_ranks", "queued", "executing"};
constexpr std::array<Algorithm, 3> kAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot,
                                                  Algorithm::kLibrary};
// Codec and algorithm of an operation that failed before it had a plan.
constexpr char kUnplanned[] = "unplanned";

// 5 us (a decode-size operation) to 30 s (the default timeout).
const Histogram::BucketBoundaries& DurationBuckets() {
  static const Histogram::BucketBoundaries buckets = {
      5e-6,   1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
      2.5e-2, 5e-2, 0.1,    0.25, 0.5,  1,      2.5,  5,    10,     30};
  return buckets;
}

size_t ResultIndex(shm::Status status) {
  const auto index = static_cast<size_t>(status);
  return index < kResults.size() ? index : kInternal;
}

size_t AlgorithmIndex(Algorithm algorithm) {
  const size_t index = static_cast<size_t>(algorithm) - 1;
  return index < kAlgorithms.size() ? index : 1;
}
size_t CodecIndex(Codec codec) {
  const auto index = static_cast<size_t>(codec);
  return index < kCodecCount ? index : 0;
}

Family<Counter>& CounterFamily(Registry* registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry);
}

Gauge& SimpleGauge(Registry* registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add({});
}

uint64_t Read(const std::function<uint64_t()>& source) { return source ? source() : 0; }

double Seconds(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0.0;
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(GaugeSources gauge_sources);
  void AddOperations(Family<Counter>* family);

  const GaugeSources sources;
  const std::shared_ptr<Registry> registry = std::make_shared<Registry>();
  std::atomic<uint64_t> operations{0}, operations_failed{0};

  // [result][codec][algorithm]; [result] for those without a plan.
  Counter* planned[kResults.size()][kCodecCount][kAlgorithms.size()] = {};
  std::array<Counter*, kResults.size()> unplanned = {}, attaches = {}, rms_norm = {};
  std::array<Counter*, kCodecCount> payload_bytes = {}, wire_bytes = {};
  std::array<Histogram*, kStages.size()> durations = {};
  std::array<Counter*, kReasons.size()> session_ends = {};
  Counter *ring_full, *nonfinite, *invalid_submissions, *permission_denied;
  Counter *policy_accepted, *policy_refused;
  Gauge *sessions, *communicators, *arena_bytes, *policy_generation;
};

void Metrics::Impl::AddOperations(Family<Counter>* family) {
  for (size_t result = 0; result < kResults.size(); ++result) {
    unplanned[result] = &family->Add(
        {{"result", kResults[result]}, {"codec", kUnplanned}, {"algorithm", kUnplanned}});
    for (const Codec codec : kAllCodecs) {
      for (const Algorithm algorithm : kAlgorithms) {
        planned[result][CodecIndex(codec)][AlgorithmIndex(algorithm)] =
            &family->Add({{"result", kResults[result]},
                          {"codec", std::string(Name(codec))},
                          {"algorithm", std::string(Name(algorithm))}});
      }
    }
  }
}

Metrics::Impl::Impl(GaugeSources gauge_sources) : sources(std::move(gauge_sources)) {
  Registry* r = registry.get();
  AddOperations(&CounterFamily(
      r, "qrd_operations_total",
      "Operations that ended, by result, codec and algorithm (unplanned: failed before a plan)."));
  auto& payload = CounterFamily(r, "qrd_payload_bytes_total",
                                "Bytes of one rank's tensor, summed over successful operations.");
  auto& wire =
      CounterFamily(r, "qrd_wire_bytes_total",
                    "Bytes that all ranks of successful operations send over links (the host "
                    "backend: would send).");
  for (const Codec codec : kAllCodecs) {
    payload_bytes[CodecIndex(codec)] = &payload.Add({{"codec", std::string(Name(codec))}});
    wire_bytes[CodecIndex(codec)] = &wire.Add({{"codec", std::string(Name(codec))}});
  }
  auto& epilogue = CounterFamily(r, "qrd_epilogue_operations_total",
                                 "Planned operations with an epilogue, by epilogue and result.");
  for (size_t i = 0; i < kResults.size(); ++i) {
    rms_norm[i] = &epilogue.Add(
        {{"epilogue", std::string(Name(Epilogue::kRmsNorm))}, {"result", kResults[i]}});
  }
  auto& duration =
      prometheus::BuildHistogram()
          .Name("qrd_operation_duration_seconds")
          .Help(
              "Time of successful operations in each stage: from the first rank's post to "
              "the last's, to the first tile, to the last tile.")
          .Register(*r);
  for (size_t i = 0; i < kStages.size(); ++i) {
    durations[i] = &duration.Add({{"stage", kStages[i]}}, DurationBuckets());
  }
  auto& attach = CounterFamily(r, "qrd_attaches_total", "Attach requests answered, by result.");
  for (size_t i = 0; i < kResults.size(); ++i) attaches[i] = &attach.Add({{"result", kResults[i]}});
  auto& ended = CounterFamily(r, "qrd_sessions_ended_total", "Sessions that ended, by reason.");
  for (size_t i = 0; i < kReasons.size(); ++i) {
    session_ends[i] = &ended.Add({{"reason", kReasons[i]}});
  }
  ring_full = &CounterFamily(r, "qrd_ring_full_total",
                             "Posts that clients refused because all slots were in use.")
                   .Add({});
  nonfinite =
      &CounterFamily(r, "qrd_nonfinite_elements_total", "Elements of results that are NaN or Inf.")
           .Add({});
  invalid_submissions = &CounterFamily(r, "qrd_invalid_submissions_total",
                                       "Submissions whose descriptor or ring was refused.")
                             .Add({});
  permission_denied = &CounterFamily(r, "qrd_permission_denied_total",
                                     "Calls refused because the caller lacks admin rights.")
                           .Add({});
  auto& sets = CounterFamily(r, "qrd_policy_sets_total", "SetPolicy calls, by result.");
  policy_accepted = &sets.Add({{"result", "accepted"}});
  policy_refused = &sets.Add({{"result", "refused"}});
  sessions = &SimpleGauge(r, "qrd_sessions", "Attached sessions.");
  communicators = &SimpleGauge(r, "qrd_communicators", "Communicators.");
  arena_bytes = &SimpleGauge(r, "qrd_arena_bytes", "Bytes of all sessions' arenas.");
  policy_generation =
      &SimpleGauge(r, "qrd_policy_generation", "Generation of the policy in force.");
  prometheus::BuildGauge()
      .Name("qrd_build_info")
      .Help("1; the labels say what was built.")
      .Register(*r)
      .Add({{"version", kVersion}, {"compiler", kCompiler}, {"build_type", kBuildType}})
      .Set(1);
}

Metrics::Metrics(GaugeSources sources) : impl_(std::make_unique<Impl>(std::move(sources))) {}
Metrics::~Metrics() = default;

void Metrics::RecordOperation(const OperationRecord& record) {
  const size_t result = ResultIndex(record.status);
  const size_t codec = CodecIndex(record.codec);
  Counter* counter = record.planned
                         ? impl_->planned[result][codec][AlgorithmIndex(record.algorithm)]
                         : impl_->unplanned[result];
  counter->Increment();
  if (record.planned && record.epilogue == Epilogue::kRmsNorm) {
    impl_->rms_norm[result]->Increment();
  }
  impl_->operations.fetch_add(1, std::memory_order_relaxed);
  if (result != kOk) {
    impl_->operations_failed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  impl_->payload_bytes[codec]->Increment(static_cast<double>(record.payload_bytes));
  impl_->wire_bytes[codec]->Increment(static_cast<double>(record.wire_bytes));
  if (record.nonfinite_count != 0) {
    impl_->nonfinite->Increment(static_cast<double>(record.nonfinite_count));
  }
  impl_->durations[0]->Observe(Seconds(record.first_post_ns, record.ready_ns));
  impl_->durations[1]->Observe(Seconds(record.ready_ns, record.start_ns));
  impl_->durations[2]->Observe(Seconds(record.start_ns, record.end_ns));
}

void Metrics::RecordRingFull(uint64_t count) {
  impl_->ring_full->Increment(static_cast<double>(count));
}
void Metrics::RecordAttach(shm::Status result) {
  impl_->attaches[ResultIndex(result)]->Increment();
}
void Metrics::RecordSessionEnd(std::string_view reason) {
  size_t i = 0;
  while (i + 1 < kReasons.size() && reason != kReasons[i]) ++i;
  impl_->session_ends[i]->Increment();
}
void Metrics::RecordInvalidSubmission() { impl_->invalid_submissions->Increment(); }
void Metrics::RecordPermissionDenied() { impl_->permission_denied->Increment(); }
void Metrics::RecordPolicySet(bool accepted) {
  (accepted ? impl_->policy_accepted : impl_->policy_refused)->Increment();
}

uint64_t Metrics::operations_total() const {
  return impl_->operations.load(std::memory_order_relaxed);
}
uint64_t Metrics::operations_failed_total() const {
  return impl_->operations_failed.load(std::memory_order_relaxed);
}

std::vector<prometheus::MetricFamily> Metrics::Collect() const {
  impl_->sessions->Set(static_cast<double>(Read(impl_->sources.sessions)));
  impl_->communicators->Set(static_cast<double>(Read(impl_->sources.communicators)));
  impl_->arena_bytes->Set(static_cast<double>(Read(impl_->sources.arena_bytes)));
  impl_->policy_generation->Set(static_cast<double>(Read(impl_->sources.policy_generation)));
  return impl_->registry->Collect();
}

std::shared_ptr<Registry> Metrics::registry() const { return impl_->registry; }

}  // namespace qrd
