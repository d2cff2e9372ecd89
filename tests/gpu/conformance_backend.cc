// SPDX-License-Identifier: Apache-2.0
// The GPU backend as the daemon uses it: exported memory, words that the device writes, groups that
// share a pool, failure and a new start, and nothing left behind.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "conformance.h"
#include "kernels/backend.h"
#include "reduce_case.h"

namespace qrd::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A page of shared memory with one word a rank, registered with the devices.
class Words {
 public:
  Words(Backend* backend, Report* report) {
    page_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto visible = backend->MakeDeviceVisible(page_, kBytes);
    if (report->Check(visible.status(), "MakeDeviceVisible")) visible_ = *std::move(visible);
  }
  ~Words() {
    visible_.reset();
    munmap(page_, kBytes);
  }
  std::atomic<uint32_t>* operator[](uint32_t rank) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(static_cast<std::byte*>(page_) + 64 * rank);
  }

 private:
  static constexpr size_t kBytes = 4096;
  void* page_;
  std::unique_ptr<DeviceVisibleMemory> visible_;
};

// Until Poll() tells the end, at most a minute.
absl::StatusOr<DeviceGroup::Progress> Await(DeviceGroup* group, uint64_t ticket) {
  const Clock::time_point end = Clock::now() + std::chrono::minutes(1);
  for (;;) {
    absl::StatusOr<DeviceGroup::Progress> progress = group->Poll(ticket);
    if (!progress.ok() || progress->done) return progress;
    if (Clock::now() > end) return absl::DeadlineExceededError("not done after a minute");
  }
}

// A case in arenas of the backend: input of rank r, then output.
struct ArenaCase {
  ArenaCase(Backend* backend, const std::string& device, const ReduceCase& c, Report* report)
      : reduce(c), data(c) {
    stride = (c.bytes() + 255) / 256 * 256 + 256;
    auto made = backend->AllocateDeviceArena(device, 2 * stride * c.world_size);
    if (!report->Check(made.status(), "AllocateDeviceArena")) return;
    arena = *std::move(made);
    for (uint32_t r = 0; r < c.world_size; ++r) {
      QRD_MUST(hipMemcpy(At(2 * r), data.inputs[r].data(), c.bytes(), hipMemcpyHostToDevice));
    }
  }
  std::byte* At(uint32_t part) const { return arena->data() + part * stride; }
  LaunchParams Params() const {
    LaunchParams params;
    params.codec = reduce.codec;
    params.algorithm = reduce.algorithm;
    params.dtype = reduce.dtype;
    params.op = reduce.op;
    params.world_size = reduce.world_size;
    params.count = reduce.count;
    for (uint32_t r = 0; r < reduce.world_size; ++r) {
      params.inputs[r] = At(2 * r);
      params.outputs[r] = At(2 * r + 1);
    }
    return params;
  }
  void CheckOutputs(Report* report) const {
    for (uint32_t r = 0; r < reduce.world_size; ++r) {
      Bytes out(reduce.bytes());
      QRD_MUST(hipMemcpy(out.data(), At(2 * r + 1), out.size(), hipMemcpyDeviceToHost));
      report->Check(out == data.want, "rank " + std::to_string(r) + " of " + reduce.Describe());
    }
  }

  ReduceCase reduce;
  ReduceData data;
  uint64_t stride = 0;
  std::unique_ptr<Arena> arena;
};

void CheckResultsAndWords(Backend* backend, const std::string& device, Report* report) {
  const Words words(backend, report);
  uint32_t seed = 1;
  for (const uint32_t world_size : {1u, 2u, 4u, 8u}) {
    const std::vector<std::string> devices(world_size, device);
    auto group = backend->PlaceGroup("c", devices);
    if (!report->Check(group.status(), "PlaceGroup")) return;
    for (const Codec codec : {Codec::kNone, Codec::kInt4, Codec::kLp3}) {
      for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        ReduceCase c;
        c.codec = codec;
        c.algorithm = algorithm;
        c.dtype = Dtype::kBf16;
        c.world_size = world_size;
        c.count = 5000 + 977 * seed;
        c.seed = ++seed;
        const ArenaCase test(backend, device, c, report);
        std::vector<std::atomic<uint32_t>*> done;
        for (uint32_t r = 0; r < world_size; ++r) {
          words[r]->store(0);
          done.push_back(r % 2 == 0 ? words[r] : nullptr);
        }
        const auto ticket = (*group)->Launch(test.Params(), done);
        if (!report->Check(ticket.status(), "Launch " + c.Describe())) return;
        const auto progress = Await(group->get(), *ticket);
        if (!report->Check(progress.status(), "Poll " + c.Describe())) return;
        report->Check(world_size == 1 || progress->nonfinite_count == test.data.non_finite,
                      "NaN and Inf of " + c.Describe());
        for (uint32_t r = 0; r < world_size; ++r) {
          report->Check(words[r]->exchange(0) == (r % 2 == 0 ? 1u : 0u),
                        "done word of " + c.Describe());
        }
        test.CheckOutputs(report);
        report->Check(absl::IsInvalidArgument((*group)->Poll(*ticket).status()),
                      "a ticket that was told is gone");
      }
    }
  }
}

