// SPDX-License-Identifier: Apache-2.0
#include "daemon/control/control_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "daemon/base/version.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/daemon/control/control_env.h"

namespace qrd {
namespace {

using ::testing::AllOf;
using testing::Context;
using testing::ControlEnv;
using ::testing::HasSubstr;
using testing::kInt8Policy;
using testing::SetRequest;

// A unary call by name with raw bytes; the reply's bytes, or "" and the status.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& request_bytes, grpc::Status* status = nullptr) {
  grpc::GenericStub stub(channel);
  const grpc::Slice slice(request_bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  Context context;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &reply,
                 [&done](grpc::Status s) { done.set_value(std::move(s)); });
  const grpc::Status result = done.get_future().get();
  if (status != nullptr) *status = result;
  if (!result.ok()) return "";
  std::vector<grpc::Slice> slices;
  reply.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& s : slices)
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return bytes;
}

TEST(ControlServer, TellsStatus) {
  const ControlEnv env;
  const auto stub = v1::NodeService::NewStub(env.Connect());
  Context context;
  v1::NodeStatus status;
  ASSERT_TRUE(stub->GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.version(), kVersion);
  EXPECT_EQ(status.state(), v1::NodeStatus::STATE_SERVING);
  EXPECT_EQ(status.pid(), getpid());
  EXPECT_EQ(status.start_time().seconds(), 1700000000);
  EXPECT_EQ(status.runtime_directory(), env.directory.path());
  EXPECT_EQ(status.metrics_address(), "127.0.0.1:1234");
  EXPECT_EQ(status.sessions(), 5u);
  EXPECT_EQ(status.arena_bytes(), 4096u);
  EXPECT_EQ(status.policy_generation(), 1u);
  EXPECT_EQ(status.worker_threads(), 3u);
}

TEST(ControlServer, DerivesCapabilitiesFromTheInstanceList) {
  const ControlEnv env;
  const auto stub = v1::NodeService::NewStub(env.Connect());
  Context context;
  v1::Capabilities capabilities;
  ASSERT_TRUE(stub->GetCapabilities(&context, {}, &capabilities).ok());
  ASSERT_EQ(capabilities.backends_size(), 1);
  const v1::BackendCapability& host = capabilities.backends(0);
  EXPECT_EQ(host.backend(), v1::BACKEND_HOST);
  EXPECT_EQ(host.target(), "FAKE");
  size_t lines = 0;
  for (const v1::KernelInstance& instance : host.instances()) {
    lines += size_t(instance.dtypes_size()) * size_t(instance.algorithms_size());
    EXPECT_EQ(instance.wire_ratios_size(), instance.dtypes_size());
    // RMSNorm is for types of 16 bits, which stand in lines of their own.
    for (const int dtype : instance.dtypes()) {
      EXPECT_EQ(instance.epilogues_size() == 1, dtype != v1::DTYPE_FP32) << instance.codec();
    }
    if (instance.codec() == v1::CODEC_INT4 && instance.epilogues_size() == 1) {
      EXPECT_DOUBLE_EQ(instance.wire_ratios(0), 18.0 / 64.0);  // 32 fp16 elements
    }
  }
  EXPECT_EQ(lines, AllInstances().size());
  EXPECT_EQ(capabilities.limits().world_size_max(), 16u);
  EXPECT_EQ(capabilities.limits().sessions_max(), env.config.sessions_max);
  EXPECT_EQ(capabilities.limits().policy_rules_max(), 256u);
  EXPECT_EQ(capabilities.shm_layout_version_min(), shm::kLayoutVersion);
}

