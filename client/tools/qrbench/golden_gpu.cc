// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden_gpu.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace qrd::tools {
namespace {

constexpr std::chrono::seconds kOperationTimeout{60};

CaseResult Failed(const absl::Status& status) {
  return {Verdict::kFailed, {std::string(status.message())}};
}

}  // namespace

GoldenGpu::GoldenGpu(std::unique_ptr<Backend> backend, std::unique_ptr<Gpu> gpu)
    : backend_(std::move(backend)), gpu_(std::move(gpu)), device_(backend_->devices()[0].id) {}

absl::StatusOr<std::unique_ptr<GoldenGpu>> GoldenGpu::Open() {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeGpuBackend();
  if (!backend.ok()) return backend.status();
  absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open("", 0);
  if (!gpu.ok()) return gpu.status();
  return std::unique_ptr<GoldenGpu>(new GoldenGpu(*std::move(backend), *std::move(gpu)));
}

absl::StatusOr<std::byte*> GoldenGpu::Room(size_t index, uint64_t bytes) {
  if (rooms_.size() <= index) rooms_.resize(index + 1);
  if (rooms_[index] == nullptr || rooms_[index]->bytes() < bytes) {
    absl::StatusOr<std::unique_ptr<Arena>> arena =
        backend_->AllocateDeviceArena(device_, std::max<uint64_t>(bytes, 1 << 20));
    if (!arena.ok()) return arena.status();
    rooms_[index] = *std::move(arena);
  }
  return rooms_[index]->data();
}

absl::StatusOr<GoldenGpu::Bytes> GoldenGpu::RunCodec(const GoldenCase& c, bool encode,
                                                     std::span<const std::byte> from,
                                                     uint64_t result_bytes) {
  const absl::StatusOr<std::byte*> in = Room(0, from.size());
  const absl::StatusOr<std::byte*> out = Room(1, result_bytes);
  if (!in.ok()) return in.status();
  if (!out.ok()) return out.status();
  CodecParams params;
  params.codec = c.codec;
  params.dtype = c.dtype;
  params.encode = encode;
  params.from_fp32 = c.input_dtype != c.dtype;
  params.count = c.count;
  params.from = *in;
  params.to = *out;
  Bytes result(result_bytes, std::byte{0xA5});
  absl::Status status = gpu_->CopyIn(*in, from.data(), from.size());
  // What is not written must not pass for a result of the case before.
  if (status.ok()) status = gpu_->CopyIn(*out, result.data(), result_bytes);
  if (status.ok()) status = backend_->RunCodec(device_, params);
  if (status.ok()) status = gpu_->CopyOut(result.data(), *out, result_bytes);
  if (!status.ok()) return status;
  return result;
}

CaseResult GoldenGpu::CheckCodecCase(const GoldenFolder& folder, const GoldenCase& c) {
  CaseResult result;
  if (!folder.wire().present && !folder.decoded().present) return {Verdict::kSkipped, {}};
  const auto input = folder.inputs().Slice(c.input, c.count * DtypeBytes(c.input_dtype));
  if (!input.ok()) return Failed(input.status());
  const absl::StatusOr<Bytes> encoded = RunCodec(c, true, *input, c.wire_bytes);
  if (!encoded.ok()) return Failed(encoded.status());
  std::span<const std::byte> wire = *encoded;
  if (folder.wire().present) {
    const auto want = folder.wire().Slice(c.wire, c.wire_bytes);
    if (!want.ok()) return Failed(want.status());
    CompareBytes("wire bytes", *encoded, *want, 1, result);
    wire = *want;
  }
  if (!folder.decoded().present) return result;
  const auto want = folder.decoded().Slice(c.decoded, c.count * sizeof(float));
  if (!want.ok()) return Failed(want.status());
  const absl::StatusOr<Bytes> decoded = RunCodec(c, false, wire, c.count * sizeof(float));
  if (!decoded.ok()) return Failed(decoded.status());
  CompareBytes("decoded", *decoded, *want, sizeof(float), result);
  return result;
}

absl::StatusOr<DeviceGroup*> GoldenGpu::GroupOf(uint32_t ranks) {
  std::unique_ptr<DeviceGroup>& group = groups_[ranks];
  if (group == nullptr) {
    const std::vector<std::string> devices(ranks, device_);
    absl::StatusOr<std::unique_ptr<DeviceGroup>> placed =
        backend_->PlaceGroup(absl::StrCat("golden-", ranks), devices);
    if (!placed.ok()) return placed.status();
    group = *std::move(placed);
  }
  return group.get();
}

