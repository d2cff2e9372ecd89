// SPDX-License-Identifier: Apache-2.0
// The golden files of epilogues: raw tensors, described by index.json (datasets of inputs, cases of
// options and outputs).
//
// Thread safety: immutable once made.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "rms_norm_case.h"

namespace qrd::testing {

class GoldenEpilogue {
 public:
  struct Case {
    RmsNormShape shape;
    RmsNormOptions options;
  };

  explicit GoldenEpilogue(const std::filesystem::path& folder) : folder_(folder) {
    index_ = nlohmann::json::parse(ReadText("index.json"), nullptr, false);
  }
  bool is_readable() const { return index_.is_object() && index_.contains("cases"); }
  const nlohmann::json& cases() const { return index_.at("cases"); }

  Case CaseOf(const nlohmann::json& record, Algorithm algorithm) const {
    const nlohmann::json& dataset = DatasetOf(record);
    Case c;
    c.shape.algorithm = algorithm;
    c.shape.dtype = ParseDtype(dataset.at("dtype").get<std::string>()).value();
    c.shape.world_size = dataset.at("world");
    c.shape.tokens = dataset.at("tokens");
    c.shape.hidden = dataset.at("hidden");
    c.shape.has_residual = !dataset.at("residual").is_null();
    c.options.gemma = record.at("gemma");
    c.options.weight_is_fp32 = dataset.at("weight_dtype") == "fp32";
    c.options.quant = ParseQuant(record.at("quant").get<std::string>()).value();
    c.options.scale_group = record.at("scale_group");
    c.options.divisor = record.at("divisor").is_null() ? 0 : record.at("divisor").get<float>();
    c.options.mirror = record.at("mirror");
    c.options.eps = dataset.at("eps");
    return c;
  }

  // Runs a case and compares every output that the files have.
  template <typename Buffer>
  void Run(const nlohmann::json& record, Algorithm algorithm,
           const std::function<void(const LaunchParams&)>& run,
           const typename RmsNormTensors<Buffer>::Check& check) const {
    const nlohmann::json& dataset = DatasetOf(record);
    const Case c = CaseOf(record, algorithm);
    using Tensors = RmsNormTensors<Buffer>;
    const Tensors tensors(c.shape);
    const auto upload = [&](const Buffer& buffer, const nlohmann::json& name) {
      const std::string bytes = ReadText(name);
      Tensors::UploadPart(buffer, bytes.data(), bytes.size());
    };
    for (uint32_t r = 0; r < c.shape.world_size; ++r) {
      upload(tensors.Input(r), dataset.at("inputs")[r]);
      upload(tensors.Weight(r), dataset.at("weight"));
      if (c.shape.has_residual) upload(tensors.Residual(r), dataset.at("residual"));
    }
    run(tensors.Params(c.options));
    const nlohmann::json& outputs = record.at("outputs");
    for (uint32_t r = 0; r < c.shape.world_size; ++r) {
      const auto compare = [&](const char* name, const Buffer& buffer) {
        if (!outputs.contains(name)) return;
        const std::string want = ReadText(outputs.at(name));
        const Bytes got = buffer.Download();
        check(!want.empty() && want.size() <= got.size() &&
                  std::memcmp(want.data(), got.data(), want.size()) == 0,
              std::string(name) + " of golden " + record.at("name").get<std::string>() + " " +
                  std::string(Name(algorithm)) + " rank " + std::to_string(r));
      };
      compare("residual_out", tensors.Sum(c.options, r));
      compare("out", tensors.Normed(c.options, r));
      compare("mirror", tensors.Normed(c.options, r));
      compare("out8", tensors.Codes(r));
      compare("scales", tensors.Scales(r));
    }
  }

 private:
  std::string ReadText(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  const nlohmann::json& DatasetOf(const nlohmann::json& record) const {
    for (const auto& dataset : index_.at("datasets")) {
      if (dataset.at("name") == record.at("dataset")) return dataset;
    }
    return index_.at("datasets").at(0);
  }

  std::filesystem::path folder_;
  nlohmann::json index_;
};

}  // namespace qrd::testing
