// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/live.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/common/channel.h"
#include "client/tools/common/exit_codes.h"
#include "client/tools/common/runtime_directory.h"
#include "client/tools/common/standard_streams.h"
#include "client/tools/common/units.h"
#include "client/tools/qrbench/flags.h"
#include "client/tools/qrbench/interrupt.h"
#include "client/tools/qrbench/policy_override.h"
#include "client/tools/qrbench/process_team.h"
#include "qrd/qrd.h"

namespace qrd::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kWaitMs = 120'000;

// What the ranks tell each other. Rank 0 has the result of operation k only when every rank has
// posted k, that is when every rank has written its entry of k - 1; so two entries are enough, and
// no rank can have posted k + 2.
struct Board {
  std::atomic<uint64_t> last_operation;  // set by rank 0 when the time is over; UINT64_MAX before
  struct Entry {
    std::atomic<uint64_t> hash, generation;
    std::atomic<uint32_t> codec;
  };
  std::array<std::array<Entry, kWorldSizeMax>, 2> entries;  // [operation % 2][rank]
};

struct LiveReply {
  char error[496] = "";
  uint64_t operations = 0;
  uint64_t plans = 0;  // rank 0: how often the plan was another one than before, the first included
  std::array<uint64_t, kCodecCount> by_codec{};
};

// One rank: attaches, runs until the board says stop.
class LiveRank {
 public:
  LiveRank(const AllReduceSettings& settings, double seconds, uint32_t rank, Board* board)
      : settings_(settings), seconds_(seconds), rank_(rank), board_(board) {}
  ~LiveRank() {
    if (comm_ != nullptr) qrd_comm_finalize(comm_);
  }
  LiveRank(const LiveRank&) = delete;
  LiveRank& operator=(const LiveRank&) = delete;

  LiveReply Run() {
    const std::string error = Loop();
    std::strncpy(reply_.error, error.c_str(), sizeof(reply_.error) - 1);
    return reply_;
  }

 private:
  std::string Loop();
  std::string Attach();
  std::string Post(qrd_op_stats& stats);
  std::string ComparePrevious(uint64_t operation) const;
  void Show(uint64_t operation, const qrd_op_stats& stats);

  const AllReduceSettings& settings_;
  const double seconds_;
  const uint32_t rank_;
  Board* const board_;
  const Clock::time_point start_ = Clock::now();
  qrd_comm_t comm_ = nullptr;
  void* input_ = nullptr;
  void* output_ = nullptr;
  uint64_t count_ = 0;
  LiveReply reply_;
};

std::string Failure(qrd_status status, std::string_view call) {
  return absl::StrCat(std::string(call), ": ", qrd_status_string(status), ": ", qrd_last_error());
}

std::string LiveRank::Attach() {
  qrd_comm_config config = QRD_COMM_CONFIG_INIT;
  config.communicator = settings_.communicator.c_str();
  config.group = settings_.group.c_str();
  config.rank = rank_;
  config.world_size = settings_.ranks;
  config.runtime_directory = settings_.connection.runtime_directory.c_str();
  if (const qrd_status s = qrd_comm_init(&config, &comm_); s != QRD_OK) return Failure(s, "attach");
  const Dtype dtype = settings_.dtypes[0];
  count_ = settings_.source.files.empty() ? settings_.sizes[0] / DtypeBytes(dtype)
                                          : settings_.source.files[0].size();
  const uint64_t bytes = std::max<uint64_t>(count_ * DtypeBytes(dtype), 1);
  for (void** buffer : {&input_, &output_}) {
    if (const qrd_status s = qrd_mem_alloc(comm_, bytes, buffer); s != QRD_OK) {
      return Failure(s, "qrd_mem_alloc");
    }
  }
  settings_.source.Fill(rank_, dtype, count_, input_);
  return "";
}

std::string LiveRank::Post(qrd_op_stats& stats) {
  qrd_operation operation = 0;
  qrd_status status =
      qrd_all_reduce(comm_, input_, output_, count_, static_cast<qrd_dtype>(settings_.dtypes[0]),
                     static_cast<qrd_reduce_op>(settings_.op), &operation);
  if (status != QRD_OK) return Failure(status, "qrd_all_reduce");
  stats = QRD_OP_STATS_INIT;
  status = qrd_wait(comm_, operation, kWaitMs, &stats);
  return status == QRD_OK ? "" : Failure(status, "qrd_wait");
}

