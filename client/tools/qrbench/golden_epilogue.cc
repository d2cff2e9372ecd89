// SPDX-License-Identifier: Apache-2.0
#include "client/tools/qrbench/golden_epilogue.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/tools/qrbench/file.h"
#include "client/tools/qrbench/json_fields.h"
#include "kernels/reference_rms_norm.h"

namespace qrd::tools {
namespace {

using Bytes = std::vector<std::byte>;
using Json = nlohmann::json;

constexpr char kFormat[] = "qrd-epilogue-golden";
constexpr uint64_t kTokensMax = uint64_t{1} << 32;

std::string FileName(const char* field, const Json& value) {
  const auto name = value.is_string() ? value.get<std::string>() : "";
  if (name.empty() || absl::StrContains(name, '/')) RefuseField(field, value, "a file's name");
  return name;
}

void ReadDataset(const Json& set, EpilogueCase* c) {
  LaunchParams& p = c->params;
  p.dtype = NamedOf(set, "dtype", ParseDtype);
  p.world_size = static_cast<uint32_t>(NumberOf(set, "world", 1, kWorldSizeMax));
  p.epilogue = Epilogue::kRmsNorm;
  RmsNormParams& n = p.rms_norm;
  n.tokens = NumberOf(set, "tokens", 1, kTokensMax);
  n.hidden = static_cast<uint32_t>(NumberOf(set, "hidden", kHiddenMin, kHiddenMax));
  n.eps = FloatOf(set, "eps");
  n.weight_dtype = NamedOf(set, "weight_dtype", ParseDtype);
  p.count = n.tokens * n.hidden;
  const Json& inputs = FieldOf(set, "inputs");
  if (!inputs.is_array()) RefuseField("inputs", inputs, "a list of files");
  for (const Json& input : inputs) c->inputs.push_back(FileName("inputs", input));
  if (c->inputs.size() != p.world_size) {
    throw std::invalid_argument(absl::StrCat(c->inputs.size(), " inputs for world ", p.world_size));
  }
  c->weight = FileName("weight", FieldOf(set, "weight"));
  c->has_residual = !FieldOf(set, "residual").is_null();
  if (c->has_residual) c->residual = FileName("residual", set.at("residual"));
}

void ReadCase(const Json& item, EpilogueCase* c) {
  c->params.codec = NamedOf(item, "codec", ParseCodec);
  RmsNormParams& n = c->params.rms_norm;
  n.gemma = FlagOf(item, "gemma");
  n.quant = NamedOf(item, "quant", ParseQuant);
  n.scale_group = static_cast<uint32_t>(NumberOf(item, "scale_group", 0, kHiddenMax));
  if (!FieldOf(item, "divisor").is_null()) n.divisor = FloatOf(item, "divisor");
  c->has_mirror = FlagOf(item, "mirror");
  const Json& outputs = FieldOf(item, "outputs");
  if (!outputs.is_object()) RefuseField("outputs", outputs, "an object of files");
  for (const auto& [name, file] : outputs.items()) {
    if (name != "rstd")
      c->outputs[name] = FileName(name.c_str(), file);  // which is for debugging only
  }
  for (const auto& [name, bytes] : ResultBytes(*c)) {
    if (c->outputs.count(name) == 0) {
      throw std::invalid_argument(absl::StrCat("outputs has no ", name));
    }
  }
}

const Json& DatasetOf(const Json& index, const std::string& name) {
  for (const Json& set : FieldOf(index, "datasets")) {
    if (TextOf(set, "name") == name) return set;
  }
  throw std::invalid_argument(absl::StrCat("there is no dataset \"", name.substr(0, 40), "\""));
}

EpilogueCase ReadRecord(const Json& index, const Json& item) {
  EpilogueCase c;
  try {
    c.name = TextOf(item, "name").substr(0, 80);
    ReadDataset(DatasetOf(index, TextOf(item, "dataset")), &c);
    ReadCase(item, &c);
  } catch (const std::exception& error) {
    c.problem = error.what();
  }
  return c;
}

// Memory of the host for a tensor, aligned as operations want it.
struct Aligned {
  explicit Aligned(uint64_t bytes) : memory(bytes + 64, std::byte{0xA5}) {}
  explicit Aligned(const Bytes& from) : Aligned(from.size()) {
    std::copy(from.begin(), from.end(), data());
  }
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64;
  }
  Bytes memory;
};

// The case in host memory, run by `run`.
absl::StatusOr<std::vector<EpilogueResults>> RunOnHost(
    const EpilogueCase& c, LaunchParams params, const EpilogueTensors& tensors,
    const std::function<absl::Status(const LaunchParams&)>& run) {
  Aligned residual(tensors.residual), weight(tensors.weight);
  std::vector<Aligned> inputs;
  std::vector<std::map<std::string, Aligned>> results(params.world_size);
  for (const Bytes& input : tensors.inputs) inputs.emplace_back(input);
  for (uint32_t rank = 0; rank < params.world_size; ++rank) {
    for (const auto& [name, bytes] : ResultBytes(c)) results[rank].emplace(name, Aligned(bytes));
    SetRank(
        c, rank, inputs[rank].data(), residual.data(), weight.data(),
        [&](const std::string& name) { return results[rank].at(name).data(); }, &params);
  }
  if (absl::Status status = run(params); !status.ok()) return status;
  std::vector<EpilogueResults> out(params.world_size);
  for (uint32_t rank = 0; rank < params.world_size; ++rank) {
    for (const auto& [name, bytes] : ResultBytes(c)) {
      std::byte* data = results[rank].at(name).data();
      out[rank][name].assign(data, data + bytes);
    }
  }
  return out;
}

}  // namespace

