// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/group_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/session/status_codes.h"

namespace qrd {

GroupQueue::GroupQueue(uint64_t flow, GroupSpec spec, OperationContext* context,
                       std::shared_ptr<GroupGauges> gauges)
    : ends(spec.channels.size()),
      flow_(flow),
      spec_(std::move(spec)),
      context_(context),
      gauges_(std::move(gauges)),
      all_mask_((uint32_t{1} << spec_.channels.size()) - 1),
      posted_(spec_.channels.size(), 0),
      ring_posted_(spec_.channels.size(), 0) {
  if (spec_.backend == nullptr) spec_.backend = context_->backend;
  run_queue()->AddFlow(flow_, spec_.weight);
}

GroupQueue::~GroupQueue() {
  run_queue()->RemoveFlow(flow_);
  if (spec_.device_group != nullptr && spec_.dispose) spec_.dispose(std::move(spec_.device_group));
}

Operation* GroupQueue::FindOrAdd(uint64_t sequence, uint64_t now_ns) {
  const uint64_t index = sequence - first_sequence_;
  if (index < operations_.size()) return operations_[index].get();
  // Ranks post without gaps, so a new sequence is always the next one.
  auto operation = std::make_unique<Operation>();
  operation->sequence = sequence;
  operation->flow = flow_;
  operation->first_post_ns = now_ns;
  operation->deadline_ns = UINT64_MAX;
  operation->posts.resize(world_size());
  Operation* raw = operation.get();
  operations_.push_back(std::move(operation));
  ++waiting_;
  ++context_->active_operations;
  return raw;
}

uint64_t GroupQueue::OnSubmission(uint32_t rank, const Submission& submission, uint64_t now_ns) {
  const uint64_t sequence = ++posted_[rank];
  const bool from_stream = (submission.slot & kStreamSlot) != 0;
  // A stream's operation has no number of its own: a graph may replay it.
  const Answer answer = {submission.slot, from_stream ? sequence : ++ring_posted_[rank]};
  if (!broken() && sequence - first_sequence_ >= kOperationsAheadMax) {
    const uint32_t behind = all_mask_ & ~operations_.front()->arrived_mask;
    Break({shm::Status::kFailedPrecondition,
           absl::StrFormat("rank %d is %d operations ahead of %s", rank, kOperationsAheadMax,
                           RanksText(behind)),
           behind},
          now_ns);
  }
  if (broken() && sequence - first_sequence_ >= operations_.size()) {
    Operation refused;
    refused.sequence = sequence;
    refused.first_post_ns = now_ns;
    refused.failure = broken_;
    CompleteRank(refused, rank, answer, broken_);
    if (sequence > refused_counted_) {
      refused_counted_ = sequence;
      Count(refused);
    }
    return UINT64_MAX;
  }
  Operation* operation = FindOrAdd(sequence, now_ns);
  const uint32_t bit = uint32_t{1} << rank;
  operation->arrived_mask |= bit;
  if (operation->state == Operation::State::kDone) {  // failed before this rank came
    CompleteRank(*operation, rank, answer, operation->failure);
    Retire();
    return UINT64_MAX;
  }
  operation->posts[rank].slot = answer.slot;
  operation->posts[rank].sequence = answer.sequence;
  operation->open_mask |= bit;
  if (context_->draining && operation->arrived_mask == bit) {
    Fail(operation, {shm::Status::kUnavailable, "the daemon is draining: no new operations", 0},
         now_ns);
    return UINT64_MAX;
  }
  absl::StatusOr<ValidatedDescriptor> descriptor = ValidateDescriptor(
      submission.descriptor, from_stream ? submission.descriptor.sequence : answer.sequence, rank,
      world_size(), &channel(rank)->arenas());
  if (!descriptor.ok()) {
    Refuse(operation, rank, descriptor.status(), now_ns);
    return UINT64_MAX;
  }
  const uint64_t timeout_ms =
      descriptor->timeout_ms != 0 ? descriptor->timeout_ms : context_->operation_timeout_ms;
  operation->deadline_ns =
      std::min(operation->deadline_ns, operation->first_post_ns + timeout_ms * 1'000'000);
  operation->posts[rank].descriptor = *std::move(descriptor);
  const uint64_t deadline_ns = operation->deadline_ns;
  if (operation->arrived_mask == all_mask_) {
    Ready(operation, now_ns);
    return UINT64_MAX;
  }
  SetGauges();
  return deadline_ns;
}

void GroupQueue::Refuse(Operation* operation, uint32_t rank, const absl::Status& why,
                        uint64_t now_ns) {
  if (context_->metrics != nullptr) context_->metrics->RecordInvalidSubmission();
  const uint32_t bit = uint32_t{1} << rank;
  const std::string text = absl::StrCat("operation ", operation->sequence, ": ", why.message());
  const Operation::Post& post = operation->posts[rank];
  CompleteRank(*operation, rank, {post.slot, post.sequence}, {ToShmStatus(why.code()), text, bit});
  operation->open_mask &= ~bit;
  // The others did nothing wrong, but this operation will never be.
  Fail(operation,
       {shm::Status::kMismatch,
        absl::StrFormat("operation %d: rank %d's descriptor was refused: %s", operation->sequence,
                        rank, why.message()),
        bit},
       now_ns);
}

absl::Status GroupQueue::MakePlan(Operation* operation) {
  const ValidatedDescriptor& first = operation->posts[0].descriptor;
  PlanFacts facts;
  facts.communicator = spec_.communicator;
  facts.group = spec_.group;
  facts.dtype = first.dtype;
  facts.payload_bytes = first.count * DtypeBytes(first.dtype);
  facts.world_size = world_size();
  facts.epilogue = static_cast<Epilogue>(first.epilogue);
  if (spec_.device_group != nullptr) {
    facts.link = spec_.device_group->link();
    facts.library_available = first.epilogue == 0 && spec_.device_group->library_available();
  }
  operation->plan = context_->policy->current()->Evaluate(facts, *spec_.backend);
  operation->planned = true;
  LaunchParams& params = operation->params;
  params.codec = operation->plan.codec;
  params.algorithm = operation->plan.algorithm;
  params.dtype = first.dtype;
  params.op = first.op;
  params.world_size = world_size();
  params.count = first.count;
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    params.inputs[rank] = operation->posts[rank].descriptor.input;
    params.outputs[rank] = operation->posts[rank].descriptor.output;
  }
  if (first.rms_norm != nullptr) {
    params.epilogue = Epilogue::kRmsNorm;
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      AddRank(*operation->posts[rank].descriptor.rms_norm, rank, &params.rms_norm);
    }
    // A row's owner does its epilogue: there is no other algorithm.
    if (params.rms_norm.residual_layout == ResidualLayout::kSharded) {
      params.algorithm = operation->plan.algorithm = Algorithm::kTwoShot;
    }
  }
  operation->whole = spec_.device_group != nullptr;
  if (params.count == 0) return absl::OkStatus();
  if (absl::Status status = spec_.backend->Validate(params); !status.ok()) return status;
  operation->tiles = operation->whole ? TileCount(params.count) : spec_.backend->UnitCount(params);
  return absl::OkStatus();
}

