// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/proto_convert.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"

namespace qrd {
namespace {

std::string ValueNames(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(type.value(i)->name());
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

static_assert(v1::CODEC_NONE == static_cast<int>(Codec::kNone) + 1);
static_assert(v1::CODEC_LP2 == static_cast<int>(Codec::kLp2) + 1);
static_assert(v1::ALGORITHM_ONE_SHOT == static_cast<int>(Algorithm::kOneShot));
static_assert(v1::ALGORITHM_TWO_SHOT == static_cast<int>(Algorithm::kTwoShot));
static_assert(v1::ALGORITHM_LIBRARY == static_cast<int>(Algorithm::kLibrary));
static_assert(v1::EPILOGUE_RMS_NORM == static_cast<int>(Epilogue::kRmsNorm) + 1);
static_assert(v1::DTYPE_FP16 == static_cast<int>(Dtype::kFp16));
static_assert(v1::DTYPE_FP32 == static_cast<int>(Dtype::kFp32));

std::optional<Codec> FromProto(v1::Codec codec) {
  if (codec < v1::CODEC_NONE || codec > v1::CODEC_LP2) return std::nullopt;
  return static_cast<Codec>(static_cast<int>(codec) - 1);
}

std::optional<Algorithm> FromProto(v1::Algorithm algorithm) {
  if (algorithm < v1::ALGORITHM_ONE_SHOT || algorithm > v1::ALGORITHM_LIBRARY) return std::nullopt;
  return static_cast<Algorithm>(static_cast<int>(algorithm));
}

std::optional<Dtype> FromProto(v1::Dtype dtype) {
  if (dtype < v1::DTYPE_FP16 || dtype > v1::DTYPE_FP32) return std::nullopt;
  return static_cast<Dtype>(static_cast<int>(dtype));
}

std::optional<Epilogue> FromProto(v1::Epilogue epilogue) {
  if (epilogue < v1::EPILOGUE_NONE || epilogue > v1::EPILOGUE_RMS_NORM) return std::nullopt;
  return static_cast<Epilogue>(static_cast<int>(epilogue) - 1);
}

std::string CodecNames() { return ValueNames(*v1::Codec_descriptor()); }
std::string AlgorithmNames() { return ValueNames(*v1::Algorithm_descriptor()); }
std::string DtypeNames() { return ValueNames(*v1::Dtype_descriptor()); }
std::string EpilogueNames() { return ValueNames(*v1::Epilogue_descriptor()); }

}  // namespace qrd
