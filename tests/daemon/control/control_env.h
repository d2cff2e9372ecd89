// SPDX-License-Identifier: Apache-2.0
// A control server over a fake backend in the test process, and connections to it as any user.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/text_format.h"
#include "daemon/control/control_server.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/create_channel_posix.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temp_directory.h"

namespace qrd::testing {

inline constexpr uid_t kNobody = 65534;

struct User {
  uid_t uid = kNobody;
  gid_t gid = kNobody;
  std::vector<gid_t> groups;
};

// A context whose call ends within 20 s.
struct Context : grpc::ClientContext {
  Context() { set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20)); }
};

class ControlEnv {
 public:
  // `admin_group` and the attach group (everybody's here: nogroup) are numbers.
  explicit ControlEnv(const std::string& admin_group = "",
                      absl::Duration connection_idle = ControlServer::kConnectionIdle) {
    chmod(directory.path().c_str(), 0755);
    config.runtime_directory = directory.path();
    config.state_directory = directory.path();
    if (geteuid() == 0) config.attach_group = std::to_string(kNobody);
    config.admin_group = admin_group;
    config.worker_threads = 3;
    policy = PolicyStore::Open(directory.path(), v1::Policy(), backend).value();
    registry = CommunicatorRegistry::Open(config).value();
    NodeSources node;
    node.config = &config;
    node.backends = {&backend};
    node.policy = policy.get();
    node.registry = registry.get();
    node.metrics = &metrics;
    node.sessions = [] { return 5; };
    node.arena_bytes = [] { return 4096; };
    node.state = [] { return v1::NodeStatus::STATE_SERVING; };
    node.metrics_address = "127.0.0.1:1234";
    node.start_time = absl::FromUnixSeconds(1700000000);
    auto started = ControlServer::Start(config, std::move(node), policy.get(), registry.get(),
                                        &metrics, connection_idle);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }

  std::string path() const { return directory / "control.sock"; }

  // As the user that runs the test; a connection of its own.
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix:" + path(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // As another user; needs uid 0. The kernel's word is that of the thread which connects, so no
  // process is needed. Null if the socket cannot be reached.
  std::shared_ptr<grpc::Channel> ConnectAs(const User& user) const {
    int fd = -1;
    std::thread([&] {
      // A folder of its own, and the socket by a relative name: the way to it need not be open to
      // the other user. The plain system calls change this thread only.
      if (unshare(CLONE_FS) != 0 || chdir(directory.path().c_str()) != 0) return;
      if (syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0) return;
      if (syscall(SYS_setresgid, user.gid, user.gid, user.gid) != 0) return;
      if (syscall(SYS_setresuid, user.uid, user.uid, user.uid) != 0) return;
      fd = RawConnect("control.sock");
    }).join();
    if (fd < 0) return nullptr;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return grpc::CreateInsecureChannelFromFd("control", fd);
  }

  int RawConnect() const { return RawConnect(path()); }
  static int RawConnect(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
  }

  std::string MetricsText() const {
    return prometheus::TextSerializer().Serialize(metrics.Collect());
  }

  TempDirectory directory;
  Config config;
  FakeBackend backend;
  Metrics metrics{GaugeSources{}};
  std::unique_ptr<PolicyStore> policy;
  std::unique_ptr<CommunicatorRegistry> registry;
  std::unique_ptr<ControlServer> server;
};

inline v1::SetPolicyRequest SetRequest(const std::string& policy_text) {
  v1::SetPolicyRequest request;
  EXPECT_TRUE(ParseText(policy_text, "test", request.mutable_policy()).ok());
  return request;
}

inline constexpr char kInt8Policy[] = "rules { name: \"a\" action { codec: CODEC_INT8 } }";

}  // namespace qrd::testing