void GroupQueue::Ready(Operation* operation, uint64_t now_ns) {
  operation->ready_ns = now_ns;
  if (Failure difference = CompareRanks(*operation, all_mask_);
      difference.status != shm::Status::kOk) {
    Fail(operation, std::move(difference), now_ns);
    return;
  }
  if (absl::Status status = MakePlan(operation); !status.ok()) {
    Fail(operation, {ToShmStatus(status.code()), std::string(status.message()), 0}, now_ns);
    return;
  }
  operation->state = Operation::State::kQueued;
  --waiting_;
  ++queued_;
  if (operation->tiles == 0) {
    operation->start_ns = operation->end_ns = now_ns;
    Succeed(operation, now_ns);
    return;
  }
  run_queue()->Push(operation);
  SetGauges();
}

void GroupQueue::OnJobFinished(Operation* operation, uint64_t now_ns) {
  if (operation->cancelled) {
    Fail(operation, broken_, now_ns);
  } else if (!operation->error.ok()) {
    Fail(operation,
         {ToShmStatus(operation->error.code()),
          absl::StrFormat("operation %d: the devices: %s", operation->sequence,
                          operation->error.message()),
          0},
         now_ns);
  } else {
    Succeed(operation, now_ns);
  }
}

void GroupQueue::Succeed(Operation* operation, uint64_t now_ns) { Fail(operation, {}, now_ns); }

void GroupQueue::Fail(Operation* operation, Failure failure, uint64_t now_ns) {
  --(operation->state == Operation::State::kQueued ? queued_ : waiting_);
  --context_->active_operations;
  operation->state = Operation::State::kDone;
  operation->failure = std::move(failure);
  // Of a broken group one line has told it.
  if (operation->failure.status != shm::Status::kOk && !broken()) {
    Report(true, &context_->failures, operation->failure.message, now_ns);
  }
  if (operation->end_ns == 0) operation->end_ns = now_ns;
  SetGauges();
  Count(*operation);
  CompleteOpenRanks(operation);
  Retire();
}

void GroupQueue::CompleteOpenRanks(Operation* operation) {
  // Pins go first: a client that sees the completion may free the arena at once.
  std::vector<Answer> answers;
  for (const Operation::Post& post : operation->posts)
    answers.push_back({post.slot, post.sequence});
  operation->posts.clear();
  for (uint32_t rank = 0; rank < answers.size(); ++rank) {
    if ((operation->open_mask >> rank & 1) == 0) continue;
    CompleteRank(*operation, rank, answers[rank], operation->failure);
  }
  operation->open_mask = 0;
}

