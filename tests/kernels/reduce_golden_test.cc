// SPDX-License-Identifier: Apache-2.0
// Every "reduce" record of the golden folders through the host backend, byte for byte: out of place
// and in place, whole and tile by tile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collective_case.h"
#include "golden_files.h"
#include "kernels/backend.h"
#include "kernels/types.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::CaseShape;
using testing::CollectiveCase;
using testing::GoldenFolder;

void Check(const GoldenFolder& golden, const nlohmann::json& record, Backend& backend) {
  CaseShape shape;
  shape.codec = GoldenFolder::CodecOf(record);
  shape.dtype = GoldenFolder::DtypeOf(record);
  shape.algorithm = ParseAlgorithm(record.at("algorithm").get<std::string>()).value();
  shape.op = ParseReduceOp(record.at("op").get<std::string>()).value();
  shape.world_size = record.at("ranks").get<uint32_t>();
  shape.count = record.at("n").get<uint64_t>();
  std::vector<Bytes> inputs;
  for (uint32_t r = 0; r < shape.world_size; ++r) {
    inputs.push_back(testing::Slice(
        golden.inputs, record.at("input").get<uint64_t>() + r * record.at("stride").get<uint64_t>(),
        shape.TensorBytes()));
  }
  const Bytes expected = testing::Slice(golden.results, record.at("result"), shape.TensorBytes());
  for (const uint32_t in_place_mask : {0u, testing::kAllInPlace}) {
    shape.in_place_mask = in_place_mask;
    CollectiveCase whole(shape, inputs);
    whole.Run(backend);
    whole.ExpectEqual(expected);
    CollectiveCase tiles(shape, inputs);
    tiles.Run(backend, [](Backend& b, const LaunchParams& params) {
      uint64_t nonfinite = 0;
      for (uint64_t tile = TileCount(params.count); tile-- > 0;) {
        nonfinite += b.Run(params, {tile, tile + 1});
      }
      return nonfinite;
    });
    tiles.ExpectEqual(expected);
  }
}

TEST(ReduceGoldenTest, EveryRecordGivesTheGoldenBytes) {
  const std::unique_ptr<Backend> backend = MakeHostBackend();
  for (const std::string& folder : testing::GoldenFolders()) {
    const GoldenFolder golden = testing::LoadGoldenFolder(folder);
    int checked = 0;
    for (const nlohmann::json& record : golden.records) {
      if (record.at("test") != "reduce") continue;
      SCOPED_TRACE(GoldenFolder::Describe(record));
      Check(golden, record, *backend);
      ++checked;
    }
    EXPECT_GT(checked, 0) << folder;
  }
}

}  // namespace
}  // namespace qrd
