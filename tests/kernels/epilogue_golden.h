// SPDX-License-Identifier: Apache-2.0
// Reads folders of golden files for all-reduce with RMSNorm: index.json and raw little-endian
// tensors. QRD_EPILOGUE_GOLDEN_DIRS, a list separated by ':', adds folders to the one in
// tests/data.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "golden_files.h"
#include "rms_norm_case.h"

namespace qrd::testing {

struct EpilogueGolden {
  std::string name;
  RmsNormShape shape;
  RmsNormTensors tensors;
  RmsNormResults expected;  // the same on every rank
};

class EpilogueGoldenFolder {
 public:
  explicit EpilogueGoldenFolder(const std::string& path) : path_(path) {
    index_ = nlohmann::json::parse(ReadFile(path_ / "index.json"), nullptr, false);
    EXPECT_TRUE(index_.is_object() && index_.value("format", "") == "qrd-epilogue-golden")
        << path << "/index.json";
  }

  std::vector<EpilogueGolden> Load() const {
    std::vector<EpilogueGolden> goldens;
    if (!index_.is_object()) return goldens;
    for (const nlohmann::json& item : index_.at("cases")) goldens.push_back(LoadCase(item));
    return goldens;
  }

 private:
  Bytes Read(const nlohmann::json& name) const {
    const std::string blob = ReadFile(path_ / name.get<std::string>());
    EXPECT_EQ(blob.size(), index_.at("files").at(name.get<std::string>()).at("bytes")) << name;
    return Slice(blob, 0, blob.size());
  }
  const nlohmann::json& DatasetOf(const nlohmann::json& item) const {
    for (const nlohmann::json& dataset : index_.at("datasets")) {
      if (dataset.at("name") == item.at("dataset")) return dataset;
    }
    ADD_FAILURE() << "no dataset " << item.at("dataset");
    return index_.at("datasets").at(0);
  }

  EpilogueGolden LoadCase(const nlohmann::json& item) const {
    const nlohmann::json& dataset = DatasetOf(item);
    EpilogueGolden golden;
    golden.name = item.at("name");
    RmsNormShape& shape = golden.shape;
    shape.codec = GoldenFolder::CodecOf(item);
    shape.dtype = GoldenFolder::DtypeOf(dataset);
    shape.weight_dtype = GoldenFolder::DtypeOf(dataset, "weight_dtype");
    shape.world_size = dataset.at("world");
    shape.tokens = dataset.at("tokens");
    shape.hidden = dataset.at("hidden");
    shape.eps = dataset.at("eps");
    shape.gemma = item.at("gemma");
    shape.quant = ParseQuant(item.at("quant").get<std::string>()).value();
    shape.scale_group = item.at("scale_group");
    shape.divisor = item.at("divisor").is_null() ? 0.0f : item.at("divisor").get<float>();
    shape.mirror = item.at("mirror");
    shape.has_residual = !dataset.at("residual").is_null();
    for (const nlohmann::json& file : dataset.at("inputs")) {
      golden.tensors.inputs.push_back(Read(file));
    }
    if (shape.has_residual) golden.tensors.residuals = {Read(dataset.at("residual"))};
    golden.tensors.weights = {Read(dataset.at("weight"))};
    const nlohmann::json& outputs = item.at("outputs");
    const auto output = [&](const char* name) {
      return outputs.contains(name) ? Read(outputs.at(name)) : Bytes();
    };
    golden.expected = {output("residual_out"), output("out"), output("out8"), output("scales"),
                       output("mirror")};
    return golden;
  }

  std::filesystem::path path_;
  nlohmann::json index_;
};

inline std::vector<std::string> EpilogueGoldenFolders() {
  std::vector<std::string> folders = {QRD_TEST_DATA_DIR "/golden/epilogue"};
  const char* more = std::getenv("QRD_EPILOGUE_GOLDEN_DIRS");
  std::istringstream list(more != nullptr ? more : "");
  for (std::string folder; std::getline(list, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

}  // namespace qrd::testing
