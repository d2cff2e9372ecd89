// SPDX-License-Identifier: Apache-2.0
// One rank of a benchmark: attaches to the daemon and runs one case after the other. In a forked
// process it is driven over the socket of a ProcessTeam, with `--join` it is called directly.
//
// Thread safety: one thread a runner.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/tools/qrbench/gpu.h"
#include "client/tools/qrbench/tensors.h"
#include "kernels/types.h"
#include "qrd/qrd.h"

namespace qrd::tools {

// All that travels is plain data: parent and children are one binary.
struct CaseRequest {
  enum Kind : uint32_t { kAttach, kRun, kDetach };
  Kind kind = kRun;
  uint64_t count = 0;
  Dtype dtype = Dtype::kFp32;
  ReduceOp op = ReduceOp::kSum;
  uint32_t iterations = 0;
  uint32_t warmup = 0;
  uint32_t buffers = 1;
  bool in_place = false;
  bool staged = false;
  bool check_reference = false;
  // The buffers hold what the run before left (same count, dtype, buffers): nothing is filled and
  // no result is looked at, only times.
  bool only_time = false;
  uint64_t pool_bytes = 0;  // kAttach: what the largest case needs
};

// How operations on a GPU are put in order and timed.
enum class Order : uint32_t {
  kHost,    // post and wait, by the host's clock
  kStream,  // on a stream, by marks in it
  kGraph,   // a captured run of operations, replayed, by marks around it
};
inline constexpr uint32_t kGraphOperations = 20;

enum class ReferenceCheck : uint32_t { kNotDone, kEqual, kDiffers };

struct CaseReply {
  char error[496] = "";  // "" if all went well
  uint64_t result_hash = 0;
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  bool staged = false;
  uint64_t wire_bytes = 0;
  uint64_t policy_generation = 0;
  uint64_t execute_ns_p50 = 0;  // the daemon's own time from start to end
  uint64_t nonfinite_count = 0;
  // kAttach, rank 0 only, on a GPU that all ranks share: what a copy on it reads and writes.
  double copy_bytes_per_second = 0;
  // Rank 0 only.
  ReferenceCheck reference = ReferenceCheck::kNotDone;
  uint64_t first_difference = 0;  // element
  Quality quality;
};

// Barrier of the ranks of a group, in memory that they share; all zero at first.
struct SharedBarrier {
  std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> round;
};

struct RankConfig {
  std::string runtime_directory, communicator, group;
  uint32_t rank = 0, world_size = 1, timeout_ms = 30000;
  const TensorSource* source = nullptr;
  uint64_t* samples = nullptr;       // nanoseconds of each timed iteration
  SharedBarrier* barrier = nullptr;  // nullptr with --join: ranks then only meet in operations
  bool on_gpu = false;
  std::string device;  // PCI address; empty: the rank's turn among the process's devices
  Order order = Order::kHost;
  uint64_t quality_elements_max = uint64_t{4} << 20;
};

class RankRunner {
 public:
  explicit RankRunner(RankConfig config) : config_(std::move(config)) {}
  ~RankRunner();
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  CaseReply Handle(const CaseRequest& request);

 private:
  struct Buffers {
    std::byte* input;
    std::byte* output;
  };
  absl::Status Attach(const CaseRequest& request, CaseReply& reply);
  absl::Status Run(const CaseRequest& request, CaseReply& reply);
  absl::Status RunOnce(const CaseRequest& request, const Buffers& buffers, qrd_op_stats& stats);
  absl::Status Timed(const CaseRequest& request, CaseReply& reply);
  absl::Status AttachMemory(const CaseRequest& request);
  // rank_runner_gpu.cc
  absl::Status OpenGpu(CaseReply& reply);
  absl::Status PutOnStream(const CaseRequest& request, uint32_t buffer);
  absl::Status TimedOnStream(const CaseRequest& request, CaseReply& reply);
  absl::Status TimedGraph(const CaseRequest& request, CaseReply& reply);
  absl::Status CheckStream(CaseReply& reply);
  // Between the host and where the tensors are. Read's result is good until the next call.
  absl::Status Write(std::byte* to, const std::byte* from, uint64_t bytes);
  absl::StatusOr<const std::byte*> Read(const std::byte* from, uint64_t bytes);
  absl::Status FillBuffers(const CaseRequest& request);
  absl::Status Restore(const CaseRequest& request, const Buffers& buffers);
  void CheckResult(const CaseRequest& request, const std::byte* result, CaseReply& reply);
  Buffers BuffersOf(const CaseRequest& request, uint32_t index) const;
  absl::Status Barrier();
  void Detach();

  const RankConfig config_;
  std::unique_ptr<Gpu> gpu_;  // outlives the session
  std::vector<std::byte> host_;
  qrd_comm_t comm_ = nullptr;
  std::byte* pool_ = nullptr;  // of qrd_mem_alloc, or private_pool_ for staged runs
  uint64_t pool_bytes_ = 0;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> private_pool_{nullptr, nullptr};
};

// Bytes of a rank's buffers for a case, and how many buffers are rotated where the user names none.
uint64_t PoolBytes(uint64_t payload_bytes, uint32_t buffers, bool in_place);
uint32_t AutoBuffers(uint64_t payload_bytes);

// INTERNAL with the status and the text of a call of libqrd that has just failed on this thread.
absl::Status ClientError(qrd_status status, absl::string_view what);

// Body of a forked rank: answers requests until the parent goes.
int ServeRank(int socket, RankConfig config);

}  // namespace qrd::tools
