// SPDX-License-Identifier: Apache-2.0
// The host backend apart from its arithmetic: what it refuses and with which words, its arenas,
// what it says about the machine, and sizes past 4 GiB.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/codec.h"
#include "kernels/host_memory.h"
#include "kernels/memory_limit.h"
#include "kernels/types.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kNoMemoryMax = std::numeric_limits<uint64_t>::max();

class HostBackendTest : public ::testing::Test {
 protected:
  // A good operation of two ranks on real memory; tests break one thing each.
  HostBackendTest() {
    params_.dtype = Dtype::kBf16;
    params_.codec = Codec::kInt4;
    params_.world_size = 2;
    params_.count = 100;
    for (uint32_t r = 0; r < 2; ++r) {
      params_.inputs[r] = &memory_[r * 128];
      params_.outputs[r] = &memory_[(2 + r) * 128];
    }
  }

  void ExpectError(absl::StatusCode code, const std::string& text) {
    const absl::Status status = backend_->Validate(params_);
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_EQ(std::string(status.message()), text);
  }

  const std::unique_ptr<Backend> backend_ = MakeHostBackend();
  alignas(64) uint16_t memory_[4 * 128] = {};
  LaunchParams params_;
};

TEST_F(HostBackendTest, AcceptsOutOfPlaceAndInPlace) {
  EXPECT_TRUE(backend_->Validate(params_).ok());
  params_.outputs[1] = &memory_[128];
  EXPECT_TRUE(backend_->Validate(params_).ok()) << backend_->Validate(params_).ToString();
}

TEST_F(HostBackendTest, NullPointersAreFineWithoutElements) {
  params_.count = 0;
  params_.inputs[0] = nullptr;
  params_.outputs[1] = nullptr;
  EXPECT_TRUE(backend_->Validate(params_).ok());
  EXPECT_EQ(backend_->Run(params_, {0, 0}), 0u);
}

TEST_F(HostBackendTest, UnknownEnumsAreUnimplementedWithTheListOfWhatExists) {
  params_.codec = static_cast<Codec>(99);
  ExpectError(absl::StatusCode::kUnimplemented,
              "codec = 99: the host backend has none, fp8, int8, int6, int4, fp4, int3, lp4, lp3, "
              "lp3c, lp2");
  params_.codec = Codec::kLp3;
  params_.algorithm = static_cast<Algorithm>(3);
  ExpectError(absl::StatusCode::kUnimplemented,
              "algorithm = 3: the host backend has one_shot, two_shot");
  params_.algorithm = Algorithm::kOneShot;
  params_.dtype = static_cast<Dtype>(0);
  ExpectError(absl::StatusCode::kUnimplemented, "dtype = 0: the host backend has fp16, bf16, fp32");
  params_.dtype = Dtype::kFp16;
  params_.op = static_cast<ReduceOp>(7);
  ExpectError(absl::StatusCode::kUnimplemented, "op = 7: the host backend has sum, avg");
}

TEST_F(HostBackendTest, WorldSizeIsBounded) {
  params_.world_size = 0;
  ExpectError(absl::StatusCode::kInvalidArgument, "world_size = 0: want 1 to 16");
  params_.world_size = 17;
  ExpectError(absl::StatusCode::kInvalidArgument, "world_size = 17: want 1 to 16");
}

TEST_F(HostBackendTest, CountIsBoundedByTheAddressSpace) {
  params_.count = uint64_t{1} << 63;
  ExpectError(absl::StatusCode::kInvalidArgument,
              "count = 9223372036854775808: want at most 4611686018427387903 elements of bf16");
  params_.dtype = Dtype::kFp32;
  params_.count = (uint64_t{1} << 61);
  ExpectError(absl::StatusCode::kInvalidArgument,
              "count = 2305843009213693952: want at most 2305843009213693951 elements of fp32");
  params_.count = (uint64_t{1} << 61) - 1;
  params_.inputs[0] = reinterpret_cast<const void*>(~uint64_t{63});
  ExpectError(absl::StatusCode::kInvalidArgument,
              "inputs[0]: 9223372036854775804 bytes reach past the end of the address space");
}

TEST_F(HostBackendTest, PointersAreChecked) {
  params_.inputs[1] = nullptr;
  ExpectError(absl::StatusCode::kInvalidArgument, "inputs[1] = null: want 100 elements");
  params_.inputs[1] = reinterpret_cast<const std::byte*>(&memory_[128]) + 1;
  ExpectError(absl::StatusCode::kInvalidArgument,
              "inputs[1] is misaligned: address % 2 = 1, want 0 for bf16");
  params_.inputs[1] = &memory_[128];
  params_.outputs[0] = nullptr;
  ExpectError(absl::StatusCode::kInvalidArgument, "outputs[0] = null: want 100 elements");
}

