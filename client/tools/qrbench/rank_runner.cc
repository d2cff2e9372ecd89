// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/rank_runner.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/process_team.h"
#include "kernels/reference.h"

namespace qrd::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kPage = 4096;
// The daemon ends every operation (its own deadline is 30 s by default); this is for a daemon that
// is stuck.
constexpr uint32_t kWaitMs = 120'000;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uint64_t Median(std::vector<uint64_t>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::Status ClientError(qrd_status status, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat(what, ": ", qrd_status_string(status), ": ", qrd_last_error()));
}

uint64_t PoolBytes(uint64_t payload_bytes, uint32_t buffers, bool in_place) {
  // In place needs one pristine input besides.
  const uint64_t tensors = in_place ? buffers + 1 : 2 * uint64_t{buffers};
  return std::max(RoundUp(payload_bytes), kPage) * tensors;
}

uint32_t AutoBuffers(uint64_t payload_bytes) {
  return payload_bytes >= uint64_t{16} << 20 ? 2 : payload_bytes >= uint64_t{64} << 10 ? 4 : 8;
}

RankRunner::~RankRunner() { Detach(); }

void RankRunner::Detach() {
  if (comm_ != nullptr) qrd_comm_finalize(comm_);
  comm_ = nullptr;
  pool_ = nullptr;
}

absl::Status RankRunner::Attach(const CaseRequest& request, CaseReply& reply) {
  if (config_.on_gpu) {
    if (absl::Status status = OpenGpu(reply); !status.ok()) return status;
  }
  qrd_comm_config config = QRD_COMM_CONFIG_INIT;
  config.communicator = config_.communicator.c_str();
  config.group = config_.group.c_str();
  config.rank = config_.rank;
  config.world_size = config_.world_size;
  config.runtime_directory = config_.runtime_directory.c_str();
  config.timeout_ms = config_.timeout_ms;
  if (config_.on_gpu) config.device = "current";
  if (const qrd_status status = qrd_comm_init(&config, &comm_); status != QRD_OK) {
    comm_ = nullptr;
    return ClientError(status, "attach");
  }
  return AttachMemory(request);
}

absl::Status RankRunner::AttachMemory(const CaseRequest& request) {
  pool_bytes_ = request.pool_bytes;
  if (request.staged && gpu_ != nullptr) {
    absl::StatusOr<void*> own = gpu_->Allocate(pool_bytes_);
    if (!own.ok()) return own.status();
    pool_ = static_cast<std::byte*>(*own);
    return absl::OkStatus();
  }
  if (request.staged) {
    private_pool_ = {static_cast<std::byte*>(std::aligned_alloc(kPage, pool_bytes_)),
                     [](std::byte* memory) { std::free(memory); }};
    pool_ = private_pool_.get();
    if (pool_ == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", pool_bytes_, " bytes"));
    }
    std::memset(pool_, 0, pool_bytes_);
    return absl::OkStatus();
  }
  void* memory = nullptr;
  if (const qrd_status status = qrd_mem_alloc(comm_, pool_bytes_, &memory); status != QRD_OK) {
    return ClientError(status, absl::StrCat("qrd_mem_alloc of ", pool_bytes_, " bytes"));
  }
  pool_ = static_cast<std::byte*>(memory);
  return absl::OkStatus();
}

RankRunner::Buffers RankRunner::BuffersOf(const CaseRequest& request, uint32_t index) const {
  const uint64_t step = std::max(RoundUp(request.count * DtypeBytes(request.dtype)), kPage);
  if (request.in_place) return {pool_ + step * (index + 1), pool_ + step * (index + 1)};
  return {pool_ + step * (2 * index), pool_ + step * (2 * index + 1)};
}

absl::Status RankRunner::Barrier() {
  SharedBarrier* barrier = config_.barrier;
  if (barrier == nullptr) return absl::OkStatus();
  const uint32_t round = barrier->round.load();
  if (barrier->arrived.fetch_add(1) + 1 == config_.world_size) {
    barrier->arrived.store(0);
    barrier->round.store(round + 1);
    return absl::OkStatus();
  }
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (barrier->round.load() == round) {
    sched_yield();
    if (Clock::now() > deadline) return absl::DeadlineExceededError("another rank stopped");
  }
  return absl::OkStatus();
}