std::string LiveRank::ComparePrevious(uint64_t operation) const {
  if (operation == 0) return "";
  const auto& entries = board_->entries[(operation - 1) % 2];
  for (uint32_t rank = 1; rank < settings_.ranks; ++rank) {
    if (entries[rank].hash == entries[0].hash && entries[rank].codec == entries[0].codec &&
        entries[rank].generation == entries[0].generation) {
      continue;
    }
    return absl::StrFormat(
        "operation %d: ranks 0 and %d differ: result %016x and %016x, "
        "policy generation %d and %d",
        operation, rank, entries[0].hash.load(), entries[rank].hash.load(),
        entries[0].generation.load(), entries[rank].generation.load());
  }
  return "";
}

void LiveRank::Show(uint64_t operation, const qrd_op_stats& stats) {
  const Quality quality = Measure(settings_.source, settings_.dtypes[0], settings_.op,
                                  settings_.ranks, count_, output_, uint64_t{4} << 20);
  if (reply_.plans++ == 0) {
    std::printf("%8s %10s %10s %-5s %-8s %10s %6s %8s\n", "seconds", "operation", "generation",
                "codec", "algo", "wire", "SQNR", "max err");
  }
  std::printf(
      "%8.2f %10d %10d %-5s %-8s %10s %6s %8.3g\n",
      std::chrono::duration<double>(Clock::now() - start_).count(), static_cast<int>(operation + 1),
      static_cast<int>(stats.policy_generation),
      std::string(Name(static_cast<Codec>(stats.codec))).c_str(),
      std::string(Name(static_cast<Algorithm>(stats.algorithm))).c_str(),
      HumanBytes(stats.wire_bytes).c_str(),
      std::isinf(quality.sqnr_db) ? "exact" : absl::StrFormat("%.1f", quality.sqnr_db).c_str(),
      quality.max_error);
  std::fflush(stdout);
}

std::string LiveRank::Loop() {
  if (std::string error = Attach(); !error.empty()) return error;
  const auto deadline =
      start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
  const uint64_t bytes = count_ * DtypeBytes(settings_.dtypes[0]);
  qrd_op_stats shown = QRD_OP_STATS_INIT;
  for (uint64_t k = 0; k <= board_->last_operation.load(); ++k) {
    qrd_op_stats stats;
    if (std::string error = Post(stats); !error.empty()) return error;
    Board::Entry& mine = board_->entries[k % 2][rank_];
    mine.hash = Hash(output_, bytes);
    mine.codec = static_cast<uint32_t>(stats.codec);
    mine.generation = stats.policy_generation;
    reply_.operations = k + 1;
    ++reply_.by_codec[static_cast<size_t>(stats.codec)];
    if (rank_ != 0) continue;
    if (std::string error = ComparePrevious(k); !error.empty()) return error;
    if (k == 0 || stats.codec != shown.codec || stats.algorithm != shown.algorithm) {
      Show(k, stats);
      shown = stats;
    }
    // Operation k + 1 is the last of all: others may have posted it already, but not k + 2.
    if ((Clock::now() >= deadline || OutputIsLost()) &&
        board_->last_operation.load() == UINT64_MAX) {
      board_->last_operation = k + 1;
    }
  }
  return "";
}

absl::Status Report(const std::vector<LiveReply>& replies) {
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    if (replies[rank].error[0] != '\0') {
      return absl::InternalError(absl::StrCat("rank ", rank, ": ", replies[rank].error));
    }
  }
  const LiveReply& first = replies[0];
  std::string by_codec;
  for (const Codec codec : kAllCodecs) {
    const uint64_t operations = first.by_codec[static_cast<size_t>(codec)];
    if (operations == 0) continue;
    absl::StrAppend(&by_codec, by_codec.empty() ? "" : ", ", operations, " ",
                    std::string(Name(codec)));
  }
  std::printf(
      "%d operations, none failed (%s); %d changes of the plan; all ranks had the same bits "
      "and the same plan every time\n",
      static_cast<int>(first.operations), by_codec.c_str(), static_cast<int>(first.plans) - 1);
  return absl::OkStatus();
}

