// SPDX-License-Identifier: Apache-2.0
#include "daemon/registry/communicator_file.h"

#include <cerrno>
#include <cstdio>

#include "daemon/base/file.h"
#include "daemon/base/text_format.h"
#include "spdlog/spdlog.h"

namespace qrd {

absl::StatusOr<v1::ListCommunicatorsResponse> LoadCommunicators(const std::string& path) {
  v1::ListCommunicatorsResponse saved;
  absl::StatusOr<std::string> text = ReadFile(path, kTextFileBytesMax);
  if (absl::IsNotFound(text.status())) return saved;
  if (!text.ok()) return text.status();
  if (absl::Status status = ParseText(*text, path, &saved); !status.ok()) return status;
  return saved;
}

absl::Status SetAsideCommunicators(const std::string& path, const absl::Status& why) {
  const std::string aside = path + ".bad";
  spdlog::warn("{}: {}; set aside as {}", path, std::string(why.message()), aside);
  if (std::rename(path.c_str(), aside.c_str()) == 0) return absl::OkStatus();
  return ErrnoError(errno, "rename " + path + " to " + aside);
}

absl::Status SaveCommunicators(const std::string& path,
                               const v1::ListCommunicatorsResponse& saved) {
  return ReplaceFile(path, PrintText(saved));
}

}  // namespace qrd
