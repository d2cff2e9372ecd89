// SPDX-License-Identifier: Apache-2.0
#include "daemon/telemetry/exposer.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/file.h"
#include "daemon/base/host_port.h"
#include "daemon/base/names.h"
#include "daemon/base/unique_fd.h"
#include "prometheus/text_serializer.h"
#include "spdlog/spdlog.h"

namespace qrd {
namespace {

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kPrometheus[] = "text/plain; version=0.0.4; charset=utf-8";

int Reply(mg_connection* connection, int code, const char* reason, const char* type,
          const std::string& body) {
  const bool is_head = strcmp(mg_get_request_info(connection)->request_method, "HEAD") == 0;
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      code, reason, type, body.size());
  if (!is_head) mg_write(connection, body.data(), body.size());
  return code;
}

// 0 if the request may go on, else the status that was sent.
int RefuseOtherMethods(mg_connection* connection) {
  const std::string method = mg_get_request_info(connection)->request_method;
  if (method == "GET" || method == "HEAD") return 0;
  return Reply(connection, 405, "Method Not Allowed", kPlain, "only GET and HEAD\n");
}

int ReplyHealth(mg_connection* connection, const std::function<std::string()>& source) {
  if (const int refused = RefuseOtherMethods(connection); refused != 0) return refused;
  const std::string error = source ? source() : "";
  if (error.empty()) return Reply(connection, 200, "OK", kPlain, "ok\n");
  return Reply(connection, 503, "Service Unavailable", kPlain, error + "\n");
}

int OnMetrics(mg_connection* connection, void* data) {
  if (const int refused = RefuseOtherMethods(connection); refused != 0) return refused;
  const auto* sources = static_cast<const Exposer::Sources*>(data);
  const std::string body = prometheus::TextSerializer().Serialize(sources->metrics->Collect());
  return Reply(connection, 200, "OK", kPrometheus, body);
}

int OnLive(mg_connection* connection, void* data) {
  return ReplyHealth(connection, static_cast<const Exposer::Sources*>(data)->live_error);
}

int OnReady(mg_connection* connection, void* data) {
  return ReplyHealth(connection, static_cast<const Exposer::Sources*>(data)->ready_error);
}

int OnOther(mg_connection* connection, void*) {
  return Reply(connection, 404, "Not Found", kPlain, "there are /metrics, /livez and /readyz\n");
}

// civetweb would print to stderr, and to a file.
int OnLogMessage(const mg_connection*, const char* message) {
  spdlog::debug("metrics: {}", Quoted(message, 256));
  return 1;
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof(sockaddr_in);

  explicit SocketAddress(const HostPort& address) {
    if (address.is_ipv6) {
      auto* in6 = reinterpret_cast<sockaddr_in6*>(&storage);
      in6->sin6_family = AF_INET6;
      in6->sin6_port = htons(address.port);
      inet_pton(AF_INET6, address.host.c_str(), &in6->sin6_addr);
      bytes = sizeof(sockaddr_in6);
    } else {
      auto* in4 = reinterpret_cast<sockaddr_in*>(&storage);
      in4->sin_family = AF_INET;
      in4->sin_port = htons(address.port);
      inet_pton(AF_INET, address.host.c_str(), &in4->sin_addr);
    }
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  UniqueFd MakeSocket(int flags) const {
    return UniqueFd(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  }
};

// civetweb names neither address nor errno, so ask the kernel first. A port that is taken between
// here and there still fails, with a vaguer text.
absl::Status CheckFree(const HostPort& address) {
  const SocketAddress socket_address(address);
  const UniqueFd fd = socket_address.MakeSocket(0);
  const int one = 1;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(fd.get(), socket_address.get(), socket_address.bytes) != 0) {
    return ErrnoError(errno, "cannot listen there");
  }
  return absl::OkStatus();
}

absl::Status StartError(const std::string& address, const absl::Status& why) {
  return absl::Status(why.code(),
                      absl::StrCat("metrics_address ", address, ": ", std::string(why.message()),
                                   "; choose another with --metrics-address (port 0: any "
                                   "free one, \"\": no metrics)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const std::string& address,
                                                        Sources sources) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics_address ", std::string(parsed.status().message())));
  }
  if (absl::Status free = CheckFree(*parsed); !free.ok()) return StartError(address, free);

  std::unique_ptr<Exposer> exposer(new Exposer(std::move(sources)));
  const std::string port_text = parsed->ToString();
  // A connection that says nothing holds a thread until the timeout: enough of them that probes get
  // through beside some, which any local user can open.
  const char* options[] = {"listening_ports",
                           port_text.c_str(),
                           "num_threads",
                           "32",
                           "request_timeout_ms",
                           "2000",
                           "enable_keep_alive",
                           "no",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = OnLogMessage;
  exposer->context_ = mg_start(&callbacks, nullptr, options);
  if (exposer->context_ == nullptr) {
    return StartError(address, absl::UnavailableError("cannot start the HTTP server"));
  }
  auto* data = const_cast<Sources*>(&exposer->sources_);
  mg_set_request_handler(exposer->context_, "/metrics$", OnMetrics, data);
  mg_set_request_handler(exposer->context_, "/livez$", OnLive, data);
  mg_set_request_handler(exposer->context_, "/readyz$", OnReady, data);
  mg_set_request_handler(exposer->context_, "**", OnOther, nullptr);
  mg_server_port port = {};
  if (mg_get_server_ports(exposer->context_, 1, &port) != 1) {
    return absl::InternalError("civetweb does not tell its port");
  }
  parsed->port = static_cast<uint16_t>(port.port);
  exposer->address_ = parsed->ToString();
  return exposer;
}

Exposer::~Exposer() {
  if (context_ == nullptr) return;
  // civetweb looks at its stop flag every 2 s, or when somebody connects: so connect.
  std::promise<void> stopped;
  std::future<void> is_stopped = stopped.get_future();
  std::thread stopper([this, &stopped] {
    mg_stop(context_);
    stopped.set_value();
  });
  if (const absl::StatusOr<HostPort> address = ParseHostPort(address_); address.ok()) {
    const SocketAddress socket_address(*address);
    while (is_stopped.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
      const UniqueFd fd = socket_address.MakeSocket(SOCK_NONBLOCK);
      // Whether it connects does not matter: the listener saw it, or is gone.
      (void)connect(fd.get(), socket_address.get(), socket_address.bytes);
    }
  }
  stopper.join();
}

}  // namespace qrd