void DeleteCommunicator(const AllReduceSettings& settings) {
  auto control = ControlClient::Connect(settings.connection);
  if (control.ok()) DeleteOwnCommunicator(**control, settings.communicator);
}

int RunLive(AllReduceSettings settings, double seconds) {
  InstallInterruptHandlers();
  absl::StatusOr<std::string> directory =
      FindRuntimeDirectory(settings.connection.runtime_directory);
  const absl::StatusOr<int> fd =
      directory.ok() ? ConnectControlSocket(*directory) : absl::StatusOr<int>(directory.status());
  if (!fd.ok()) return Fail("qrbench", fd.status(), kExitUnreachable);
  close(*fd);
  settings.connection.runtime_directory = *directory;
  const bool own_name = settings.communicator.empty();
  if (own_name) settings.communicator = absl::StrCat("qrbench-", getpid());
  const SharedMemory memory(sizeof(Board));
  if (memory.data() == nullptr) {
    return Fail("qrbench", absl::ResourceExhaustedError("no shared memory"), kExitFailed);
  }
  auto* board = new (memory.data()) Board{};
  board->last_operation = UINT64_MAX;
  auto team = ProcessTeam::Fork(static_cast<int>(settings.ranks), [&](int socket, int index) {
    uint32_t go = 0;
    if (!ReceiveRequest(socket, std::as_writable_bytes(std::span(&go, 1)))) return 1;
    const LiveReply reply = LiveRank(settings, seconds, static_cast<uint32_t>(index), board).Run();
    return SendReply(socket, std::as_bytes(std::span(&reply, 1))) ? 0 : 1;
  });
  if (!team.ok()) return Fail("qrbench", team.status(), kExitFailed);
  const auto replies = (*team)->AskAll<LiveReply>(
      static_cast<int>(settings.ranks), uint32_t{1},
      std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000) + kWaitMs));
  team->reset();
  if (own_name) DeleteCommunicator(settings);
  const absl::Status status = replies.ok() ? Report(*replies) : replies.status();
  if (status.ok()) return kExitOk;
  return Fail("qrbench", status, Interrupted() ? kExitInterrupted : kExitFailed);
}

}  // namespace

void AddLiveCommand(CommandLine& line) {
  static AllReduceFlags flags;
  static double seconds = 5;
  flags.sizes = "1M";
  flags.sizes_flag = "--size";
  CLI::App* app = line.Leaf(
      &line.root(), "live",
      "All-reduce one tensor again and again; a line for each change of codec or algorithm", [] {
        absl::StatusOr<AllReduceSettings> settings =
            MakeAllReduceSettings(flags, /*sizes_given=*/false);
        if (!settings.ok()) {
          return Fail("qrbench", settings.status(),
                      absl::IsInvalidArgument(settings.status()) ? kExitUsage : kExitFailed);
        }
        return RunLive(*std::move(settings), seconds);
      });
  app->add_option("--seconds", seconds, "0.1 to 3600; default 5")->check(Within(0.1, 3600));
  app->add_option("--size", flags.sizes, "Payload of a rank without --input; default 1M")
      ->type_name("BYTES");
  app->add_option("--dtype", flags.tensors.dtypes,
                  "fp16, bf16 or fp32; default bf16, with --input that of the files")
      ->type_name("DTYPE");
  app->add_option("--ranks", flags.tensors.ranks, "1 to 16; default 2, with --input one a file")
      ->type_name("N")
      ->check(WholeNumber(1, kWorldSizeMax));
  app->add_option("--input", flags.tensors.input,
                  "Real tensors: .npy files a.npy,b.npy, one a rank")
      ->type_name("FILES");
  app->add_option("--communicator", flags.settings.communicator, "Default: qrbench-PID")
      ->type_name("NAME");
  AddConnectionFlags(app, &flags.settings.connection);
  app->footer(
      "Example, with another terminal for qrctl:\n"
      "  qrbench live --input a.npy,b.npy --seconds 60\n"
      "  qrctl policy set --codec int4");
}

}  // namespace qrd::tools
