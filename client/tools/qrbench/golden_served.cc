// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden_served.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/gpu.h"
#include "qrd/qrd.h"

namespace qrd::tools {
namespace {

constexpr std::chrono::milliseconds kReplyTimeout = std::chrono::minutes(2);
constexpr uint32_t kAttachTimeoutMs = 30'000;

struct Request {
  enum Kind : uint32_t { kAttach, kRun, kDetach };
  Kind kind;
  uint32_t ranks;
  uint32_t case_index;
};

struct Reply {
  char error[496] = "";
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
};

// One rank process.
class Rank {
 public:
  Rank(const GoldenFolder& folder, std::string runtime_directory, std::string prefix, uint32_t rank,
       bool on_gpu, std::byte* result)
      : folder_(folder),
        runtime_directory_(std::move(runtime_directory)),
        prefix_(std::move(prefix)),
        rank_(rank),
        on_gpu_(on_gpu),
        result_(result) {}
  ~Rank() { Detach(); }

  void Handle(const Request& request, Reply& reply) {
    std::string error;
    if (request.kind == Request::kAttach) error = Attach(request.ranks);
    if (request.kind == Request::kRun) error = Run(folder_.cases()[request.case_index], reply);
    if (request.kind == Request::kDetach) Detach();
    if (!error.empty()) error = absl::StrCat("rank ", rank_, ": ", error, ": ", qrd_last_error());
    std::strncpy(reply.error, error.c_str(), sizeof(reply.error) - 1);
  }

 private:
  std::string Attach(uint32_t ranks) {
    qrd_comm_config config = QRD_COMM_CONFIG_INIT;
    const std::string communicator = absl::StrCat(prefix_, ranks);
    config.communicator = communicator.c_str();
    config.rank = rank_;
    config.world_size = ranks;
    config.runtime_directory = runtime_directory_.c_str();
    config.timeout_ms = kAttachTimeoutMs;
    if (on_gpu_ && gpu_ == nullptr) {
      absl::StatusOr<std::unique_ptr<Gpu>> gpu = Gpu::Open("", rank_);
      if (!gpu.ok()) return std::string(gpu.status().message());
      gpu_ = *std::move(gpu);
    }
    if (on_gpu_) config.device = "current";
    if (qrd_comm_init(&config, &comm_) == QRD_OK) return "";
    comm_ = nullptr;
    return "attach";
  }

  void Detach() {
    if (comm_ != nullptr) qrd_comm_finalize(comm_);
    comm_ = nullptr;
  }

