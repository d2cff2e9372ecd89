// SPDX-License-Identifier: Apache-2.0
// The daemon's data path in the test process: registry, engine and session server over a fake (or
// any) backend, and raw clients attached to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/base/config.h"
#include "daemon/engine/engine.h"
#include "daemon/policy/policy_store.h"
#include "daemon/registry/communicator_registry.h"
#include "daemon/session/node_segment.h"
#include "daemon/session/session_server.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_directory.h"

namespace qrd::testing {

class DataPath {
 public:
  // `other` in the place of the fake host backend; `gpu` beside it.
  explicit DataPath(Config c = DefaultConfig(), std::unique_ptr<Backend> other = nullptr,
                    std::unique_ptr<Backend> gpu = nullptr)
      : config(std::move(c)) {
    if (other == nullptr) {
      auto made = std::make_unique<FakeBackend>();
      fake_ = made.get();
      other = std::move(made);
    }
    backends.host = std::move(other);
    backends.gpu = std::move(gpu);
    if (backends.gpu == nullptr) backends.gpu_status = absl::FailedPreconditionError("none here");
    config.runtime_directory = directory.path();
    config.state_directory = directory.path();
    metrics = std::make_unique<Metrics>(GaugeSources{});
    policy = PolicyStore::Open(config.state_directory, v1::Policy(), *backend()).value();
    node = NodeSegment::Create().value();
    engine = std::make_unique<Engine>(config, backend(), policy.get(), metrics.get(), node.get());
    registry = CommunicatorRegistry::Open(config, backends.gpu_status).value();
    server = SessionServer::Open(config, registry.get(), engine.get(), metrics.get(), &backends,
                                 node.get())
                 .value();
    registry->SetEndSessionsHook([this](const std::vector<uint64_t>& ids) {
      server->EndSessions(ids, shm::Status::kAborted, "the communicator was deleted");
    });
    registry->SetGroupDetailHook(
        [this](uint64_t id, v1::Group* group) { engine->GroupDetail(id, group); });
    EXPECT_TRUE(engine->Start().ok());
    EXPECT_TRUE(server->Start().ok());
  }
  ~DataPath() {
    if (fake_ != nullptr) fake_->Release();
    server->Stop();
    engine->Stop();
  }

  static Config DefaultConfig() {
    Config config;
    config.worker_threads = 2;
    config.sessions_max = 64;
    config.operations_in_flight_max = 16;
    config.arenas_per_session_max = 8;
    config.arena_bytes_per_session_max = uint64_t{256} << 20;
    config.arena_bytes_max = uint64_t{512} << 20;
    return config;
  }

  Backend* backend() { return backends.host.get(); }
  FakeBackend& fake() { return *fake_; }
  std::string socket() const { return directory / "attach.sock"; }

  // All ranks of a new group, joined.
  std::vector<std::unique_ptr<RawClient>> Group(uint32_t world_size,
                                                const std::string& communicator = "c",
                                                const std::string& group = "default") {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      clients.push_back(std::make_unique<RawClient>(socket()));
      EXPECT_EQ(clients.back()->Hello(), "");
      clients.back()->SendJoin(communicator, group, rank, world_size);
    }
    for (auto& client : clients) EXPECT_EQ(client->FinishJoin(), "");
    return clients;
  }

  TempDirectory directory;
  Config config;
  Backends backends;
  FakeBackend* fake_ = nullptr;  // null: another one is in its place
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<PolicyStore> policy;
  std::unique_ptr<NodeSegment> node;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<CommunicatorRegistry> registry;
  std::unique_ptr<SessionServer> server;
};

}  // namespace qrd::testing
