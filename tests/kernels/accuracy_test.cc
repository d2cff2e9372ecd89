// SPDX-License-Identifier: Apache-2.0
// Accuracy on the partial sums of a real model (tests/data/minilm): the scalar reference and the
// host backend reach the SQNR that the numpy program of the wire format reaches on the same data,
// and give its result bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference.h"
#include "kernels/types.h"

namespace qrd {
namespace {

constexpr uint64_t kTokenCount = 119;
constexpr uint64_t kChannelCount = 384;
constexpr uint64_t kElementCount = kTokenCount * kChannelCount;
// What the wire format allows an implementation to lose against the pinned value.
constexpr double kSlackDb = 0.1;

const std::string& DataDir() {
  static const std::string dir = std::string(QRD_TEST_DATA_DIR) + "/minilm/";
  return dir;
}

// The two algorithms, in the order of the arrays below.
constexpr std::array<Algorithm, 2> kAlgorithms = {Algorithm::kOneShot, Algorithm::kTwoShot};

// One all-reduce of the data: which projection, of which layer, on how many ranks, in which dtype.
struct Case {
  const char* projection;
  int layer;
  uint32_t world_size;
  Dtype dtype;
};

std::string NameOf(const Case& c) {
  return std::string(c.projection) + "_layer" + std::to_string(c.layer) + "_tp" +
         std::to_string(c.world_size) + "_" + std::string(Name(c.dtype));
}
void PrintTo(const Case& c, std::ostream* out) { *out << NameOf(c); }

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const auto& [projection, layer] :
       {std::pair{"attn_out", 3}, std::pair{"mlp_down", 3}, std::pair{"mlp_down", 5}}) {
    for (const uint32_t world_size : {2u, 4u}) {
      for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
        cases.push_back({projection, layer, world_size, dtype});
      }
    }
  }
  return cases;
}

// zlib's CRC-32.
uint32_t Crc32(const std::vector<std::byte>& data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const std::byte b : data) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

struct Expected {
  double sqnr_db;
  uint32_t result_crc32;
};
using ExpectedKey = std::tuple<std::string, int, uint32_t, Dtype, Codec, Algorithm>;

std::map<ExpectedKey, Expected> ReadExpected() {
  std::map<ExpectedKey, Expected> expected;
  std::ifstream file(DataDir() + "expected_sqnr.csv");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "projection,layer,ranks,dtype,codec,algorithm,sqnr_db,result_crc32");
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
    const auto dtype = cells.size() == 8 ? ParseDtype(cells[3]) : std::nullopt;
    const auto codec = cells.size() == 8 ? ParseCodec(cells[4]) : std::nullopt;
    const auto algorithm = cells.size() == 8 ? ParseAlgorithm(cells[5]) : std::nullopt;
    if (!dtype || !codec || !algorithm) {
      ADD_FAILURE() << "expected_sqnr.csv has a line that cannot be read: " << line;
      continue;
    }
    const ExpectedKey key{
        cells[0], std::stoi(cells[1]), static_cast<uint32_t>(std::stoul(cells[2])), *dtype,
        *codec,   *algorithm};
    expected[key] = {std::strtod(cells[6].c_str(), nullptr),
                     static_cast<uint32_t>(std::stoul(cells[7], nullptr, 16))};
  }
  return expected;
}

// The fp16 elements of one of the .npy files; empty and a test failure if it is not as README.md
// says.
std::vector<uint16_t> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  constexpr size_t kPreambleBytes = 10;  // magic, version, u16 length of the header
  if (bytes.size() < kPreambleBytes || bytes.compare(0, 8, "\x93NUMPY\x01\x00", 8) != 0) {
    ADD_FAILURE() << path << ": not a .npy file of version 1.0 (" << bytes.size() << " bytes)";
    return {};
  }
  const size_t data_at = kPreambleBytes + static_cast<uint8_t>(bytes[8]) +
                         (static_cast<size_t>(static_cast<uint8_t>(bytes[9])) << 8);
  const std::string header = bytes.substr(kPreambleBytes, data_at - kPreambleBytes);
  EXPECT_THAT(header, testing::HasSubstr("'descr': '<f2', 'fortran_order': False, "
                                         "'shape': (119, 384)"))
      << path;
  if (bytes.size() != data_at + kElementCount * sizeof(uint16_t)) {
    ADD_FAILURE() << path << ": " << bytes.size() << " bytes";
    return {};
  }
  std::vector<uint16_t> elements(kElementCount);
  std::memcpy(elements.data(), bytes.data() + data_at, kElementCount * sizeof(uint16_t));
  return elements;
}