bool EpilogueFolder::Is(const std::string& directory) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/index.json"));
  if (!text.ok()) return false;
  const Json index = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (index.is_object()) return index.contains("format");
  // Broken: whoever meant it to be one shall hear of that.
  return index.is_discarded() && absl::StrContains(*text, kFormat);
}

absl::StatusOr<EpilogueFolder> EpilogueFolder::Load(const std::string& directory) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/index.json"));
  if (!text.ok()) return text.status();
  const Json index = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(directory, "/index.json: not valid JSON"));
  }
  const auto expect = [&](const char* field, const Json& want) {
    if (index.is_object() && index.contains(field) && index[field] == want) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(directory, "/index.json: ", field, " is ",
                     index.is_object() && index.contains(field) ? index[field].dump() : "missing",
                     "; want ", want.dump()));
  };
  for (const absl::Status& status :
       {expect("format", kFormat), expect("version", 1), expect("byte_order", "little")}) {
    if (!status.ok()) return status;
  }
  if (!index.is_object() || !index.contains("cases") || !index["cases"].is_array() ||
      index["cases"].empty()) {
    return absl::InvalidArgumentError(absl::StrCat(directory, "/index.json: no cases"));
  }
  EpilogueFolder folder;
  folder.directory_ = directory;
  for (const Json& item : index["cases"]) folder.cases_.push_back(ReadRecord(index, item));
  return folder;
}

absl::StatusOr<Bytes> EpilogueFolder::Read(const std::string& name, uint64_t bytes) const {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory_, "/", name));
  if (!text.ok()) return text.status();
  if (text->size() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", text->size(), " bytes, want ", bytes));
  }
  const auto view = std::as_bytes(std::span(*text));
  return Bytes(view.begin(), view.end());
}

std::map<std::string, uint64_t> ResultBytes(const EpilogueCase& c) {
  const RmsNormParams& n = c.params.rms_norm;
  const uint64_t bytes = c.params.count * DtypeBytes(c.params.dtype);
  std::map<std::string, uint64_t> results = {{"residual_out", bytes}};
  if (n.quant == Quant::kNone) {
    results["out"] = bytes;
    return results;
  }
  const uint64_t groups =
      n.scale_group == 0 ? 1 : (n.hidden + uint64_t{n.scale_group} - 1) / n.scale_group;
  results["out8"] = c.params.count;
  results["scales"] = n.tokens * groups * sizeof(float);
  if (c.has_mirror) results["mirror"] = bytes;
  return results;
}

