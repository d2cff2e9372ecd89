// SPDX-License-Identifier: Apache-2.0
// Enums of proto/qrd/v1/types.proto <-> enums of the kernels, and the lists that error texts show.
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>

#include "kernels/epilogue.h"
#include "kernels/types.h"
#include "qrd/v1/types.pb.h"

namespace qrd {

inline v1::Codec ToProto(Codec codec) {
  return static_cast<v1::Codec>(static_cast<int>(codec) + 1);
}
inline v1::Algorithm ToProto(Algorithm algorithm) {
  return static_cast<v1::Algorithm>(static_cast<int>(algorithm));
}
inline v1::Epilogue ToProto(Epilogue epilogue) {
  return static_cast<v1::Epilogue>(static_cast<int>(epilogue) + 1);
}
inline v1::Dtype ToProto(Dtype dtype) { return static_cast<v1::Dtype>(static_cast<int>(dtype)); }

// nullopt for UNSPECIFIED, AUTO and numbers that this version does not know.
std::optional<Codec> FromProto(v1::Codec codec);
std::optional<Algorithm> FromProto(v1::Algorithm algorithm);
std::optional<Dtype> FromProto(v1::Dtype dtype);
std::optional<Epilogue> FromProto(v1::Epilogue epilogue);

// "CODEC_NONE, CODEC_FP8, ..." without UNSPECIFIED.
std::string CodecNames();
std::string AlgorithmNames();
std::string DtypeNames();
std::string EpilogueNames();

}  // namespace qrd