std::vector<double> Widen(Dtype dtype, const std::vector<std::byte>& tensor) {
  std::vector<float> wide(kElementCount);
  ReferenceWidenToFp32(dtype, tensor.data(), kElementCount, wide.data());
  return {wide.begin(), wide.end()};
}

double SqnrDb(const std::vector<double>& exact, const std::vector<double>& result) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    signal += exact[i] * exact[i];
    noise += (exact[i] - result[i]) * (exact[i] - result[i]);
  }
  return noise == 0 ? INFINITY : 10 * std::log10(signal / noise);
}

class RealModelAccuracyTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    expected_ = ReadExpected();
    exact_.assign(kElementCount, 0.0);
    for (uint32_t rank = 0; rank < c.world_size; ++rank) {
      const std::vector<uint16_t> fp16 =
          ReadNpy(DataDir() + c.projection + ".layer" + std::to_string(c.layer) + ".tp" +
                  std::to_string(c.world_size) + ".rank" + std::to_string(rank) + ".npy");
      ASSERT_EQ(fp16.size(), kElementCount);
      std::vector<float> wide(kElementCount);
      std::transform(fp16.begin(), fp16.end(), wide.begin(), ReferenceWidenFp16);
      std::vector<std::byte>& input = inputs_.emplace_back(TensorBytes());
      ReferenceRoundToDtype(c.dtype, wide.data(), kElementCount, input.data());
      const std::vector<double> value = Widen(c.dtype, input);
      for (uint64_t i = 0; i < kElementCount; ++i) exact_[i] += value[i];
    }
  }

  static size_t TensorBytes() { return kElementCount * DtypeBytes(GetParam().dtype); }

  // The result is that of the numpy program.
  void Check(Codec codec, Algorithm algorithm, const std::vector<std::byte>& result) const {
    const Case& c = GetParam();
    SCOPED_TRACE(std::string(Name(codec)) + " " + std::string(Name(algorithm)));
    const auto it =
        expected_.find({c.projection, c.layer, c.world_size, c.dtype, codec, algorithm});
    ASSERT_NE(it, expected_.end()) << "expected_sqnr.csv has no such line";
    EXPECT_GE(SqnrDb(exact_, Widen(c.dtype, result)), it->second.sqnr_db - kSlackDb);
    EXPECT_EQ(Crc32(result), it->second.result_crc32);
  }

  std::map<ExpectedKey, Expected> expected_;
  std::vector<std::vector<std::byte>> inputs_;  // one tensor a rank
  std::vector<double> exact_;                   // their sum
};

TEST_P(RealModelAccuracyTest, ReferenceReachesThePinnedSqnr) {
  const Case& c = GetParam();
  std::vector<const void*> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.data());
  for (const Codec codec : kAllCodecs) {
    for (const Algorithm algorithm : kAlgorithms) {
      std::vector<std::byte> result(TensorBytes());
      ReferenceAllReduce(codec, algorithm, c.dtype, ReduceOp::kSum, c.world_size, kElementCount,
                         inputs.data(), result.data());
      Check(codec, algorithm, result);
    }
  }
}

TEST_P(RealModelAccuracyTest, HostBackendReachesThePinnedSqnrOnEveryRank) {
  const Case& c = GetParam();
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  std::vector<std::vector<std::byte>> outputs(c.world_size);
  for (const Codec codec : kAllCodecs) {
    for (const Algorithm algorithm : kAlgorithms) {
      LaunchParams params;
      params.codec = codec;
      params.algorithm = algorithm;
      params.dtype = c.dtype;
      params.world_size = c.world_size;
      params.count = kElementCount;
      for (uint32_t rank = 0; rank < c.world_size; ++rank) {
        outputs[rank].assign(TensorBytes(), std::byte{0xA5});
        params.inputs[rank] = inputs_[rank].data();
        params.outputs[rank] = outputs[rank].data();
      }
      const absl::Status valid = backend->Validate(params);
      ASSERT_TRUE(valid.ok()) << valid;
      EXPECT_EQ(backend->Run(params, {0, TileCount(kElementCount)}), 0u) << "NaN or Inf";
      Check(codec, algorithm, outputs[0]);
      for (uint32_t rank = 1; rank < c.world_size; ++rank) {
        EXPECT_TRUE(outputs[rank] == outputs[0])
            << Name(codec) << " " << Name(algorithm) << ": rank " << rank << " differs from rank 0";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(MiniLm, RealModelAccuracyTest, testing::ValuesIn(AllCases()),
                         [](const auto& test) { return NameOf(test.param); });

TEST(RealModelExpectedTest, FileHasOneLineForEachCaseCodecAndAlgorithm) {
  EXPECT_EQ(ReadExpected().size(), AllCases().size() * kCodecCount * kAlgorithms.size());
}

}  // namespace
}  // namespace qrd
