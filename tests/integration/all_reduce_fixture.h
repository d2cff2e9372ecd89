// SPDX-License-Identifier: Apache-2.0
// Random tensors of every rank, the result that the reference says, and a comparison: for tests
// that run ranks as processes against a real daemon.
#pragma once

#include <qrd/qrd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/reference.h"
#include "kernels/types.h"

namespace qrd::testing {

// "STATUS: text" of a failure that this thread has just got, "" for QRD_OK.
inline std::string Outcome(qrd_status status) {
  if (status == QRD_OK) return "";
  return std::string(qrd_status_string(status)) + ": " + qrd_last_error();
}

// Attaches or gives the reason in *error.
inline qrd_comm_t Attach(const std::string& runtime_directory, uint32_t rank, uint32_t world_size,
                         std::string* error, const char* communicator = "tp",
                         const char* group = nullptr, uint32_t timeout_ms = 60'000) {
  qrd_comm_config config = QRD_COMM_CONFIG_INIT;
  config.communicator = communicator;
  config.group = group;
  config.rank = rank;
  config.world_size = world_size;
  config.runtime_directory = runtime_directory.c_str();
  config.timeout_ms = timeout_ms;
  qrd_comm_t comm = nullptr;
  *error = Outcome(qrd_comm_init(&config, &comm));
  return comm;
}

// One all-reduce of all ranks: what goes in, what must come out.
struct Problem {
  Dtype dtype;
  ReduceOp op;
  uint64_t count;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> expected;  // under codec none

  uint64_t bytes() const { return count * DtypeBytes(dtype); }
  qrd_dtype c_dtype() const { return static_cast<qrd_dtype>(dtype); }
  qrd_reduce_op c_op() const { return static_cast<qrd_reduce_op>(op); }
  std::string Describe() const {
    return std::string(Name(dtype)) + " " + std::string(Name(op)) + " count " +
           std::to_string(count);
  }
};

inline Problem MakeProblem(Dtype dtype, ReduceOp op, uint32_t world_size, uint64_t count,
                           uint64_t seed) {
  Problem problem{dtype, op, count, {}, {}};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<const void*> pointers;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    problem.inputs.emplace_back(problem.bytes());
    ReferenceRoundToDtype(dtype, values.data(), count, problem.inputs.back().data());
  }
  for (const auto& input : problem.inputs) pointers.push_back(input.data());
  problem.expected.resize(problem.bytes());
  ReferenceAllReduce(Codec::kNone, Algorithm::kTwoShot, dtype, op, world_size, count,
                     pointers.data(), problem.expected.data());
  return problem;
}

// "" or the first element that differs.
inline std::string Compare(const Problem& problem, const void* output) {
  if (problem.bytes() == 0 || std::memcmp(output, problem.expected.data(), problem.bytes()) == 0) {
    return "";
  }
  const uint64_t element_bytes = DtypeBytes(problem.dtype);
  const auto* bytes = static_cast<const std::byte*>(output);
  for (uint64_t i = 0; i < problem.count; ++i) {
    if (std::memcmp(bytes + i * element_bytes, &problem.expected[i * element_bytes],
                    element_bytes) == 0) {
      continue;
    }
    float got, want;
    ReferenceWidenToFp32(problem.dtype, bytes + i * element_bytes, 1, &got);
    ReferenceWidenToFp32(problem.dtype, &problem.expected[i * element_bytes], 1, &want);
    return problem.Describe() + ": element " + std::to_string(i) + " is " + std::to_string(got) +
           ", want " + std::to_string(want);
  }
  return "";
}

}  // namespace qrd::testing
