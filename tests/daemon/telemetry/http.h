// SPDX-License-Identifier: Apache-2.0
// One HTTP request over a plain socket, for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "daemon/base/host_port.h"
#include "daemon/base/unique_fd.h"

namespace qrd::testing {

// Invalid if the server cannot be reached.
inline UniqueFd HttpConnect(const std::string& address) {
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return UniqueFd();
  sockaddr_in in4 = {};
  in4.sin_family = AF_INET;
  in4.sin_port = htons(parsed->port);
  inet_pton(AF_INET, parsed->host.c_str(), &in4.sin_addr);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout = {20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&in4), sizeof(in4)) != 0) fd.reset();
  return fd;
}

// Everything that the server sends for `request` until it closes; "" if it cannot be reached.
inline std::string HttpRaw(const std::string& address, const std::string& request) {
  const UniqueFd fd = HttpConnect(address);
  if (!fd.valid()) return "";
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
  std::string reply;
  char buffer[65536];
  ssize_t n;
  while ((n = recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) {
    reply.append(buffer, static_cast<size_t>(n));
  }
  return reply;
}

inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpRaw(address, "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
}

}  // namespace qrd::testing
