// SPDX-License-Identifier: Apache-2.0
#include "daemon/engine/run_queue.h"

#include <algorithm>

#include "daemon/base/clock.h"

namespace qrd {
namespace {

size_t TimingIndex(const LaunchParams& params) {
  const size_t algorithm = params.algorithm == Algorithm::kOneShot ? 0 : 1;
  const size_t dtype = static_cast<size_t>(params.dtype) - 1;
  const size_t epilogue = params.epilogue == Epilogue::kNone ? 0 : 1;
  return ((static_cast<size_t>(params.codec) * 2 + algorithm) * 3 + dtype) * 2 + epilogue;
}

// Of units [first, last): tiles, or rows of an epilogue, of equal size but for the last.
uint64_t ElementsOf(const Job& job, uint64_t first, uint64_t last) {
  const uint64_t unit = (job.params.count + job.tiles - 1) / job.tiles;
  const uint64_t elements = job.tiles == TileCount(job.params.count) ? kTileElements : unit;
  return std::min(last * elements, job.params.count) - std::min(first * elements, job.params.count);
}

}  // namespace

void RunQueue::AddFlow(uint64_t flow, uint32_t weight) {
  MutexLock lock(&mu_);
  flows_[flow];
  scheduler_.Add(flow, weight);
}

void RunQueue::RemoveFlow(uint64_t flow) {
  MutexLock lock(&mu_);
  scheduler_.Remove(flow);
  flows_.erase(flow);
}

void RunQueue::Update(uint64_t flow, const Flow& state) {
  if (state.jobs.empty()) {
    scheduler_.Deactivate(flow);
  } else if (const Job& job = *state.jobs.front(); !job.cancelled && job.next_tile < job.tiles) {
    scheduler_.Activate(flow);
  } else {
    scheduler_.Block(flow);
  }
  has_chunks_.store(scheduler_.Pick().has_value(), std::memory_order_seq_cst);
}

void RunQueue::Push(Job* job) {
  MutexLock lock(&mu_);
  Flow& flow = flows_[job->flow];
  job->queued = true;
  flow.jobs.push_back(job);
  Update(job->flow, flow);
}

void RunQueue::MoveToFinished(Job* job) {
  Flow& flow = flows_[job->flow];
  flow.jobs.erase(std::find(flow.jobs.begin(), flow.jobs.end(), job));
  job->queued = false;
  finished_.push_back(job);
  has_finished_.store(true, std::memory_order_seq_cst);
  Update(job->flow, flow);
}

void RunQueue::Cancel(Job* job) {
  MutexLock lock(&mu_);
  if (!job->queued || job->cancelled) return;
  // All tiles are taken: it is as good as done.
  if (job->next_tile == job->tiles) return;
  job->cancelled = true;
  if (job->running_chunks == 0) {
    MoveToFinished(job);
  } else {
    Update(job->flow, flows_[job->flow]);
  }
}

double& RunQueue::TileNs(const LaunchParams& params) { return tile_ns_[TimingIndex(params)]; }

double RunQueue::TileNs(const LaunchParams& params) const {
  const double seen = tile_ns_[TimingIndex(params)];
  return seen > 0 ? seen : kTileNsGuess;
}

uint64_t RunQueue::ChunkTiles(const Job& job) const {
  if (job.whole) return job.tiles;
  const double tile_ns = TileNs(job.params) * job.params.world_size;
  const auto tiles_of = [tile_ns](uint64_t ns) {
    return std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(ns) / tile_ns));
  };
  // Two chunks a thread, so that a late thread costs little, within the bounds.
  const uint64_t even = (job.tiles + 2 * threads_ - 1) / (2 * threads_);
  if (threads_ == 1) return tiles_of(kChunkTargetNs);
  return std::clamp(even, std::min(tiles_of(kChunkMinNs), tiles_of(kChunkTargetNs)),
                    tiles_of(kChunkTargetNs));
}

bool RunQueue::Take(Chunk* chunk) {
  if (!has_chunks()) return false;
  MutexLock lock(&mu_);
  const std::optional<uint64_t> picked = scheduler_.Pick();
  if (!picked) return false;
  Flow& flow = flows_[*picked];
  Job* job = flow.jobs.front();
  const uint64_t first = job->next_tile;
  const uint64_t last = first + std::min(ChunkTiles(*job), job->tiles - first);
  job->next_tile = last;
  ++job->running_chunks;
  chunk->job = job;
  chunk->range = {first, last};
  chunk->start_ns = MonotonicNs();
  if (job->start_ns == 0) job->start_ns = chunk->start_ns;
  const uint64_t elements = ElementsOf(*job, first, last);
  scheduler_.Charge(*picked, elements * DtypeBytes(job->params.dtype) * job->params.world_size +
                                 kChunkOverheadBytes);
  Update(*picked, flow);
  return true;
}

bool RunQueue::Finish(const Chunk& chunk, uint64_t nonfinite_count, uint64_t end_ns) {
  MutexLock lock(&mu_);
  Job* job = chunk.job;
  const uint64_t tiles = chunk.range.last - chunk.range.first;
  const double took = static_cast<double>(end_ns - chunk.start_ns) /
                      static_cast<double>(tiles * job->params.world_size);
  double& tile_ns = TileNs(job->params);
  tile_ns = tile_ns > 0 ? tile_ns + (took - tile_ns) / 8 : took;
  tile_ns = std::max(tile_ns, 1.0);
  job->nonfinite_count += nonfinite_count;
  job->end_ns = std::max(job->end_ns, end_ns);
  if (--job->running_chunks != 0) return false;
  if (!job->cancelled && job->next_tile < job->tiles) return false;
  MoveToFinished(job);
  return true;
}

Job* RunQueue::PopFinished() {
  if (!has_finished()) return nullptr;
  MutexLock lock(&mu_);
  if (finished_.empty()) return nullptr;
  Job* job = finished_.front();
  finished_.pop_front();
  has_finished_.store(!finished_.empty(), std::memory_order_seq_cst);
  return job;
}

}  // namespace qrd