void SetRank(const EpilogueCase& c, uint32_t rank, const void* input, const void* residual,
             const void* weight, const std::function<void*(const std::string&)>& result,
             LaunchParams* params) {
  RmsNormParams& n = params->rms_norm;
  params->inputs[rank] = input;
  n.residual[rank] = c.has_residual ? residual : nullptr;
  n.weight[rank] = weight;
  for (const auto& [name, bytes] : ResultBytes(c)) {
    void* address = result(name);
    if (name == "residual_out") n.residual_out[rank] = address;
    if (name == "out") n.out[rank] = address;
    if (name == "out8") n.out8[rank] = static_cast<uint8_t*>(address);
    if (name == "scales") n.scales[rank] = static_cast<float*>(address);
    if (name == "mirror") n.mirror[rank] = address;
  }
}

EpilogueRunner HostRunner(Backend* backend) {
  return
      [backend](const EpilogueCase& c, const LaunchParams& params, const EpilogueTensors& tensors) {
        return RunOnHost(c, params, tensors, [backend](const LaunchParams& p) {
          if (absl::Status status = backend->Validate(p); !status.ok()) return status;
          // In three parts, as the engine would.
          const uint64_t units = backend->UnitCount(p);
          for (uint64_t part = 0; part < 3; ++part) {
            backend->Run(p, {units * part / 3, units * (part + 1) / 3});
          }
          return absl::OkStatus();
        });
      };
}

EpilogueRunner ReferenceRunner() {
  return [](const EpilogueCase& c, const LaunchParams& params, const EpilogueTensors& tensors) {
    return RunOnHost(c, params, tensors, [](const LaunchParams& p) {
      ReferenceAllReduceRmsNorm(p);
      return absl::OkStatus();
    });
  };
}

CaseResult CheckEpilogueCase(const EpilogueFolder& folder, const EpilogueCase& c,
                             const std::vector<std::pair<std::string, EpilogueRunner>>& runners) {
  if (!c.problem.empty()) return {Verdict::kFailed, {c.problem}};
  const auto failed = [](const absl::Status& status) {
    return CaseResult{Verdict::kFailed, {std::string(status.message())}};
  };
  const uint64_t bytes = c.params.count * DtypeBytes(c.params.dtype);
  EpilogueTensors tensors;
  for (const std::string& name : c.inputs) {
    absl::StatusOr<Bytes> input = folder.Read(name, bytes);
    if (!input.ok()) return failed(input.status());
    tensors.inputs.push_back(*std::move(input));
  }
  absl::StatusOr<Bytes> weight =
      folder.Read(c.weight, c.params.rms_norm.hidden * DtypeBytes(c.params.rms_norm.weight_dtype));
  if (!weight.ok()) return failed(weight.status());
  tensors.weight = *std::move(weight);
  if (c.has_residual) {
    absl::StatusOr<Bytes> residual = folder.Read(c.residual, bytes);
    if (!residual.ok()) return failed(residual.status());
    tensors.residual = *std::move(residual);
  }
  EpilogueResults wants;
  for (const auto& [name, size] : ResultBytes(c)) {
    absl::StatusOr<Bytes> want = folder.Read(c.outputs.at(name), size);
    if (!want.ok()) return failed(want.status());
    wants[name] = *std::move(want);
  }
  CaseResult result;
  // The files are of codec none, for which both algorithms give the same bits.
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    LaunchParams params = c.params;
    params.algorithm = algorithm;
    for (const auto& [who, runner] : runners) {
      const absl::StatusOr<std::vector<EpilogueResults>> got = runner(c, params, tensors);
      if (!got.ok()) return failed(got.status());
      for (uint32_t rank = 0; rank < params.world_size; ++rank) {
        for (const auto& [name, want] : wants) {
          CompareBytes(absl::StrCat(name, " on rank ", rank, " (", who, ", ",
                                    std::string(Name(algorithm)), ")"),
                       (*got)[rank].at(name), want, 1, result);
        }
      }
    }
  }
  return result;
}

}  // namespace qrd::tools