void CheckGroupsShareAPool(Backend* backend, const std::string& device, Report* report) {
  const std::vector<std::string> devices(2, device);
  auto first = backend->PlaceGroup("shared", devices);
  size_t before = 0, after = 0, total = 0;
  QRD_MUST(hipMemGetInfo(&before, &total));
  auto second = backend->PlaceGroup("shared", devices);
  QRD_MUST(hipMemGetInfo(&after, &total));
  if (!report->Check(first.status(), "first group") ||
      !report->Check(second.status(), "second group")) {
    return;
  }
  report->Check(before == after, "a second group takes no pool of its own");
  ReduceCase c;
  c.codec = Codec::kInt6;
  c.count = 100'003;
  ReduceCase d = c;
  d.codec = Codec::kNone;
  d.seed = 7;
  const ArenaCase a(backend, device, c, report), b(backend, device, d, report);
  for (int round = 0; round < 50; ++round) {
    const auto x = (*first)->Launch(a.Params(), {}), y = (*second)->Launch(b.Params(), {});
    if (!report->Check(x.status(), "x") || !report->Check(y.status(), "y")) return;
    report->Check(Await(second->get(), *y).status(), "poll y");
    report->Check(Await(first->get(), *x).status(), "poll x");
  }
  a.CheckOutputs(report);
  b.CheckOutputs(report);
}

void CheckInFlightBound(Backend* backend, const std::string& device, Report* report) {
  auto group = backend->PlaceGroup("bound", std::vector<std::string>(2, device));
  if (!report->Check(group.status(), "PlaceGroup")) return;
  ReduceCase c;
  c.count = 4096;
  const ArenaCase test(backend, device, c, report);
  std::vector<uint64_t> tickets;
  absl::Status status;
  while (status.ok() && tickets.size() < 1000) {
    const auto ticket = (*group)->Launch(test.Params(), {});
    status = ticket.status();
    if (ticket.ok()) tickets.push_back(*ticket);
  }
  report->Check(absl::IsResourceExhausted(status), "in flight: " + status.ToString());
  for (const uint64_t ticket : tickets) report->Check(Await(group->get(), ticket).status(), "poll");
  report->Check((*group)->Launch(test.Params(), {}).status(), "after they ended");
}

void CheckAbortAndNewStart(Backend* backend, const std::string& device, Report* report) {
  auto group = backend->PlaceGroup("abort", std::vector<std::string>(2, device));
  if (!report->Check(group.status(), "PlaceGroup")) return;
  ReduceCase c;
  c.count = 1 << 22;
  const ArenaCase test(backend, device, c, report);
  const Words words(backend, report);
  for (uint32_t r = 0; r < 2; ++r) words[r]->store(0);
  const auto ticket = (*group)->Launch(test.Params(), std::array{words[0], words[1]});
  (*group)->Abort();
  const auto progress = Await(group->get(), *ticket);
  report->Check(words[0]->exchange(0) == 1 && words[1]->exchange(0) == 1,
                "done words of an operation that was aborted");
  report->Check(absl::IsAborted(progress.status()) || (progress.ok() && progress->done),
                "aborted: " + progress.status().ToString());
  absl::StatusOr<uint64_t> again = absl::ResourceExhaustedError("");
  const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
  while (absl::IsResourceExhausted(again.status()) && Clock::now() < end) {
    again = (*group)->Launch(test.Params(), {});
  }
  if (!report->Check(again.status(), "a new start")) return;
  report->Check(Await(group->get(), *again).status(), "after the new start");
  report->Check(words[0]->load() == 0 && words[1]->load() == 0, "done words are stored once");
  test.CheckOutputs(report);
}