TEST(ControlServer, CreatesListsAndDeletesCommunicators) {
  const ControlEnv env;
  const auto stub = v1::CommunicatorService::NewStub(env.Connect());
  v1::CreateCommunicatorRequest create;
  create.mutable_communicator()->set_name("tp4");
  create.mutable_communicator()->set_world_size(4);
  v1::Communicator reply;
  {
    Context context;
    const grpc::Status status = stub->CreateCommunicator(&context, create, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(reply.name(), "tp4");
    EXPECT_EQ(reply.world_size(), 4u);
    EXPECT_FALSE(reply.created_on_attach());
  }
  {
    Context context;
    EXPECT_EQ(stub->CreateCommunicator(&context, create, &reply).error_code(),
              grpc::StatusCode::ALREADY_EXISTS);
  }
  v1::GetCommunicatorRequest get;
  get.set_name("tp4");
  {
    Context context;
    ASSERT_TRUE(stub->GetCommunicator(&context, get, &reply).ok());
    EXPECT_EQ(reply.world_size(), 4u);
  }
  v1::ListCommunicatorsResponse list;
  {
    Context context;
    ASSERT_TRUE(stub->ListCommunicators(&context, {}, &list).ok());
    ASSERT_EQ(list.communicators_size(), 1);
    EXPECT_EQ(list.communicators(0).name(), "tp4");
  }
  v1::DeleteCommunicatorRequest erase;
  erase.set_name("tp4");
  v1::DeleteCommunicatorResponse erased;
  {
    Context context;
    EXPECT_TRUE(stub->DeleteCommunicator(&context, erase, &erased).ok());
  }
  {
    Context context;
    EXPECT_EQ(stub->DeleteCommunicator(&context, erase, &erased).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  {
    Context context;
    EXPECT_EQ(stub->GetCommunicator(&context, get, &reply).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
}

TEST(ControlServer, RefusesBadCommunicatorsWithFieldValueAndBound) {
  const ControlEnv env;
  const auto stub = v1::CommunicatorService::NewStub(env.Connect());
  const auto error_of = [&](const v1::CreateCommunicatorRequest& request) {
    Context context;
    v1::Communicator reply;
    const grpc::Status status = stub->CreateCommunicator(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::CreateCommunicatorRequest request;
  EXPECT_THAT(error_of(request), HasSubstr("communicator is unset"));
  request.mutable_communicator()->set_name("A");
  request.mutable_communicator()->set_world_size(2);
  EXPECT_THAT(error_of(request), HasSubstr("name is \"A\""));
  request.mutable_communicator()->set_name("a");
  request.mutable_communicator()->set_world_size(17);
  EXPECT_THAT(error_of(request), AllOf(HasSubstr("world_size is 17"), HasSubstr("1 to 16")));
  request.mutable_communicator()->set_world_size(2);
  request.mutable_communicator()->set_operations_total(1);
  EXPECT_THAT(error_of(request), HasSubstr("output only"));
  request.mutable_communicator()->clear_operations_total();
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(77, 1);
  EXPECT_THAT(error_of(request), HasSubstr("field number 77"));
  EXPECT_EQ(env.registry->communicator_count(), 0u);
}

TEST(ControlServer, SetsAndGetsThePolicy) {
  const ControlEnv env;
  const auto stub = v1::PolicyService::NewStub(env.Connect());
  v1::SetPolicyResponse set;
  {
    Context context;
    const grpc::Status status = stub->SetPolicy(&context, SetRequest(kInt8Policy), &set);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(set.generation(), 2u);
  }
  Context context;
  v1::GetPolicyResponse get;
  ASSERT_TRUE(stub->GetPolicy(&context, {}, &get).ok());
  EXPECT_EQ(get.generation(), 2u);
  EXPECT_EQ(get.policy().rules(0).action().codec(), v1::CODEC_INT8);
  EXPECT_EQ(get.set_by_uid(), geteuid());
  EXPECT_THAT(env.MetricsText(), HasSubstr("qrd_policy_sets_total{result=\"accepted\"} 1\n"));
}

TEST(ControlServer, RefusesBadPoliciesAndKeepsTheOldOne) {
  const ControlEnv env;
  const auto stub = v1::PolicyService::NewStub(env.Connect());
  const auto status_of = [&](const v1::SetPolicyRequest& request) {
    Context context;
    v1::SetPolicyResponse reply;
    return stub->SetPolicy(&context, request, &reply);
  };
  EXPECT_THAT(status_of({}).error_message(), HasSubstr("policy is unset"));
  // F37: enum value 99 over gRPC.
  v1::SetPolicyRequest codec_99 = SetRequest(kInt8Policy);
  codec_99.mutable_policy()->mutable_rules(0)->mutable_action()->set_codec(
      static_cast<v1::Codec>(99));
  EXPECT_EQ(status_of(codec_99).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status_of(codec_99).error_message(),
              AllOf(HasSubstr("action.codec is 99"), HasSubstr("CODEC_INT4")));
  v1::SetPolicyRequest stale = SetRequest(kInt8Policy);
  stale.set_expected_generation(7);
  EXPECT_EQ(status_of(stale).error_code(), grpc::StatusCode::ABORTED);
  v1::SetPolicyRequest check = SetRequest(kInt8Policy);
  check.set_validate_only(true);
  EXPECT_TRUE(status_of(check).ok());
  v1::SetPolicyRequest large = SetRequest(kInt8Policy);
  large.mutable_policy()->mutable_rules(0)->set_name(std::string(2 << 20, 'a'));
  EXPECT_EQ(status_of(large).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  large.mutable_policy()->mutable_rules(0)->set_name(std::string(900'000, '\n'));
  EXPECT_THAT(status_of(large).error_message(), HasSubstr("name is 900000 bytes long"));
  EXPECT_EQ(env.policy->current()->generation(), 1u);
  EXPECT_THAT(env.MetricsText(), HasSubstr("qrd_policy_sets_total{result=\"refused\"} 4\n"));
}

TEST(ControlServer, ClosesAConnectionThatNobodyUses) {
  const ControlEnv env("", absl::Milliseconds(50));
  const UniqueFd idle(env.RawConnect());
  ASSERT_TRUE(idle.valid());
  // What gRPC sends first, then the end; the bound is for a daemon that never closes it.
  const timeval bound = {30, 0};
  ASSERT_EQ(setsockopt(idle.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound)), 0);
  char bytes[4096];
  ssize_t got = 0;
  do {
    got = read(idle.get(), bytes, sizeof(bytes));
  } while (got > 0);
  EXPECT_EQ(got, 0) << strerror(errno);
}

// F43
TEST(ControlServer, LetsAStrangerLookButNotChange) {
  if (geteuid() != 0) GTEST_SKIP() << "needs uid 0 to be somebody else";
  const ControlEnv env;
  const auto channel = env.ConnectAs({});
  ASSERT_NE(channel, nullptr);
  const auto policy = v1::PolicyService::NewStub(channel);
  v1::SetPolicyResponse set;
  {
    Context context;
    const grpc::Status status = policy->SetPolicy(&context, SetRequest(kInt8Policy), &set);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("uid 65534 may not set the policy"), HasSubstr("admin_group")));
  }
  {
    Context context;
    v1::GetPolicyResponse get;
    EXPECT_TRUE(policy->GetPolicy(&context, {}, &get).ok());
    EXPECT_EQ(get.generation(), 1u);
  }
  const auto communicators = v1::CommunicatorService::NewStub(channel);
  {
    Context context;
    v1::Communicator reply;
    EXPECT_EQ(communicators->CreateCommunicator(&context, {}, &reply).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    Context context;
    v1::DeleteCommunicatorResponse reply;
    EXPECT_EQ(communicators->DeleteCommunicator(&context, {}, &reply).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    Context context;
    v1::ListCommunicatorsResponse reply;
    EXPECT_TRUE(communicators->ListCommunicators(&context, {}, &reply).ok());
  }
  EXPECT_EQ(env.policy->current()->generation(), 1u);
  EXPECT_THAT(env.MetricsText(), HasSubstr("qrd_permission_denied_total 3\n"));
}

TEST(ControlServer, TakesMembersOfTheAdminGroupAsAdmins) {
  if (geteuid() != 0) GTEST_SKIP() << "needs uid 0 to be somebody else";
  const ControlEnv env("4711");
  const auto code_for = [&env](const testing::User& user) {
    const auto channel = env.ConnectAs(user);
    if (channel == nullptr) return grpc::StatusCode::UNAVAILABLE;
    Context context;
    v1::SetPolicyResponse reply;
    return v1::PolicyService::NewStub(channel)
        ->SetPolicy(&context, SetRequest(kInt8Policy), &reply)
        .error_code();
  };
  EXPECT_EQ(code_for({1234, 4711, {testing::kNobody}}), grpc::StatusCode::OK);
  EXPECT_EQ(code_for({1234, testing::kNobody, {1, 2, 4711}}), grpc::StatusCode::OK);
  EXPECT_EQ(code_for({1234, testing::kNobody, {4710, 4712}}), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(env.policy->snapshot().set_by_uid, 1234u);
  // Who is not in the attach group does not even reach the socket.
  EXPECT_EQ(code_for({1234, 1234, {}}), grpc::StatusCode::UNAVAILABLE);
}

// Descriptor numbers are used again and again; nobody may inherit another's rights.
TEST(ControlServer, NeverTakesAStrangerForAnAdminWhoConnectsAtTheSameTime) {
  if (geteuid() != 0) GTEST_SKIP() << "needs uid 0 to be somebody else";
  const ControlEnv env;
  std::jthread admin([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      const int fd = env.RawConnect();
      if (fd >= 0) close(fd);
    }
  });
  for (int i = 0; i < 40; ++i) {
    auto channel = env.ConnectAs({});
    ASSERT_NE(channel, nullptr);
    const auto stub = v1::PolicyService::NewStub(channel);
    channel.reset();
    grpc::ClientContext context;
    // Some calls are given up at once, so that connections close while their handlers run.
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(i % 4 == 0 ? 2000 : i % 4));
    v1::SetPolicyResponse reply;
    const grpc::Status status = stub->SetPolicy(&context, SetRequest(kInt8Policy), &reply);
    EXPECT_FALSE(status.ok());
  }
  admin = {};  // stops
  EXPECT_EQ(env.policy->current()->generation(), 1u);
}

TEST(ControlServer, ShowsHealthAndReflection) {
  ControlEnv env;
  const auto channel = env.Connect();
  const std::string check = "/grpc.health.v1.Health/Check";
  const std::string policy_service = std::string("\x0a\x14") + "qrd.v1.PolicyService";
  EXPECT_EQ(RawCall(channel, check, ""), "\x08\x02");  // NOT_SERVING
  env.server->SetServing(true);
  EXPECT_EQ(RawCall(channel, check, ""), "\x08\x01");  // SERVING
  EXPECT_EQ(RawCall(channel, check, policy_service), "\x08\x01");
  env.server->SetServing(false);
  EXPECT_EQ(RawCall(channel, check, policy_service), "\x08\x02");
  const std::string services =
      RawCall(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x00", 2));
  EXPECT_THAT(services, AllOf(HasSubstr("qrd.v1.PolicyService"), HasSubstr("qrd.v1.NodeService"),
                              HasSubstr("qrd.v1.CommunicatorService")));
}

TEST(ControlServer, SurvivesGarbage) {
  const ControlEnv env;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(65536, '\xff'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string(1000, '\x00')}) {
    const int fd = env.RawConnect();
    ASSERT_GE(fd, 0);
    EXPECT_GT(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(fd);
  }
  grpc::Status status;
  const auto channel = env.Connect();
  RawCall(channel, "/qrd.v1.PolicyService/SetPolicy", std::string(1000, '\xff'), &status);
  EXPECT_FALSE(status.ok());
  RawCall(channel, "/qrd.v1.PolicyService/NoSuchCall", "", &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  Context context;
  v1::NodeStatus reply;
  EXPECT_TRUE(v1::NodeService::NewStub(channel)->GetStatus(&context, {}, &reply).ok());
}

TEST(ControlServer, HasASocketForOwnerAndGroupAndRemovesItAtTheEnd) {
  ControlEnv env;
  struct stat status;
  ASSERT_EQ(stat(env.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0660u);
  env.server->Stop(absl::Milliseconds(100));
  EXPECT_NE(stat(env.path().c_str(), &status), 0);
}

}  // namespace
}  // namespace qrd