absl::Status GoldenGpu::Launch(const LaunchParams& params) {
  absl::StatusOr<DeviceGroup*> group = GroupOf(params.world_size);
  if (!group.ok()) return group.status();
  const absl::StatusOr<uint64_t> ticket = (*group)->Launch(params, {});
  if (!ticket.ok()) return ticket.status();
  const auto end = std::chrono::steady_clock::now() + kOperationTimeout;
  for (;;) {
    const absl::StatusOr<DeviceGroup::Progress> progress = (*group)->Poll(*ticket);
    if (!progress.ok()) return progress.status();
    if (progress->done) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > end) {
      return absl::DeadlineExceededError("the operation did not end");
    }
  }
}

EpilogueRunner GoldenGpu::Runner() {
  return [this](const EpilogueCase& c, const LaunchParams& params, const EpilogueTensors& tensors) {
    return RunEpilogue(c, params, tensors);
  };
}

absl::StatusOr<std::vector<EpilogueResults>> GoldenGpu::RunEpilogue(
    const EpilogueCase& c, LaunchParams params, const EpilogueTensors& tensors) {
  absl::Status status;
  size_t next = 0;
  // A tensor on the device with these bytes, null after an error.
  const auto upload = [&](const Bytes& bytes) -> std::byte* {
    const absl::StatusOr<std::byte*> room = Room(next++, bytes.size());
    if (status.ok()) status = room.status();
    if (status.ok()) status = gpu_->CopyIn(*room, bytes.data(), bytes.size());
    return status.ok() ? *room : nullptr;
  };
  const std::map<std::string, uint64_t> sizes = ResultBytes(c);
  std::vector<std::map<std::string, std::byte*>> results(params.world_size);
  for (uint32_t rank = 0; rank < params.world_size; ++rank) {
    const std::byte* input = upload(tensors.inputs[rank]);
    const std::byte* residual = c.has_residual ? upload(tensors.residual) : nullptr;
    const std::byte* weight = upload(tensors.weight);
    for (const auto& [name, bytes] : sizes) {
      results[rank][name] = upload(Bytes(bytes, std::byte{0xA5}));
    }
    SetRank(
        c, rank, input, residual, weight,
        [&](const std::string& name) { return results[rank].at(name); }, &params);
  }
  if (status.ok()) status = backend_->Validate(params);
  if (status.ok()) status = Launch(params);
  std::vector<EpilogueResults> out(params.world_size);
  for (uint32_t rank = 0; status.ok() && rank < params.world_size; ++rank) {
    for (const auto& [name, bytes] : sizes) {
      Bytes& to = out[rank][name];
      to.resize(bytes);
      if (status.ok()) status = gpu_->CopyOut(to.data(), results[rank].at(name), bytes);
    }
  }
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::vector<GoldenGpu::Bytes>> GoldenGpu::AllReduce(
    const GoldenCase& c, const std::vector<Bytes>& inputs) {
  const uint64_t bytes = c.count * DtypeBytes(c.dtype);
  LaunchParams params;
  params.codec = c.codec;
  params.algorithm = c.algorithm;
  params.dtype = c.dtype;
  params.op = c.op;
  params.world_size = c.ranks;
  params.count = c.count;
  std::vector<Bytes> results(c.ranks, Bytes(bytes, std::byte{0xA5}));
  absl::Status status;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    const absl::StatusOr<std::byte*> in = Room(2 * rank, bytes), out = Room(2 * rank + 1, bytes);
    if (!in.ok()) return in.status();
    if (!out.ok()) return out.status();
    params.inputs[rank] = *in;
    params.outputs[rank] = *out;
    if (status.ok()) status = gpu_->CopyIn(*in, inputs[rank].data(), bytes);
    if (status.ok()) status = gpu_->CopyIn(*out, results[rank].data(), bytes);
  }
  if (status.ok()) status = backend_->Validate(params);
  if (!status.ok()) return status;
  if (c.count == 0) return results;
  if (status = Launch(params); !status.ok()) return status;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    status = gpu_->CopyOut(results[rank].data(), params.outputs[rank], bytes);
    if (!status.ok()) return status;
  }
  return results;
}

CaseResult GoldenGpu::CheckReduceCase(const GoldenFolder& folder, const GoldenCase& c) {
  if (!folder.results().present) return {Verdict::kSkipped, {}};
  const auto want = folder.results().Slice(c.result, c.count * DtypeBytes(c.dtype));
  if (!want.ok()) return Failed(want.status());
  const absl::StatusOr<std::vector<Bytes>> inputs = ReduceInputs(folder, c);
  if (!inputs.ok()) return Failed(inputs.status());
  const absl::StatusOr<std::vector<Bytes>> results = AllReduce(c, *inputs);
  if (!results.ok()) return Failed(results.status());
  CaseResult result;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    CompareBytes(absl::StrCat("result on rank ", rank), (*results)[rank], *want,
                 DtypeBytes(c.dtype), result);
  }
  return result;
}

}  // namespace qrd::tools