// A child that has the runtime to itself: started by exec, told the handle by its arguments.
void CheckAnotherProcessSeesTheMemory(Backend* backend, const std::string& device, Report* report) {
  auto arena = backend->AllocateDeviceArena(device, 1 << 20);
  if (!report->Check(arena.status(), "AllocateDeviceArena")) return;
  std::vector<uint8_t> pattern(1 << 20);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<uint8_t>(i * 7 + i / 256);
  QRD_MUST(hipMemcpy((*arena)->data(), pattern.data(), pattern.size(), hipMemcpyHostToDevice));
  std::string hex;
  for (const char byte : (*arena)->ipc_handle()) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned char>(byte));
    hex += text;
  }
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "gpu_conformance", "--import", device.c_str(), hex.c_str(), nullptr);
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  report->Check(
      WIFEXITED(status) && WEXITSTATUS(status) == 0,
      "another process reads and writes the arena (wait status " + std::to_string(status) + ")");
  QRD_MUST(hipMemcpy(pattern.data(), (*arena)->data(), 256, hipMemcpyDeviceToHost));
  for (int i = 0; i < 256; ++i) {
    if (!report->Check(pattern[i] == 0x5A, "what the other process wrote")) break;
  }
  report->Check(!backend->ImportArena(device, std::string(kIpcHandleBytes, 'x'), 0, 4096).ok(),
                "a handle that names nothing is refused");
  report->Check(!backend->ImportArena(device, "short", 0, 4096).ok(), "a short handle is refused");
}

void CheckNothingStays(Backend* backend, const std::string& device, Report* report) {
  const auto round = [&] {
    auto group = backend->PlaceGroup("rounds", std::vector<std::string>(4, device));
    if (!report->Check(group.status(), "PlaceGroup")) return;
    ReduceCase c;
    c.world_size = 4;
    c.count = 10'000;
    const ArenaCase test(backend, device, c, report);
    const Words words(backend, report);
    const auto ticket = (*group)->Launch(test.Params(), {});
    report->Check(ticket.status(), "Launch");  // the group's end waits for it
  };
  for (int i = 0; i < 5; ++i) round();
  size_t before = 0, after = 0, total = 0;
  QRD_MUST(hipMemGetInfo(&before, &total));
  for (int i = 0; i < 200; ++i) round();
  QRD_MUST(hipMemGetInfo(&after, &total));
  report->Check(before == after, "device memory after 200 rounds: " + std::to_string(before) +
                                     " bytes free before, " + std::to_string(after) + " after");
}

}  // namespace

void CheckBackend(Report* report) {
  auto made = MakeGpuBackend();
  if (!report->Check(made.status(), "MakeGpuBackend")) return;
  Backend* backend = made->get();
  const std::string device = backend->devices().front().id;
  std::printf("device %s: %s\n", device.c_str(), backend->devices().front().description.c_str());
  CheckResultsAndWords(backend, device, report);
  CheckGroupsShareAPool(backend, device, report);
  CheckInFlightBound(backend, device, report);
  CheckAbortAndNewStart(backend, device, report);
  CheckAnotherProcessSeesTheMemory(backend, device, report);
  CheckNothingStays(backend, device, report);
  report->Check(absl::IsNotFound(backend->AllocateDeviceArena("GPU-x", 4096).status()),
                "an unknown device");
  report->Check(
      absl::IsResourceExhausted(backend->AllocateDeviceArena(device, uint64_t{1} << 50).status()),
      "too much memory");
}

int RunImport(const std::string& device, const std::string& hex) {
  auto backend = MakeGpuBackend();
  if (!backend.ok()) return 3;
  std::string handle;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    handle += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  constexpr uint64_t kOffset = 4096, kBytes = 8192;
  auto arena = (*backend)->ImportArena(device, handle, kOffset, kBytes);
  if (!arena.ok()) {
    std::printf("import: %s\n", arena.status().ToString().c_str());
    return 4;
  }
  std::vector<uint8_t> seen(kBytes);
  QRD_MUST(hipMemcpy(seen.data(), (*arena)->data(), kBytes, hipMemcpyDeviceToHost));
  for (uint64_t i = 0; i < kBytes; ++i) {
    const uint64_t at = i + kOffset;
    if (seen[i] != static_cast<uint8_t>(at * 7 + at / 256)) return 5;
  }
  if ((*backend)->ImportArena(device, handle, uint64_t{1} << 40, kBytes).ok()) return 6;
  QRD_MUST(hipMemset((*arena)->data() - kOffset, 0x5A, 256));
  QRD_MUST(hipDeviceSynchronize());
  return 0;
}

}  // namespace qrd::testing
