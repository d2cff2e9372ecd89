// SPDX-License-Identifier: Apache-2.0
// Reads folders in the golden format (wire format, section 10). QRD_GOLDEN_DIRS, a list separated
// by
// ':', adds folders to the one in tests/data.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/types.h"

namespace qrd::testing {

struct GoldenFolder {
  std::string path;
  std::string inputs, wire, decoded, results;  // contents of the .bin files
  std::vector<nlohmann::json> records;

  // The record, for messages.
  static std::string Describe(const nlohmann::json& record) { return record.dump(); }
  static Codec CodecOf(const nlohmann::json& record) {
    return ParseCodec(record.at("codec").get<std::string>()).value();
  }
  static Dtype DtypeOf(const nlohmann::json& record, const char* key = "dtype") {
    return ParseDtype(record.at(key).get<std::string>()).value();
  }
};

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline GoldenFolder LoadGoldenFolder(const std::string& path) {
  const std::filesystem::path folder(path);
  GoldenFolder golden{path,
                      ReadFile(folder / "inputs.bin"),
                      ReadFile(folder / "wire.bin"),
                      ReadFile(folder / "decoded.bin"),
                      ReadFile(folder / "results.bin"),
                      {}};
  const auto index = nlohmann::json::parse(ReadFile(folder / "index.json"), nullptr, false);
  EXPECT_TRUE(index.is_array()) << path << "/index.json";
  if (index.is_array()) golden.records.assign(index.begin(), index.end());
  return golden;
}

inline std::vector<std::string> GoldenFolders() {
  std::vector<std::string> folders = {QRD_TEST_DATA_DIR "/golden/codec"};
  const char* more = std::getenv("QRD_GOLDEN_DIRS");
  std::istringstream list(more != nullptr ? more : "");
  for (std::string folder; std::getline(list, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

// A copy of bytes, aligned as operator new aligns (the offsets in the files are multiples of 16,
// but the strides between ranks are not).
inline std::vector<std::byte> Slice(const std::string& blob, uint64_t offset, uint64_t bytes) {
  EXPECT_LE(offset + bytes, blob.size());
  if (offset + bytes > blob.size()) return std::vector<std::byte>(bytes);
  const auto* data = reinterpret_cast<const std::byte*>(blob.data());
  return {data + offset, data + offset + bytes};
}

}  // namespace qrd::testing
