// SPDX-License-Identifier: Apache-2.0
#include "daemon/app.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "tests/daemon/telemetry/http.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_device_backend.h"
#include "tests/support/raw_client.h"
#include "tests/support/temp_directory.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using testing::FakeBackend;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::RawClient;
using ::testing::StartsWith;
using testing::TempDirectory;

class AppTest : public ::testing::Test {
 protected:
  AppTest() {
    config_.runtime_directory = directory_ / "run";
    config_.state_directory = directory_ / "state";
    config_.metrics_address = "127.0.0.1:0";
    config_.worker_threads = 2;
    config_.arena_bytes_max = uint64_t{64} << 20;
  }

  std::unique_ptr<App> MakeApp() {
    auto backend = std::make_unique<FakeBackend>();
    backend_ = backend.get();
    return std::make_unique<App>(config_, Backends::HostOnly(std::move(backend)));
  }

  std::string attach_socket() const { return directory_ / "run/attach.sock"; }

  v1::NodeStatus Status() const {
    const auto stub = v1::NodeService::NewStub(grpc::CreateChannel(
        "unix:" + directory_ / "run/control.sock", grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::NodeStatus status;
    const grpc::Status result = stub->GetStatus(&context, {}, &status);
    EXPECT_TRUE(result.ok()) << result.error_message();
    return status;
  }

  // A group of one rank with an operation that runs and does not end before backend_->Release().
  uint32_t StartHeldOperation(RawClient* client) {
    EXPECT_EQ(client->Hello(), "");
    client->SendJoin("c", "g", 0, 1);
    EXPECT_EQ(client->FinishJoin(), "");
    const testing::RawArena arena = client->Alloc(65536);
    backend_->Hold();
    const uint32_t slot = client->Post(client->AllReduce(arena, 0, 32768, 1024));
    client->RingDoorbell();
    EXPECT_TRUE(backend_->WaitUntilHeld());
    return slot;
  }

  const TempDirectory directory_;
  Config config_;
  FakeBackend* backend_ = nullptr;
};

const auto kNever = [] { return false; };

TEST_F(AppTest, ServesStopsAndServesAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto app = MakeApp();
    ASSERT_TRUE(app->Start().ok());
    EXPECT_EQ(app->LiveError(), "");
    EXPECT_THAT(HttpGet(app->metrics_address(), "/readyz"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(HttpGet(app->metrics_address(), "/livez"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(HttpGet(app->metrics_address(), "/metrics"), HasSubstr("qrd_sessions 0\n"));
    EXPECT_EQ(Status().state(), v1::NodeStatus::STATE_SERVING);
    EXPECT_EQ(Status().metrics_address(), app->metrics_address());
    EXPECT_TRUE(app->Drain(kNever));
    app->Stop();
    struct stat status;
    EXPECT_NE(stat(attach_socket().c_str(), &status), 0);
    EXPECT_NE(stat((directory_ / "run/control.sock").c_str(), &status), 0);
  }
}

TEST_F(AppTest, ShowsDrainingAndLetsTheOperationInFlightFinish) {
  const auto app = MakeApp();
  ASSERT_TRUE(app->Start().ok());
  RawClient client(attach_socket());
  const uint32_t slot = StartHeldOperation(&client);
  EXPECT_EQ(Status().sessions(), 1u);
  int asked = 0;
  const bool done = app->Drain([&] {
    if (++asked == 1) {
      EXPECT_EQ(Status().state(), v1::NodeStatus::STATE_DRAINING);
      EXPECT_THAT(HttpGet(app->metrics_address(), "/readyz"),
                  AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("draining")));
      EXPECT_THAT(HttpGet(app->metrics_address(), "/livez"), StartsWith("HTTP/1.1 200"));
      RawClient late(attach_socket());
      if (late.connected() && late.Hello().empty()) {
        late.SendJoin("c", "late", 0, 1);
        EXPECT_NE(late.FinishJoin(), "");
      }
      backend_->Release();
    }
    return false;
  });
  EXPECT_TRUE(done);
  EXPECT_GE(asked, 1);
  EXPECT_EQ(client.Wait(slot).status, shm::Status::kOk);
  app->Stop();
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(AppTest, GivesUpADrainWhenToldOrAfterItsTimeout) {
  config_.drain_timeout_ms = 200;
  const auto app = MakeApp();
  ASSERT_TRUE(app->Start().ok());
  RawClient client(attach_socket());
  StartHeldOperation(&client);
  EXPECT_FALSE(app->Drain(kNever));
  backend_->Release();
  app->Stop();

  config_.drain_timeout_ms = 600'000;
  const auto second = MakeApp();
  ASSERT_TRUE(second->Start().ok());
  RawClient other(attach_socket());
  StartHeldOperation(&other);
  EXPECT_FALSE(second->Drain([] { return true; }));
  backend_->Release();
}

// F42
TEST_F(AppTest, KeepsASecondDaemonOffAndTheFirstUndisturbed) {
  const auto first = MakeApp();
  ASSERT_TRUE(first->Start().ok());
  {
    App second(config_, Backends::HostOnly(std::make_unique<FakeBackend>()));
    const absl::Status status = second.Start();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("another qrd (pid " + std::to_string(getpid()) + ")"));
    EXPECT_EQ(Status().pid(), getpid());
  }
  EXPECT_EQ(Status().state(), v1::NodeStatus::STATE_SERVING);
  RawClient client(attach_socket());
  EXPECT_EQ(client.Hello(), "");
}

TEST_F(AppTest, KeepsASecondDaemonOffTheStateDirectory) {
  const auto first = MakeApp();
  ASSERT_TRUE(first->Start().ok());
  config_.runtime_directory = directory_ / "run2";
  EXPECT_THAT(std::string(MakeApp()->Start().message()),
              AllOf(HasSubstr("another qrd (pid "), HasSubstr("/state"),
                    HasSubstr("choose another directory with --state-directory")));
  first->Stop();
  EXPECT_TRUE(MakeApp()->Start().ok());
}

TEST_F(AppTest, SaysWhatToDoWhenItCannotStart) {
  const auto error_of = [this](auto change) {
    Config config = config_;
    change(&config);
    App app(config, Backends::HostOnly(std::make_unique<FakeBackend>()));
    const absl::Status status = app.Start();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  EXPECT_THAT(error_of([](Config* c) { c->runtime_directory = "/proc/none/run"; }),
              AllOf(HasSubstr("runtime_directory"), HasSubstr("--runtime-directory")));
  EXPECT_THAT(error_of([](Config* c) { c->state_directory = "/proc/none/state"; }),
              AllOf(HasSubstr("state_directory"), HasSubstr("--state-directory")));
  EXPECT_THAT(error_of([](Config* c) { c->initial_policy.add_rules(); }),
              HasSubstr("initial_policy: rule 1"));
  EXPECT_THAT(error_of([](Config* c) { c->attach_group = "no-such-group"; }),
              HasSubstr("no group \"no-such-group\""));
  const auto first = MakeApp();
  ASSERT_TRUE(first->Start().ok());
  EXPECT_THAT(error_of([&](Config* c) {
                c->runtime_directory = directory_ / "run2";
                c->state_directory = directory_ / "state2";
                c->metrics_address = first->metrics_address();
              }),
              AllOf(HasSubstr("Address already in use"), HasSubstr("--metrics-address")));
}

TEST_F(AppTest, ShowsItsDevicesBesideTheHost) {
  Backends backends = Backends::HostOnly();
  backends.gpu =
      std::make_unique<testing::FakeDeviceBackend>(std::make_shared<testing::FakeDevices>());
  App app(config_, std::move(backends));
  ASSERT_TRUE(app.Start().ok());
  const auto stub = v1::NodeService::NewStub(grpc::CreateChannel(
      "unix:" + directory_ / "run/control.sock", grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::Capabilities capabilities;
  ASSERT_TRUE(stub->GetCapabilities(&context, {}, &capabilities).ok());
  ASSERT_EQ(capabilities.backends_size(), 2);
  EXPECT_EQ(capabilities.backends(0).backend(), v1::BACKEND_HOST);
  EXPECT_EQ(capabilities.backends(1).backend(), v1::BACKEND_GPU);
  EXPECT_EQ(capabilities.backends(1).target(), "fake");
  ASSERT_EQ(capabilities.backends(1).devices_size(), 1);
  EXPECT_EQ(capabilities.backends(1).devices(0).id(), testing::kFakeDeviceId);
  EXPECT_EQ(capabilities.backends(1).devices(0).memory_bytes(), uint64_t{1} << 30);
  app.Stop();
}

TEST_F(AppTest, RunsWithoutMetrics) {
  config_.metrics_address = "";
  const auto app = MakeApp();
  ASSERT_TRUE(app->Start().ok());
  EXPECT_EQ(app->metrics_address(), "");
  EXPECT_EQ(Status().metrics_address(), "");
}

}  // namespace
}  // namespace qrd