TEST_F(HostBackendTest, OverlapIsRefused) {
  params_.outputs[0] = &memory_[50];
  ExpectError(absl::StatusCode::kInvalidArgument,
              "outputs[0] overlaps inputs[0] within 200 bytes: want outputs[0] equal to inputs[0] "
              "or disjoint from every other tensor");
  params_.outputs[0] = &memory_[128];
  ExpectError(absl::StatusCode::kInvalidArgument,
              "outputs[0] overlaps inputs[1] within 200 bytes: want outputs[0] equal to inputs[0] "
              "or disjoint from every other tensor");
  params_.outputs[0] = &memory_[3 * 128 + 99];
  ExpectError(absl::StatusCode::kInvalidArgument,
              "outputs[1] overlaps outputs[0] within 200 bytes: want outputs[1] equal to inputs[1] "
              "or disjoint from every other tensor");
  params_.outputs[0] = &memory_[2 * 128];
  params_.inputs[1] = params_.inputs[0];  // inputs may overlap
  EXPECT_TRUE(backend_->Validate(params_).ok());
}

TEST_F(HostBackendTest, AutoIsCodecNoneAndOneShotForSmallPayloads) {
  for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
    EXPECT_EQ(backend_->AutoCodec(dtype, uint64_t{1} << 30, 8), Codec::kNone);
  }
  const auto algorithm = [&](uint64_t payload_bytes, uint32_t world_size) {
    return backend_->AutoAlgorithm(Codec::kInt4, Dtype::kBf16, payload_bytes, world_size);
  };
  EXPECT_EQ(algorithm(uint64_t{1} << 40, 2), Algorithm::kOneShot);
  EXPECT_EQ(algorithm(458752, 4), Algorithm::kOneShot);
  EXPECT_EQ(algorithm(458753, 4), Algorithm::kTwoShot);
  EXPECT_EQ(algorithm(229376, 8), Algorithm::kOneShot);
  EXPECT_EQ(algorithm(229377, 8), Algorithm::kTwoShot);
}

TEST_F(HostBackendTest, DescribesTheMachine) {
  EXPECT_EQ(backend_->name(), "host");
  EXPECT_EQ(backend_->target(), SimdTargetName());
  ASSERT_EQ(backend_->devices().size(), 1u);
  const DeviceInfo device = backend_->devices()[0];
  EXPECT_EQ(device.id, "host");
  EXPECT_THAT(device.description, ::testing::ContainsRegex(", [0-9]+ cores?$"));
  EXPECT_EQ(device.memory_bytes / 1024, static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                            static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 1024);
  EXPECT_LE(AvailableMemoryBytes(), device.memory_bytes);
  EXPECT_GT(AvailableMemoryBytes(), 0u);
  EXPECT_EQ(backend_->instances().data(), AllInstances().data());
}

TEST_F(HostBackendTest, ArenasAreZeroedReservedAndSealed) {
  auto arena = backend_->AllocateArena(3 * 4096 + 1);
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  ASSERT_EQ((*arena)->bytes(), 4u * 4096);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*arena)->data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of((*arena)->data(), (*arena)->data() + (*arena)->bytes(),
                          [](std::byte b) { return b == std::byte{0}; }));
  const int fd = (*arena)->fd();
  struct stat info {};
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_EQ(info.st_size, 4 * 4096);
  EXPECT_EQ(info.st_blocks * 512, 4 * 4096) << "every page is reserved";
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(fcntl(fd, F_GET_SEALS) & kSeals, kSeals);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, 1 << 20), -1);
  EXPECT_EQ(errno, EPERM);

  // A client's mapping is the same memory.
  void* other = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(other, MAP_FAILED);
  (*arena)->data()[17] = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(other)[17], std::byte{42});
  // The descriptor may go; the memory stays.
  (*arena)->CloseFd();
  EXPECT_EQ((*arena)->fd(), -1);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
  (*arena)->data()[18] = std::byte{43};
  EXPECT_EQ(static_cast<std::byte*>(other)[18], std::byte{43});
  munmap(other, 4096);
}

TEST_F(HostBackendTest, ArenasThatDoNotFitAreRefused) {
  EXPECT_EQ(backend_->AllocateArena(0).status().message(),
            "arena bytes = 0: want 1 to 70368744177664");
  EXPECT_EQ(backend_->AllocateArena(kNoMemoryMax).status().message(),
            "arena bytes = 18446744073709551615: want 1 to 70368744177664");
  const absl::Status status = backend_->AllocateArena(kArenaBytesMax).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("arena bytes = 70368744177664: the machine has"),
                    HasSubstr("bytes available")));
}

