// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/names.h"

namespace qrd {

std::string HostPort::ToString() const {
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "is ", Quoted(text),
      "; want ADDRESS:PORT with a numeric address or localhost and a port of 0 to 65535, "
      "for example 127.0.0.1:9478 or [::1]:9478"));
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad;
  HostPort out;
  out.host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  uint32_t number = 0;
  if (port.empty() || port.size() > 5 ||
      !std::all_of(port.begin(), port.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(port, &number) || number > 65535) {
    return bad;
  }
  out.port = static_cast<uint16_t>(number);
  if (out.host == "localhost") out.host = "127.0.0.1";
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
    out.is_ipv6 = true;
  }
  if (out.host.find('\0') != std::string::npos) return bad;
  unsigned char address[16];
  if (inet_pton(out.is_ipv6 ? AF_INET6 : AF_INET, out.host.c_str(), address) != 1) return bad;
  return out;
}

}  // namespace qrd
