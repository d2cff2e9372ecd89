// SPDX-License-Identifier: Apache-2.0
// HTTP for Prometheus and for whoever probes the daemon: GET /metrics, /livez, /readyz.
//
//   /livez   200 while the engine makes progress, else 503 with the reason
//   /readyz  200 while sessions are accepted, else 503 with the reason (starting, draining)
//
// No prometheus-cpp Exposer: it serves metrics only. Both stand on the same civetweb.
// Thread safety: all functions from any thread; the sources are called from its own threads.
// Ownership: what the sources use must outlive the exposer; the destructor waits for running
// requests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/telemetry/metrics.h"

struct mg_context;

namespace qrd {

class Exposer {
 public:
  struct Sources {
    const Metrics* metrics = nullptr;
    // "" for good, else the reason.
    std::function<std::string()> live_error, ready_error;
  };

  // `address`: see ParseHostPort(); port 0 picks a free one. ALREADY_EXISTS if the port is taken;
  // the error says which flag to change.
  static absl::StatusOr<std::unique_ptr<Exposer>> Start(const std::string& address,
                                                        Sources sources);
  ~Exposer();

  // With the port that it got.
  const std::string& address() const { return address_; }

 private:
  explicit Exposer(Sources sources) : sources_(std::move(sources)) {}

  const Sources sources_;
  std::string address_;
  mg_context* context_ = nullptr;
};

}  // namespace qrd
