// SPDX-License-Identifier: Apache-2.0
// RankRunner on a GPU: operations on a stream and in graphs, timed by marks in the stream.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/rank_runner.h"

namespace qrd::tools {
namespace {

// Marks that are on the stream at a time.
constexpr uint32_t kBatch = 256;

}  // namespace

absl::Status RankRunner::OpenGpu(CaseReply& reply) {
  absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open(config_.device, config_.rank);
  if (!gpu.ok()) return gpu.status();
  gpu_ = *std::move(gpu);
  const bool shared = gpu_->device_count() == 1;
  if (config_.rank != 0 || !shared) return absl::OkStatus();
  const absl::StatusOr<double> rate = gpu_->CopyBytesPerSecond();
  if (!rate.ok()) return rate.status();
  reply.copy_bytes_per_second = *rate;
  return absl::OkStatus();
}

absl::Status RankRunner::PutOnStream(const CaseRequest& request, uint32_t buffer) {
  const Buffers buffers = BuffersOf(request, buffer % request.buffers);
  const qrd_status status = qrd_all_reduce_on_stream(
      comm_, buffers.input, buffers.output, request.count, static_cast<qrd_dtype>(request.dtype),
      static_cast<qrd_reduce_op>(request.op), gpu_->stream());
  return status == QRD_OK ? absl::OkStatus() : ClientError(status, "qrd_all_reduce_on_stream");
}

// After the stream was synchronised: nothing failed, and the plan stayed.
absl::Status RankRunner::CheckStream(CaseReply& reply) {
  qrd_status failed = QRD_OK;
  if (const qrd_status status = qrd_comm_async_error(comm_, &failed, nullptr); status != QRD_OK) {
    return ClientError(status, "qrd_comm_async_error");
  }
  if (failed != QRD_OK) return ClientError(failed, "an operation on the stream");
  uint64_t operations = 0;
  qrd_op_stats last = QRD_OP_STATS_INIT;
  if (const qrd_status status = qrd_stream_stats(comm_, &operations, &last); status != QRD_OK) {
    return ClientError(status, "qrd_stream_stats");
  }
  reply.execute_ns_p50 = last.end_ns - last.start_ns;
  if (last.sequence == 0 || (static_cast<Codec>(last.codec) == reply.codec &&
                             static_cast<Algorithm>(last.algorithm) == reply.algorithm)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      "the policy changed during the measurement, at generation ", last.policy_generation));
}

absl::Status RankRunner::TimedOnStream(const CaseRequest& request, CaseReply& reply) {
  absl::Status status = Barrier();
  for (uint32_t i = 0; status.ok() && i < request.warmup; ++i) status = PutOnStream(request, i);
  for (uint32_t first = 0; status.ok() && first < request.iterations; first += kBatch) {
    const uint32_t count = std::min(kBatch, request.iterations - first);
    status = gpu_->Mark(0);
    for (uint32_t i = 0; status.ok() && i < count; ++i) {
      status = PutOnStream(request, first + i);
      if (status.ok()) status = gpu_->Mark(i + 1);
    }
    if (status.ok()) status = gpu_->Synchronize();
    for (uint32_t i = 0; status.ok() && i < count; ++i) {
      const absl::StatusOr<uint64_t> ns = gpu_->ElapsedNs(i, i + 1);
      if (!ns.ok()) return ns.status();
      config_.samples[first + i] = *ns;
    }
  }
  return status.ok() ? CheckStream(reply) : status;
}

absl::Status RankRunner::TimedGraph(const CaseRequest& request, CaseReply& reply) {
  absl::Status status = gpu_->Capture([&] {
    absl::Status put;
    for (uint32_t i = 0; put.ok() && i < kGraphOperations; ++i) put = PutOnStream(request, i);
    return put;
  });
  if (status.ok()) status = Barrier();
  const uint32_t replays = (request.iterations + kGraphOperations - 1) / kGraphOperations;
  for (uint32_t i = 0; status.ok() && i < 2; ++i) status = gpu_->LaunchGraph();
  if (status.ok()) status = gpu_->Mark(0);
  for (uint32_t i = 0; status.ok() && i < replays; ++i) {
    status = gpu_->LaunchGraph();
    if (status.ok()) status = gpu_->Mark(i + 1);
  }
  if (status.ok()) status = gpu_->Synchronize();
  for (uint32_t i = 0; status.ok() && i < request.iterations; ++i) {
    const absl::StatusOr<uint64_t> ns =
        gpu_->ElapsedNs(i / kGraphOperations, i / kGraphOperations + 1);
    if (!ns.ok()) return ns.status();
    config_.samples[i] = *ns / kGraphOperations;
  }
  return status.ok() ? CheckStream(reply) : status;
}

}  // namespace qrd::tools