// In place the input is gone after each operation: puts it back, then waits for the others, so that
// the copies are not part of anyone's time.
absl::Status RankRunner::Restore(const CaseRequest& request, const Buffers& buffers) {
  if (!request.in_place) return absl::OkStatus();
  const uint64_t bytes = request.count * DtypeBytes(request.dtype);
  if (gpu_ != nullptr) {
    absl::Status status = gpu_->CopyOnDevice(buffers.input, pool_, bytes);
    if (status.ok()) status = gpu_->Synchronize();
    if (!status.ok()) return status;
  } else {
    std::memcpy(buffers.input, pool_, bytes);
  }
  return Barrier();
}

absl::Status RankRunner::RunOnce(const CaseRequest& request, const Buffers& buffers,
                                 qrd_op_stats& stats) {
  qrd_operation operation = 0;
  qrd_status status = qrd_all_reduce(comm_, buffers.input, buffers.output, request.count,
                                     static_cast<qrd_dtype>(request.dtype),
                                     static_cast<qrd_reduce_op>(request.op), &operation);
  if (status != QRD_OK) return ClientError(status, "qrd_all_reduce");
  stats = QRD_OP_STATS_INIT;
  status = qrd_wait(comm_, operation, kWaitMs, &stats);
  return status == QRD_OK ? absl::OkStatus() : ClientError(status, "qrd_wait");
}

absl::Status RankRunner::Timed(const CaseRequest& request, CaseReply& reply) {
  if (config_.order == Order::kStream) return TimedOnStream(request, reply);
  if (config_.order == Order::kGraph) return TimedGraph(request, reply);
  std::vector<uint64_t> execute_ns;
  execute_ns.reserve(request.iterations);
  for (uint32_t i = 0; i < request.warmup + request.iterations; ++i) {
    const Buffers buffers = BuffersOf(request, i % request.buffers);
    if (absl::Status s = Restore(request, buffers); !s.ok()) return s;
    qrd_op_stats stats;
    const auto start = Clock::now();
    if (absl::Status s = RunOnce(request, buffers, stats); !s.ok()) return s;
    const auto end = Clock::now();
    if (static_cast<Codec>(stats.codec) != reply.codec ||
        static_cast<Algorithm>(stats.algorithm) != reply.algorithm) {
      return absl::AbortedError(absl::StrCat(
          "the policy changed during the measurement, at generation ", stats.policy_generation));
    }
    if (i < request.warmup) continue;
    config_.samples[i - request.warmup] =
        static_cast<uint64_t>(std::chrono::nanoseconds(end - start).count());
    execute_ns.push_back(stats.end_ns - stats.start_ns);
  }
  reply.execute_ns_p50 = Median(execute_ns);
  return absl::OkStatus();
}

void RankRunner::CheckResult(const CaseRequest& request, const std::byte* result,
                             CaseReply& reply) {
  const uint64_t bytes = request.count * DtypeBytes(request.dtype);
  reply.quality = Measure(*config_.source, request.dtype, request.op, config_.world_size,
                          request.count, result, config_.quality_elements_max);
  if (!request.check_reference) return;
  std::vector<std::vector<std::byte>> inputs;
  const void* pointers[kWorldSizeMax] = {};
  for (uint32_t rank = 0; rank < config_.world_size; ++rank) {
    inputs.emplace_back(std::max<uint64_t>(bytes, 1));
    config_.source->Fill(rank, request.dtype, request.count, inputs.back().data());
    pointers[rank] = inputs.back().data();
  }
  std::vector<std::byte> want(std::max<uint64_t>(bytes, 1));
  ReferenceAllReduce(reply.codec, reply.algorithm, request.dtype, request.op, config_.world_size,
                     request.count, pointers, want.data());
  reply.reference = ReferenceCheck::kEqual;
  for (uint64_t i = 0; i < bytes; ++i) {
    if (result[i] == want[i]) continue;
    reply.reference = ReferenceCheck::kDiffers;
    reply.first_difference = i / DtypeBytes(request.dtype);
    return;
  }
}

