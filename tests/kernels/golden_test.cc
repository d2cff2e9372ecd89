// SPDX-License-Identifier: Apache-2.0
// Every record of the golden folders, byte for byte, through the scalar reference and through the
// SIMD code of every instruction set of this machine.
#include <cstring>

#include "golden_files.h"
#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/reference.h"
#include "simd_targets.h"

namespace qrd {
namespace {

using testing::GoldenFolder;
using Bytes = std::vector<std::byte>;

class CodecGoldenTest : public ::testing::Test {
 protected:
  struct Functions {
    decltype(&Encode) encode;
    decltype(&EncodeFp32) encode_fp32;
    decltype(&Decode) decode;
  };
  static constexpr Functions kSimd = {Encode, EncodeFp32, Decode};
  static constexpr Functions kReference = {ReferenceEncode, ReferenceEncodeFp32, ReferenceDecode};

  // Checks one record of kind "codec".
  static void Check(const GoldenFolder& golden, const nlohmann::json& record, Functions functions) {
    const Codec codec = GoldenFolder::CodecOf(record);
    const Dtype dtype = GoldenFolder::DtypeOf(record);
    const Dtype in_type = GoldenFolder::DtypeOf(record, "in_type");
    const auto count = record.at("n").get<uint64_t>();
    const auto wire_bytes = record.at("wire_size").get<uint64_t>();
    ASSERT_EQ(EncodedBytes(codec, dtype, count), wire_bytes) << GoldenFolder::Describe(record);

    const Bytes input =
        testing::Slice(golden.inputs, record.at("input"), count * DtypeBytes(in_type));
    const Bytes want_wire = testing::Slice(golden.wire, record.at("wire"), wire_bytes);
    const Bytes want_values =
        testing::Slice(golden.decoded, record.at("decoded"), count * sizeof(float));

    Bytes wire(wire_bytes);
    if (in_type == dtype) {
      functions.encode(codec, dtype, input.data(), count, wire.data());
    } else {
      functions.encode_fp32(codec, dtype, reinterpret_cast<const float*>(input.data()), count,
                            wire.data());
    }
    EXPECT_TRUE(wire == want_wire) << "wire of " << GoldenFolder::Describe(record);
    Bytes values(count * sizeof(float));
    functions.decode(codec, dtype, want_wire.data(), count,
                     reinterpret_cast<float*>(values.data()));
    EXPECT_TRUE(values == want_values) << "decoded of " << GoldenFolder::Describe(record);
  }

  static int CheckAll(const GoldenFolder& golden, Functions functions) {
    int checked = 0;
    for (const auto& record : golden.records) {
      if (record.at("test") != "codec") continue;
      Check(golden, record, functions);
      ++checked;
    }
    return checked;
  }
};

TEST_F(CodecGoldenTest, ReferenceGivesTheGoldenBytes) {
  for (const std::string& folder : testing::GoldenFolders()) {
    SCOPED_TRACE(folder);
    EXPECT_GT(CheckAll(testing::LoadGoldenFolder(folder), kReference), 0);
  }
}

TEST_F(CodecGoldenTest, EverySimdTargetGivesTheGoldenBytes) {
  for (const std::string& folder : testing::GoldenFolders()) {
    SCOPED_TRACE(folder);
    const GoldenFolder golden = testing::LoadGoldenFolder(folder);
    testing::ForEachSimdTarget([&] { EXPECT_GT(CheckAll(golden, kSimd), 0); });
  }
}

TEST_F(CodecGoldenTest, ReferenceAllReduceGivesTheGoldenResults) {
  for (const std::string& folder : testing::GoldenFolders()) {
    SCOPED_TRACE(folder);
    const GoldenFolder golden = testing::LoadGoldenFolder(folder);
    int checked = 0;
    for (const auto& record : golden.records) {
      if (record.at("test") != "reduce") continue;
      const Dtype dtype = GoldenFolder::DtypeOf(record);
      const auto count = record.at("n").get<uint64_t>();
      const auto world_size = record.at("ranks").get<uint32_t>();
      std::vector<Bytes> inputs;
      std::vector<const void*> pointers;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        const uint64_t offset =
            record.at("input").get<uint64_t>() + rank * record.at("stride").get<uint64_t>();
        inputs.push_back(testing::Slice(golden.inputs, offset, count * DtypeBytes(dtype)));
        pointers.push_back(inputs.back().data());
      }
      Bytes output(count * DtypeBytes(dtype));
      ReferenceAllReduce(GoldenFolder::CodecOf(record),
                         ParseAlgorithm(record.at("algorithm").get<std::string>()).value(), dtype,
                         ParseReduceOp(record.at("op").get<std::string>()).value(), world_size,
                         count, pointers.data(), output.data());
      EXPECT_TRUE(output == testing::Slice(golden.results, record.at("result"), output.size()))
          << GoldenFolder::Describe(record);
      ++checked;
    }
    EXPECT_GT(checked, 0);
  }
}

}  // namespace
}  // namespace qrd