// Reserved, never touched but for the last tile: the offsets there do not fit in 32 bits.
TEST_F(HostBackendTest, TheLastTileOfMoreThan4GiBIsRight) {
  constexpr uint64_t kCount = (uint64_t{5} << 30) / sizeof(float) * 2 + 3;  // 10 GiB of fp32
  constexpr uint64_t kBytes = kCount * sizeof(float);
  std::vector<float*> tensors;
  for (int i = 0; i < 4; ++i) {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) GTEST_SKIP() << "no 40 GiB of address space";
    tensors.push_back(static_cast<float*>(memory));
  }
  for (const Codec codec : {Codec::kNone, Codec::kInt8}) {
    LaunchParams params;
    params.codec = codec;
    params.dtype = Dtype::kFp32;
    params.world_size = 2;
    params.count = kCount;
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint64_t i = 1; i <= 3; ++i) tensors[r][kCount - i] = static_cast<float>(i * (r + 1));
      params.inputs[r] = tensors[r];
      params.outputs[r] = tensors[2 + r];
    }
    ASSERT_TRUE(backend_->Validate(params).ok()) << backend_->Validate(params).ToString();
    const uint64_t tiles = TileCount(kCount);
    EXPECT_EQ(backend_->Run(params, {tiles - 1, tiles}), 0u);
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint64_t i = 1; i <= 3; ++i) {
        EXPECT_NEAR(tensors[2 + r][kCount - i], 3.0f * static_cast<float>(i),
                    codec == Codec::kNone ? 0.0f : 0.1f);
      }
      EXPECT_EQ(tensors[2 + r][kCount - 4], 0.0f);
    }
  }
  for (float* tensor : tensors) munmap(tensor, kBytes);
}

TEST(TileArithmeticTest, IsRightUpTo2To40Elements) {
  for (const uint64_t count : {uint64_t{1} << 32, (uint64_t{1} << 33) + 2047, uint64_t{1} << 40,
                               (uint64_t{1} << 40) - 1}) {
    EXPECT_EQ(TileCount(count), (count + 2047) / 2048);
    for (const uint32_t n : {1u, 2u, 3u, 7u, 16u}) {
      uint64_t next = 0;
      for (uint32_t r = 0; r < n; ++r) {
        const TileRange owned = OwnedTiles(count, n, r);
        EXPECT_EQ(owned.first, next);
        EXPECT_LE(owned.last - owned.first, TileCount(count) / n + 1);
        EXPECT_GE(owned.last - owned.first, TileCount(count) / n);
        next = owned.last;
      }
      EXPECT_EQ(next, TileCount(count));
    }
  }
  // 2^40 fp32 elements, int4: 2^29 tiles of 1152 bytes.
  constexpr uint64_t kCount = uint64_t{1} << 40;
  constexpr uint64_t kEncoded = (uint64_t{1} << 29) * 1152;
  EXPECT_EQ(EncodedBytes(Codec::kInt4, Dtype::kFp32, kCount), kEncoded);
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kOneShot, Dtype::kFp32, 16, 3, kCount),
            15 * kEncoded);
  // two_shot: 15/16 of the tensor to the owners, the own 1/16 to 15 ranks.
  EXPECT_EQ(WireBytesSent(Codec::kInt4, Algorithm::kTwoShot, Dtype::kFp32, 16, 3, kCount),
            kEncoded / 16 * 15 * 2);
}

TEST(MemoryLimitTest, MeasuresAndRefusesBadOptions) {
  const auto limit =
      MeasureMemoryLimit({.payload_bytes = 1 << 16, .ranks = 3, .threads = 2, .repetitions = 3});
  ASSERT_TRUE(limit.ok()) << limit.status().ToString();
  EXPECT_EQ(limit->traffic_bytes, 6u << 16);
  EXPECT_GT(limit->seconds_min, 0);
  EXPECT_GE(limit->seconds_median, limit->seconds_min);
  const auto error = [](MemoryLimitOptions options) {
    return std::string(MeasureMemoryLimit(options).status().message());
  };
  EXPECT_EQ(error({.payload_bytes = 100}),
            "payload_bytes = 100: want a multiple of 64 from 64 to 2^46");
  EXPECT_EQ(error({.ranks = 17}), "ranks = 17: want 1 to 16");
  EXPECT_EQ(error({.threads = 2000}), "threads = 2000: want 0 (one a core) to 1024");
  EXPECT_EQ(error({.repetitions = 0}), "repetitions = 0: want 1 to 1000");
  EXPECT_THAT(error({.payload_bytes = kArenaBytesMax}), HasSubstr("the machine has"));
}

}  // namespace
}  // namespace qrd
