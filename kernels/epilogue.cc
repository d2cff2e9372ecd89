// SPDX-License-Identifier: Apache-2.0
#include "kernels/epilogue.h"

namespace qrd {

std::string_view Name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kRmsNorm:
      return "rms_norm";
  }
  return "unknown";
}

std::string_view Name(Quant quant) {
  switch (quant) {
    case Quant::kNone:
      return "none";
    case Quant::kE4m3fn:
      return "e4m3fn";
    case Quant::kE4m3fnuz:
      return "e4m3fnuz";
  }
  return "unknown";
}

std::string_view Name(ResidualLayout layout) {
  switch (layout) {
    case ResidualLayout::kFull:
      return "full";
    case ResidualLayout::kSharded:
      return "sharded";
  }
  return "unknown";
}

std::optional<Epilogue> ParseEpilogue(std::string_view name) {
  for (const Epilogue value : {Epilogue::kNone, Epilogue::kRmsNorm}) {
    if (Name(value) == name) return value;
  }
  return std::nullopt;
}

std::optional<Quant> ParseQuant(std::string_view name) {
  for (const Quant value : {Quant::kNone, Quant::kE4m3fn, Quant::kE4m3fnuz}) {
    if (Name(value) == name) return value;
  }
  return std::nullopt;
}

}  // namespace qrd