  std::string Run(const GoldenCase& c, Reply& reply) {
    const uint64_t bytes = c.count * DtypeBytes(c.dtype);
    const auto input = folder_.inputs().Slice(c.input + rank_ * c.stride, bytes);
    if (!input.ok()) return std::string(input.status().message());
    void *in = nullptr, *out = nullptr;
    if (qrd_mem_alloc(comm_, std::max<uint64_t>(bytes, 1), &in) != QRD_OK) return "qrd_mem_alloc";
    if (qrd_mem_alloc(comm_, std::max<uint64_t>(bytes, 1), &out) != QRD_OK) return "qrd_mem_alloc";
    if (gpu_ != nullptr && !gpu_->CopyIn(in, input->data(), bytes).ok()) return "copy to the GPU";
    if (gpu_ == nullptr && bytes > 0) std::memcpy(in, input->data(), bytes);
    qrd_operation operation = 0;
    if (qrd_all_reduce(comm_, in, out, c.count, static_cast<qrd_dtype>(c.dtype),
                       static_cast<qrd_reduce_op>(c.op), &operation) != QRD_OK) {
      return "qrd_all_reduce";
    }
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    if (qrd_wait(comm_, operation, 60'000, &stats) != QRD_OK) return "qrd_wait";
    reply.codec = static_cast<Codec>(stats.codec);
    reply.algorithm = static_cast<Algorithm>(stats.algorithm);
    if (gpu_ != nullptr && !gpu_->CopyOut(result_, out, bytes).ok()) return "copy from the GPU";
    if (gpu_ == nullptr && bytes > 0) std::memcpy(result_, out, bytes);
    if (qrd_mem_free(comm_, in) != QRD_OK || qrd_mem_free(comm_, out) != QRD_OK)
      return "qrd_mem_free";
    return "";
  }

  const GoldenFolder& folder_;
  const std::string runtime_directory_, prefix_;
  const uint32_t rank_;
  const bool on_gpu_;
  std::byte* const result_;
  std::unique_ptr<Gpu> gpu_;  // outlives the session
  qrd_comm_t comm_ = nullptr;
};

absl::StatusOr<std::vector<Reply>> AskRanks(ProcessTeam& team, const Request& request) {
  absl::StatusOr<std::vector<Reply>> replies =
      team.AskAll<Reply>(static_cast<int>(request.ranks), request, kReplyTimeout);
  if (!replies.ok()) return replies.status();
  for (const Reply& reply : *replies) {
    if (reply.error[0] != '\0') return absl::InternalError(reply.error);
  }
  return replies;
}

}  // namespace

GoldenServer::GoldenServer(const GoldenFolder& folder, std::string runtime_directory)
    : folder_(folder), runtime_directory_(std::move(runtime_directory)) {}

GoldenServer::~GoldenServer() = default;

std::string GoldenServer::CommunicatorOf(uint32_t ranks) const {
  return absl::StrCat("qrbench-golden-", getpid(), "-w", ranks);
}

absl::StatusOr<std::unique_ptr<GoldenServer>> GoldenServer::Start(
    const GoldenFolder& folder, const std::string& runtime_directory, bool on_gpu) {
  std::unique_ptr<GoldenServer> server(new GoldenServer(folder, runtime_directory));
  uint32_t ranks = 1;
  for (const GoldenCase& c : folder.cases()) {
    if (!c.is_reduce || !c.problem.empty()) continue;
    const uint64_t bytes = c.count * DtypeBytes(c.dtype);
    if (!folder.inputs().Slice(c.input, bytes).ok()) continue;  // fails later, with its reason
    ranks = std::max(ranks, c.ranks);
    server->result_bytes_max_ = std::max(server->result_bytes_max_, bytes);
  }
  server->results_ = std::make_unique<SharedMemory>(server->result_bytes_max_ * ranks);
  if (server->results_->data() == nullptr)
    return absl::ResourceExhaustedError("no memory for results");
  const std::string prefix = absl::StrCat("qrbench-golden-", getpid(), "-w");
  absl::StatusOr<std::unique_ptr<ProcessTeam>> team =
      ProcessTeam::Fork(static_cast<int>(ranks), [&](int socket, int index) {
        const auto number = static_cast<uint32_t>(index);
        Rank rank(folder, runtime_directory, prefix, number, on_gpu,
                  server->results_->data() + server->result_bytes_max_ * number);
        Request request;
        while (ReceiveRequest(socket, std::as_writable_bytes(std::span(&request, 1)))) {
          Reply reply;
          rank.Handle(request, reply);
          if (!SendReply(socket, std::as_bytes(std::span(&reply, 1)))) break;
        }
        return 0;
      });
  if (!team.ok()) return team.status();
  server->team_ = *std::move(team);
  return server;
}

absl::Status GoldenServer::Connect(const ConnectionFlags& flags) {
  absl::StatusOr<std::unique_ptr<ControlClient>> control = ControlClient::Connect(flags);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  return absl::OkStatus();
}

absl::Status GoldenServer::DetachRanks() {
  if (attached_ == 0) return absl::OkStatus();
  const uint32_t ranks = attached_;
  attached_ = 0;
  const absl::Status restored = policy_ != nullptr ? policy_->Restore() : absl::OkStatus();
  policy_.reset();
  plan_.reset();
  const absl::Status detached = AskRanks(*team_, {Request::kDetach, ranks, 0}).status();
  DeleteOwnCommunicator(*control_, CommunicatorOf(ranks));
  return restored.ok() ? detached : restored;
}

absl::Status GoldenServer::AttachRanks(uint32_t ranks) {
  if (attached_ == ranks) return absl::OkStatus();
  if (absl::Status status = DetachRanks(); !status.ok()) return status;
  if (absl::Status s = AskRanks(*team_, {Request::kAttach, ranks, 0}).status(); !s.ok()) return s;
  attached_ = ranks;
  policy_ = std::make_unique<PolicyOverride>(control_.get(), CommunicatorOf(ranks),
                                             absl::StrCat("qrbench-golden-", getpid()));
  return absl::OkStatus();
}

absl::Status GoldenServer::SetPlan(Codec codec, Algorithm algorithm) {
  if (plan_ == std::make_pair(codec, algorithm)) return absl::OkStatus();
  // The enums of policy.proto are the wire format's ids plus one, and the algorithm's own numbers.
  const absl::Status set = policy_->Set(static_cast<v1::Codec>(static_cast<int>(codec) + 1),
                                        static_cast<v1::Algorithm>(algorithm));
  if (set.ok()) plan_ = {codec, algorithm};
  return set;
}

absl::StatusOr<CaseResult> GoldenServer::Check(const GoldenCase& c) {
  if (!folder_.results().present) return CaseResult{Verdict::kSkipped, {}};
  const auto want = folder_.results().Slice(c.result, c.count * DtypeBytes(c.dtype));
  if (!want.ok()) return CaseResult{Verdict::kFailed, {std::string(want.status().message())}};
  if (const auto inputs = ReduceInputs(folder_, c); !inputs.ok()) {
    return CaseResult{Verdict::kFailed, {std::string(inputs.status().message())}};
  }
  if (absl::Status status = AttachRanks(c.ranks); !status.ok()) return status;
  if (absl::Status status = SetPlan(c.codec, c.algorithm); !status.ok()) return status;
  const auto index = static_cast<uint32_t>(&c - folder_.cases().data());
  const absl::StatusOr<std::vector<Reply>> replies =
      AskRanks(*team_, {Request::kRun, c.ranks, index});
  if (!replies.ok()) return replies.status();
  CaseResult result;
  for (uint32_t rank = 0; rank < c.ranks; ++rank) {
    const Reply& reply = (*replies)[rank];
    if (reply.codec != c.codec || reply.algorithm != c.algorithm) {
      result.verdict = Verdict::kFailed;
      result.differences.push_back(absl::StrCat("the daemon used codec ",
                                                std::string(Name(reply.codec)), ", algorithm ",
                                                std::string(Name(reply.algorithm))));
      break;
    }
    CompareBytes(absl::StrCat("result on rank ", rank),
                 {results_->data() + result_bytes_max_ * rank, want->size()}, *want,
                 DtypeBytes(c.dtype), result);
  }
  return result;
}

absl::Status GoldenServer::Finish() { return DetachRanks(); }

}  // namespace qrd::tools