absl::Status RankRunner::Write(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (gpu_ != nullptr) return gpu_->CopyIn(to, from, bytes);
  std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> RankRunner::Read(const std::byte* from, uint64_t bytes) {
  if (gpu_ == nullptr) return from;
  host_.resize(std::max<uint64_t>(bytes, 1));
  if (absl::Status status = gpu_->CopyOut(host_.data(), from, bytes); !status.ok()) return status;
  return host_.data();
}

absl::Status RankRunner::FillBuffers(const CaseRequest& request) {
  const uint64_t bytes = request.count * DtypeBytes(request.dtype);
  std::vector<std::byte> pristine(std::max<uint64_t>(bytes, 1));
  config_.source->Fill(config_.rank, request.dtype, request.count, pristine.data());
  // A result that is not written must not pass for one of the case before.
  const std::vector<std::byte> unwritten(request.in_place ? 0 : bytes, std::byte{0xA5});
  absl::Status status;
  if (request.in_place) status = Write(pool_, pristine.data(), bytes);
  for (uint32_t i = 0; status.ok() && i < request.buffers; ++i) {
    const Buffers buffers = BuffersOf(request, i);
    status = Write(buffers.input, pristine.data(), bytes);
    if (status.ok() && !request.in_place) status = Write(buffers.output, unwritten.data(), bytes);
  }
  return status;
}

absl::Status RankRunner::Run(const CaseRequest& request, CaseReply& reply) {
  const uint64_t bytes = request.count * DtypeBytes(request.dtype);
  if (comm_ == nullptr || request.buffers == 0 ||
      PoolBytes(bytes, request.buffers, request.in_place) > pool_bytes_) {
    return absl::InternalError("not attached, or the case needs more memory than was announced");
  }
  if (!request.only_time) {
    if (absl::Status s = FillBuffers(request); !s.ok()) return s;
  }
  const Buffers first = BuffersOf(request, 0);
  qrd_op_stats stats;
  if (absl::Status s = RunOnce(request, first, stats); !s.ok()) return s;
  reply.codec = static_cast<Codec>(stats.codec);
  reply.algorithm = static_cast<Algorithm>(stats.algorithm);
  reply.staged = stats.staged != 0;
  reply.wire_bytes = stats.wire_bytes;
  reply.policy_generation = stats.policy_generation;
  reply.nonfinite_count = stats.nonfinite_count;
  if (request.only_time) return Timed(request, reply);
  absl::StatusOr<const std::byte*> result = Read(first.output, bytes);
  if (!result.ok()) return result.status();
  reply.result_hash = Hash(*result, bytes);
  if (absl::Status s = Timed(request, reply); !s.ok()) return s;
  const uint32_t used = std::min(request.buffers, request.warmup + request.iterations);
  for (uint32_t i = 0; i < used; ++i) {
    result = Read(BuffersOf(request, i).output, bytes);
    if (!result.ok()) return result.status();
    if (Hash(*result, bytes) == reply.result_hash) continue;
    return absl::DataLossError("a repeated operation on the same input gave another result");
  }
  if (config_.rank != 0) return absl::OkStatus();
  result = Read(first.output, bytes);
  if (!result.ok()) return result.status();
  CheckResult(request, *result, reply);
  return absl::OkStatus();
}

CaseReply RankRunner::Handle(const CaseRequest& request) {
  CaseReply reply;
  absl::Status status;
  if (request.kind == CaseRequest::kAttach) status = Attach(request, reply);
  if (request.kind == CaseRequest::kRun) status = Run(request, reply);
  if (request.kind == CaseRequest::kDetach) Detach();
  const std::string text =
      status.ok() ? "" : absl::StrCat("rank ", config_.rank, ": ", status.message());
  std::strncpy(reply.error, text.c_str(), sizeof(reply.error) - 1);
  return reply;
}

int ServeRank(int socket, RankConfig config) {
  RankRunner runner(std::move(config));
  CaseRequest request;
  while (ReceiveRequest(socket, std::as_writable_bytes(std::span(&request, 1)))) {
    const CaseReply reply = runner.Handle(request);
    if (!SendReply(socket, std::as_bytes(std::span(&reply, 1)))) break;
  }
  return 0;
}

}  // namespace qrd::tools