void GroupQueue::CompleteRank(const Operation& operation, uint32_t rank, const Answer& answer,
                              const Failure& failure) {
  if (channel(rank) == nullptr) return;
  CompletionRecord record;
  record.status = failure.status;
  record.sequence = answer.sequence;
  record.rank_mask = failure.rank_mask;
  record.first_post_ns = operation.first_post_ns;
  record.ready_ns = operation.ready_ns;
  record.start_ns = operation.start_ns;
  record.end_ns = operation.end_ns;
  if (operation.planned) {
    const LaunchParams& p = operation.params;
    record.payload_bytes = p.count * DtypeBytes(p.dtype);
    record.policy_generation = operation.plan.policy_generation;
    record.codec = static_cast<uint32_t>(p.codec);
    record.algorithm = static_cast<uint32_t>(p.algorithm);
  }
  if (failure.status == shm::Status::kOk) {
    const LaunchParams& p = operation.params;
    record.wire_bytes = WireBytesSent(p, rank);
    record.nonfinite_count = operation.nonfinite_count;
  }
  channel(rank)->Complete(answer.slot, record, failure.message, !operation.launched);
}

void GroupQueue::Count(const Operation& operation) {
  OperationRecord record;
  record.status = operation.failure.status;
  record.planned = operation.planned;
  record.first_post_ns = operation.first_post_ns;
  record.ready_ns = operation.ready_ns;
  record.start_ns = operation.start_ns;
  record.end_ns = operation.end_ns;
  CommunicatorCounters& counters = *spec_.counters;
  counters.operations.fetch_add(1, std::memory_order_relaxed);
  if (record.status != shm::Status::kOk) {
    counters.operations_failed.fetch_add(1, std::memory_order_relaxed);
  }
  if (operation.planned) {
    record.codec = operation.params.codec;
    record.algorithm = operation.params.algorithm;
    record.epilogue = operation.params.epilogue;
  }
  if (record.status == shm::Status::kOk) {
    const LaunchParams& p = operation.params;
    record.payload_bytes = p.count * DtypeBytes(p.dtype);
    for (uint32_t rank = 0; rank < p.world_size; ++rank) {
      record.wire_bytes += WireBytesSent(p, rank);
    }
    record.nonfinite_count = operation.nonfinite_count;
    counters.payload_bytes.fetch_add(record.payload_bytes, std::memory_order_relaxed);
    counters.wire_bytes.fetch_add(record.wire_bytes, std::memory_order_relaxed);
    counters.nonfinite_elements.fetch_add(record.nonfinite_count, std::memory_order_relaxed);
  }
  if (context_->metrics != nullptr) context_->metrics->RecordOperation(record);
}

void GroupQueue::Report(bool warning, LogLimit* limit, const std::string& what,
                        uint64_t now_ns) const {
  if (!context_->report) return;
  const auto suffix = limit->Admit(now_ns);
  if (!suffix) return;
  context_->report(
      warning, absl::StrFormat("group '%s' of communicator '%s', incarnation %d: %s%s", spec_.group,
                               spec_.communicator, spec_.incarnation, what, *suffix));
}

void GroupQueue::Retire() {
  while (!operations_.empty() && operations_.front()->state == Operation::State::kDone &&
         operations_.front()->arrived_mask == all_mask_) {
    operations_.pop_front();
    ++first_sequence_;
  }
}

uint64_t GroupQueue::Expire(uint64_t now_ns) {
  uint64_t earliest_ns = UINT64_MAX;
  // Fail() retires only what every rank has posted, which nothing that waits is.
  for (const std::unique_ptr<Operation>& operation : operations_) {
    if (operation->state != Operation::State::kWaiting) continue;
    if (operation->deadline_ns > now_ns) {
      earliest_ns = std::min(earliest_ns, operation->deadline_ns);
      continue;
    }
    const uint32_t missing = all_mask_ & ~operation->arrived_mask;
    std::string message = absl::StrFormat(
        "operation %d: %s did not post within %d ms of the first rank", operation->sequence,
        RanksText(missing), (operation->deadline_ns - operation->first_post_ns) / 1'000'000);
    if (Failure other = CompareRanks(*operation, operation->arrived_mask);
        other.status != shm::Status::kOk) {
      absl::StrAppend(&message, "; and ", other.message);
    }
    Fail(operation.get(), {shm::Status::kTimeout, std::move(message), missing}, now_ns);
  }
  return earliest_ns;
}

void GroupQueue::Break(Failure failure, uint64_t now_ns) {
  if (broken()) return;
  const uint32_t pending = waiting_ + queued_;
  Report(pending > 0, &context_->ends,
         absl::StrFormat("ends, operations that fail: %d; %s", pending, failure.message), now_ns);
  broken_ = std::move(failure);
  refused_counted_ = first_sequence_ + operations_.size() - 1;
  for (const std::unique_ptr<Operation>& operation : operations_) {
    if (operation->state == Operation::State::kWaiting) {
      Fail(operation.get(), broken_, now_ns);
    } else if (operation->state == Operation::State::kQueued) {
      run_queue()->Cancel(operation.get());
    }
  }
}

void GroupQueue::SetGauges() {
  gauges_->waiting.store(waiting_, std::memory_order_relaxed);
  gauges_->queued.store(queued_, std::memory_order_relaxed);
}

}  // namespace qrd
